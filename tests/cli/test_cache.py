"""`coldstart cache`: what is kept, whether it is sound, and room for something else."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from adapter.cli.main import main
from adapter.errors import CacheError, ChecksumMismatch
from adapter.storage.memory import MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import shard
from tests.support.streams import contents, options

MEBIBYTE = 1 << 20


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLDSTART_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def stream(root: Path, name: str, boot_id: str | None = None) -> tuple[Path, int]:
    """Cache a model of 2 MiB; its file, and how many bytes came from the store."""
    objects = {"model.safetensors": shard(ord(name), 2 * MEBIBYTE)}
    source = MemorySource(objects)
    with Streamer(source, Cache(root, boot_id=boot_id), options(address=f"memory://{name}/")) as streamer:
        manifest = streamer.prepare()
        streamer.run()
        assert contents(manifest) == objects
    return manifest.objects[0].published, source.received_bytes


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["cache", *words, "--json"]) == code
    value: dict[str, Any] = json.loads(capsys.readouterr().out)
    return value


def test_an_empty_cache_is_shown_as_one(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    assert f"0 objects, 0 B in {root}" in capsys.readouterr().out
    assert said(capsys, "ls") == {"cache": str(root), "objects": []}
    assert main(["cache", "prune"]) == 0
    assert main(["cache", "verify"]) == 0


def test_ls_shows_what_was_used_last_first_with_size_state_and_address(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, _ = stream(root, "a")
    os.utime(old.parent, (1, 1))
    stream(root, "b")
    assert main(["cache", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["memory://b/model.safetensors", "memory://a/model.safetensors"]
    assert "complete, not synced" in lines[1]
    assert "2.1 MB" in lines[1]
    (found,) = said(capsys, "ls", "memory://a/")["objects"]
    assert found["address"] == "memory://a/model.safetensors"
    assert (found["complete"], found["in_use"], found["pins"]) == (True, False, [])
    assert found["checksum"]["algorithm"] in ("crc64nvme", "crc32")


def test_verify_finds_a_zeroed_range_and_the_next_start_fetches_it_again(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-20: the record is there, one range is not."""
    published, size = stream(root, "a")
    stream(root, "b")
    assert {found["checked"] for found in said(capsys, "verify")["objects"]} == {"ok"}
    published.chmod(0o600)
    with published.open("r+b") as file:
        file.seek(MEBIBYTE)
        file.write(bytes(4096))
    assert main(["cache", "verify"]) == ChecksumMismatch.exit_code
    text = capsys.readouterr().out
    assert "2 files, 1 damaged" in text
    assert "memory://a/model.safetensors" in next(line for line in text.splitlines() if line.startswith("damaged"))
    assert stream(root, "a")[1] == size, "a file of one part is fetched whole"
    assert said(capsys, "verify", "memory://a/")["objects"][0]["checked"] == "ok"


def test_prune_removes_what_was_used_longest_ago(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, name in enumerate("abc", start=1):
        os.utime(stream(root, name)[0].parent, (seconds, seconds))
    assert [found["title"] for found in said(capsys, "prune", "--to", "5MB", "--dry-run")["objects"]] == [
        "memory://a/model.safetensors"
    ]
    assert len(said(capsys, "ls")["objects"]) == 3
    assert said(capsys, "prune", "--to", "5MB")["what"] == "removed"
    assert {found["address"] for found in said(capsys, "ls")["objects"]} == {
        "memory://b/model.safetensors",
        "memory://c/model.safetensors",
    }
    assert said(capsys, "prune")["objects"] == [], "nothing is over the budget"
    assert len(said(capsys, "prune", "--older", "1")["objects"]) == 2


def test_rm_keeps_what_is_pinned_or_in_use_unless_forced(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published, _ = stream(root, "a")
    stream(root, "b")
    assert said(capsys, "pin", "memory://b/", "--name", "image-1")["what"] == "pinned"
    with published.open("rb"):
        assert main(["cache", "rm", "memory://"]) == CacheError.exit_code
        assert "2 objects are pinned or in use" in capsys.readouterr().err
    assert main(["cache", "unpin", "memory://b/", "--name", "image-1"]) == 0
    capsys.readouterr()
    digest = str(said(capsys, "ls", "memory://b/")["objects"][0]["digest"])
    assert said(capsys, "rm", digest[:8])["objects"][0]["digest"] == digest
    with published.open("rb"):
        assert len(said(capsys, "rm", "memory://a/", "--force")["objects"]) == 1
    assert said(capsys, "ls")["objects"] == []
    assert stream(root, "a")[1] > 0


def test_what_is_not_there_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream(root, "a")
    assert main(["cache", "rm", "s3://other/"]) == CacheError.exit_code
    assert "s3://other/" in capsys.readouterr().err
    assert main(["cache", "prune", "--to", "much"]) == 2 or "much" in capsys.readouterr().err
