"""Local directories as sources: what is inside is read, what leads out is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adapter.errors import AccessDenied, ObjectChanged, ObjectNotFound
from adapter.storage.base import RangeRequest
from adapter.storage.files import FileSource


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret").write_bytes(b"outside")
    model = tmp_path / "model"
    (model / "unet").mkdir(parents=True)
    (model / "unet" / "part-1.safetensors").write_bytes(b"inside")
    return model


def _read(source: FileSource, key: str) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: source.read_into(key, 0, memoryview(buffer)).length_bytes])


@pytest.mark.parametrize(
    "key", ["../other/secret", "/etc/hostname", "unet/../../other/secret", "link", "linked/secret", "unet/up"]
)
def test_what_leads_out_of_the_directory_is_refused_by_name(model: Path, key: str) -> None:
    """S-05."""
    (model / "link").symlink_to("../other/secret")
    (model / "linked").symlink_to(model.parent / "other")
    (model / "unet" / "up").symlink_to("../../other/secret")
    source = FileSource(model)
    with pytest.raises(AccessDenied) as refused:
        _read(source, key)
    assert repr(key) in refused.value.message
    assert [info.key for info in source.list()] == ["unet/part-1.safetensors"]


@pytest.mark.parametrize("key", ["a\0b", "", "absent", "unet/absent", "unet/part-1.safetensors/x"])
def test_a_name_that_is_no_file_is_not_found(model: Path, key: str) -> None:
    with pytest.raises(ObjectNotFound):
        _read(FileSource(model), key)


def test_a_directory_and_a_pipe_are_no_objects(model: Path) -> None:
    os.mkfifo(model / "pipe")
    for key in ("unet", "pipe"):
        with pytest.raises(ObjectNotFound, match="not a regular file"):
            _read(FileSource(model), key)


def test_links_inside_the_directory_are_followed(model: Path) -> None:
    (model / "model.safetensors").symlink_to("unet/part-1.safetensors")
    (model / "loop").symlink_to(".")
    source = FileSource(model)
    assert _read(source, "model.safetensors") == b"inside"
    assert _read(source, "unet/part-1.safetensors") == b"inside"
    assert {info.key for info in source.list()} == {"model.safetensors", "unet/part-1.safetensors"}


def test_a_directory_reached_by_a_link_is_read(model: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("model")
    assert _read(FileSource(tmp_path / "current"), "unet/part-1.safetensors") == b"inside"


def test_a_directory_of_links_that_lead_out_says_so(tmp_path: Path, model: Path) -> None:
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    (snapshot / "model.safetensors").symlink_to(model / "unet" / "part-1.safetensors")
    with pytest.raises(ObjectNotFound, match="1 symlinks lead out"):
        list(FileSource(snapshot).list())


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFound, match="absent"):
        list(FileSource(tmp_path / "absent").list())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_denied(model: Path) -> None:
    (model / "unet" / "part-1.safetensors").chmod(0)
    with pytest.raises(AccessDenied, match="uid"):
        _read(FileSource(model), "unet/part-1.safetensors")


def test_a_file_written_into_while_it_is_read_is_never_given_out_as_one(model: Path) -> None:
    """S-10."""
    path = model / "unet" / "part-1.safetensors"
    path.write_bytes(b"a" * 100)
    source = FileSource(model)
    buffer = memoryview(bytearray(10))
    chunks = source.read_chunks(RangeRequest("unet/part-1.safetensors", 0, 100), buffer)
    next(chunks)
    path.write_bytes(b"b" * 50)
    with pytest.raises(ObjectChanged):
        next(chunks)
