"""The manifest: one file, whole or not there, that all readers depend on."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.errors import CacheError, InitTimeout, ObjectNotFound
from adapter.streaming.manifest import ObjectEntry, StreamManifest, wait_for_manifest
from adapter.streaming.waiting import Deadline

ENTRY = ObjectEntry("a b/é.safetensors", "a b/é.safetensors", 'W/"1"', 12, "shard", Path("/p"), Path("/q"), Path("/j"))
MANIFEST = StreamManifest("s3://b/p/", "s3://b", (ENTRY, replace(ENTRY, name="c.json", key="c.json", kind="file")))


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    MANIFEST.write(path)
    assert StreamManifest.read(path) == MANIFEST
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["weights.json"]


def test_parts_of_a_manifest() -> None:
    assert [entry.name for entry in MANIFEST.shards] == ["a b/é.safetensors"]
    assert [entry.name for entry in MANIFEST.files] == ["c.json"]
    assert MANIFEST.total_bytes == 24
    assert MANIFEST.find("c.json") is MANIFEST.objects[1]
    assert MANIFEST.find("d") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema_version": 2, "address": "", "store": "", "objects": []}', '{"schema_version": 1}'],
)
def test_what_is_no_manifest_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "weights.json"
    path.write_text(text)
    with pytest.raises(CacheError, match=r"weights\.json"):
        StreamManifest.read(path)


def test_waiting_ends_with_the_fetchers_own_error(tmp_path: Path) -> None:
    """A6"""
    with pytest.raises(ObjectNotFound, match="nothing there"):
        wait_for_manifest(tmp_path / "weights.json", lambda: ObjectNotFound("nothing there"))


def test_waiting_is_bounded_by_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(InitTimeout):
        wait_for_manifest(tmp_path / "weights.json", None, Deadline.after(0.05))


def test_a_manifest_that_is_there_counts_even_when_the_fetcher_failed_later(tmp_path: Path) -> None:
    path = tmp_path / "weights.json"
    MANIFEST.write(path)
    found = wait_for_manifest(path, lambda: ObjectNotFound("later"), Deadline.after(0))
    assert found == MANIFEST
