from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.cli.main import main
from adapter.errors import AccessDenied
from adapter.storage.memory import DenyListing, MemorySource, register_memory
from adapter.streaming.inspection import FIRST_BYTES, inspect_checkpoint, split_file_address
from tests.support.checkpoints import MEBIBYTE, write_checkpoint
from tests.support.safetensors_files import safetensors_bytes
from tests.support.stores import Store, running_store

INDEX_NAME = "model.safetensors.index.json"
A = safetensors_bytes({"a": ("F32", [2], b"\1" * 8), "b": ("BF16", [2, 2], b"\2" * 8)}, {"format": "pt", "c": "a"})
B = safetensors_bytes({"d": ("U8", [3], b"abc")})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


def index(**weight_map: str) -> bytes:
    return json.dumps({"metadata": {"total_size": 19}, "weight_map": weight_map}).encode()


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def sharded(name: str, **objects: bytes) -> str:
    files = {
        "1.safetensors": A,
        "2.safetensors": B,
        INDEX_NAME: index(a="1.safetensors", b="1.safetensors", d="2.safetensors"),
    }
    return register_memory(name, MemorySource(files | objects))


def test_tensors_dtypes_shapes_and_bytes_of_all_shards(capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(capsys, sharded("inspect-all", **{"config.json": b"{}", "stray.safetensors": A}))
    told = [(each["name"], each["dtype"], each["shape"], each["bytes"], each["shard"]) for each in found["tensors"]]
    assert told == [
        ("a", "F32", [2], 8, "1.safetensors"),
        ("b", "BF16", [2, 2], 8, "1.safetensors"),
        ("d", "U8", [3], 3, "2.safetensors"),
    ]
    assert found["tied"] == {"c": "a"}
    assert found["skipped"] == ["stray.safetensors"]
    assert [each["name"] for each in found["files"]] == ["config.json", INDEX_NAME]
    assert found["notes"] == []


def test_the_text_form_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", sharded("inspect-text"), "--only", "[ab]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "memory://inspect-text: tensors 3, elements 9, 19 B; shards 2, files beside them 1"
    assert any(line.split() == ["a", "F32", "[2]", "8", "B", "1.safetensors"] for line in lines)
    assert not any(line.startswith("d ") for line in lines)
    assert "tied: c is a" in lines


def test_a_name_that_a_terminal_would_obey_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    evil = safetensors_bytes({"\x1b]0;owned\x07": ("U8", [1], b"x")})
    assert main(["inspect", register_memory("inspect-evil", MemorySource({"model.safetensors": evil}))]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_only_headers_are_read(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted at the store: the index, and one range of each shard that is far shorter than its data."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    for number in (1, 2):
        write_checkpoint(store.root / f"b/counted/{number}.safetensors", 2 * MEBIBYTE, 2)
    shard = (store.root / "b/counted/2.safetensors").read_bytes()
    store.put("b/counted/2.safetensors", shard.replace(b'"t0"', b'"u0"', 1).replace(b'"t1"', b'"u1"', 1))
    store.put(
        f"b/counted/{INDEX_NAME}", index(t0="1.safetensors", t1="1.safetensors", u0="2.safetensors", u1="2.safetensors")
    )
    store.put("b/counted/tokenizer.json", b" " * MEBIBYTE)
    store.reset()
    found = inspected(capsys, "s3://b/counted/")
    assert [each["name"] for each in found["tensors"]] == ["t0", "t1", "u0", "u1"]
    asked = [(each["key"], each["range"]) for each in store.log()]
    assert sorted(key for key, _ in asked) == [
        "",
        "counted/1.safetensors",
        "counted/2.safetensors",
        f"counted/{INDEX_NAME}",
    ]
    sizes = {each["key"]: each["bytes_sent"] for each in store.log()}
    assert sizes["counted/1.safetensors"] == sizes["counted/2.safetensors"] == FIRST_BYTES


def test_one_object_of_a_store_can_be_asked_for(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    store.put("b/single/x.safetensors", B)
    store.put("b/single/model.safetensors", A)
    found = inspected(capsys, "s3://b/single/x.safetensors")
    assert [each["name"] for each in found["tensors"]] == ["d"]


def test_a_secret_in_an_address_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["inspect"], ["fetch"], ["push", str(tmp_path)]):
        assert main([*command, "https://user:secret1@h/m/?X-Amz-Signature=secret2"]) != 0
        said = capsys.readouterr()
        assert "secret" not in said.out + said.err


def test_a_long_header_takes_a_second_read_of_the_rest_of_it() -> None:
    tensors = {f"layer.{number:05}": ("U8", [1], b"x") for number in range(2000)}
    source = MemorySource({"model.safetensors": safetensors_bytes(tensors) + b""})
    found = inspect_checkpoint(source, "memory://m")
    assert len(found.tensors) == 2000
    first, second = source.reads
    assert (first.start, first.length_bytes) == (0, FIRST_BYTES)
    assert (second.start, second.start + second.length_bytes) == (FIRST_BYTES, found.shards[0].header.data_start)


def test_one_file_can_be_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.safetensors").write_bytes(B)
    (tmp_path / "model.safetensors").write_bytes(A)
    for address in (f"{tmp_path}/x.safetensors", f"file://{tmp_path}/x.safetensors"):
        assert [each["name"] for each in inspected(capsys, address)["tensors"]] == ["d"]
    monkeypatch.chdir(tmp_path)
    assert [each["name"] for each in inspected(capsys, "x.safetensors")["tensors"]] == ["d"]


def test_an_address_of_a_directory_is_no_address_of_a_file() -> None:
    assert split_file_address("s3://b/x.safetensors/") is None
    assert split_file_address("/b/x.safetensors/") is None
    assert split_file_address("/b/.safetensors") is None
    assert split_file_address("s3://b/p/x.safetensors") is None  # a source of a store knows such addresses itself


def test_what_a_start_would_stumble_over_is_noted() -> None:
    objects = {
        "1.safetensors": safetensors_bytes({"odd": ("U8", [1], b"x"), "a": ("F32", [2], b"\1" * 8)}),
        "2.safetensors": A,
        INDEX_NAME: index(odd="1.safetensors", a="1.safetensors", b="1.safetensors", gone="2.safetensors"),
    }
    notes = "\n".join(inspect_checkpoint(MemorySource(objects), "memory://m").notes())
    assert "'a' in 1.safetensors and 2.safetensors" in notes
    assert "'b', 'gone', not held by the shard it names" in notes
    assert "1 tensors (8 bytes) do not lie at a multiple" in notes
    assert "total_size 19" in notes


def test_without_the_permission_to_list_an_index_is_enough() -> None:
    """S-14"""
    objects = {"1.safetensors": A, INDEX_NAME: index(a="1.safetensors", b="1.safetensors")}
    source = MemorySource(objects, [DenyListing(AccessDenied("no s3:ListBucket"))])
    assert [info.name for info, _ in inspect_checkpoint(source, "memory://m").tensors] == ["a", "b"]


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        ({"model.safetensors": b"<html>no</html>"}, "checkpoint.not_safetensors"),
        ({"model.safetensors": b""}, "not a safetensors file (0 bytes)"),
        ({"model.safetensors": A[:-1]}, "incomplete download?"),
        ({INDEX_NAME: index(a="1.safetensors")}, "1 of 1 shards are missing"),
        ({"pytorch_model.bin": b"x"}, "have to be converted first"),
    ],
)
def test_what_is_no_checkpoint_is_one_line_and_an_exit_code(
    objects: dict[str, bytes], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-02 S-03 S-04 S-16"""
    assert main(["inspect", register_memory("inspect-bad", MemorySource(objects))]) >= 30
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    tensors = {f"layer.{number:05}.weight": ("U8", [1], b"x") for number in range(5000)}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    command = f"{sys.executable} -m adapter.cli inspect {tmp_path} | head -1"
    result = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, env=os.environ, check=True
    )
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""
