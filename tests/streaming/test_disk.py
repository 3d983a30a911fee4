"""Full and read-only disks, in mount namespaces of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.shard_bytes import shard

ROOT = Path(__file__).resolve().parents[2]
MEBIBYTE = 1 << 20


def _may_mount() -> bool:
    tried = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return tried.returncode == 0


needs_mounts = pytest.mark.skipif(
    os.geteuid() != 0 or not _may_mount(), reason="a private mount namespace needs root with CAP_SYS_ADMIN"
)


def run(script: str, directory: Path) -> list[dict[str, Any]]:
    """Run a shell script in a mount namespace; `stream N` in it streams `model/` into `cache/`."""
    order = json.dumps(
        {
            "address": str(directory / "model"),
            "cache": str(directory / "cache"),
            "manifest": str(directory / "w.json"),
            "deadline_s": 20,
        }
    )
    stream = f"stream() {{ {sys.executable} -m tests.support.streaming_child '{order}'; }}\n"
    found = subprocess.run(
        ["unshare", "-m", "sh", "-ec", stream + script],
        cwd=ROOT,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT), "D": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(shard(1, 2 * MEBIBYTE))
    return tmp_path


@needs_mounts
def test_a_disk_that_is_too_small_is_known_before_anything_is_fetched(place: Path) -> None:
    """S-19"""
    script = """
        mount -t tmpfs -o size=1m none $D/cache
        stream || test $? -eq 41
        find $D/cache -type f -size +1k -printf '{"event": "left", "name": "%f"}\\n'
        mount -o remount,size=8m $D/cache
        stream
    """
    failed, *rest = run(script, place)
    assert failed["code"] == "cache.no_space"
    assert failed["fields"]["needed_bytes"] > 2 * MEBIBYTE
    assert failed["fields"]["free_bytes"] <= MEBIBYTE
    assert failed["fields"]["path"].startswith(str(place / "cache"))
    assert [said["event"] for said in rest] == ["manifest", "done"], "nothing was left, and the second start succeeds"


@needs_mounts
def test_a_disk_that_fills_up_midway_gives_its_room_back(place: Path) -> None:
    """S-19: another process takes the room after it was checked; on tmpfs nothing can be reserved."""
    outcome = run(
        f"""
        mount -t tmpfs -o size=3m none $D/cache
        {sys.executable} -m tests.support.filling_disk $D/cache
        """,
        place,
    )
    assert outcome == [{"code": "cache.no_space", "left": [], "second": "done"}]


@needs_mounts
def test_a_complete_cache_on_a_read_only_mount_is_simply_used(place: Path) -> None:
    """S-23"""
    script = """
        stream
        mount --bind $D/cache $D/cache
        mount -o remount,bind,ro $D/cache
        stream
    """
    first, second, third, fourth = run(script, place)
    assert [first["event"], second["event"], third["event"], fourth["event"]] == ["manifest", "done"] * 2
    assert fourth["requests"] == 0
    assert fourth["from_cache_bytes"] == fourth["total_bytes"]


@needs_mounts
def test_an_incomplete_cache_on_a_read_only_mount_is_refused_with_advice(place: Path) -> None:
    """S-23"""
    script = """
        mount --bind $D/cache $D/cache
        mount -o remount,bind,ro $D/cache
        stream || test $? -eq 42
    """
    (failed,) = run(script, place)
    assert failed["code"] == "cache.not_writable"
    assert "COLDSTART_CACHE_DIR" in failed["message"]
    assert failed["fields"]["uid"] == 0
