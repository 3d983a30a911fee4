"""A cache directory that this user cannot write: another one is used and said once, or the start is refused early."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from adapter.errors import CacheError, CacheNotWritable
from adapter.settings import Settings
from adapter.storage.memory import MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.options import Progress
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import sharded
from tests.support.streams import contents, options

MEBIBYTE = 1 << 20
OBJECTS = sharded(2, MEBIBYTE)
ROOT = Path(__file__).resolve().parents[2]
AS_ANOTHER_USER = """
import os, sys
from pathlib import Path
from adapter.storage.memory import MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import sharded
from tests.support.streams import contents, options
os.setgid(12345)
os.setuid(12345)
cache = Cache(Path(sys.argv[1]) / "cache", fallback=Path(sys.argv[1]) / "own" / "fallback")
with Streamer(MemorySource(sharded(2, 1 << 20)), cache, options()) as streamer:
    manifest = streamer.prepare()
    progress = streamer.run()
    assert contents(manifest) == sharded(2, 1 << 20)
    print(progress.total_bytes - progress.from_cache_bytes, streamer.notice is not None)
"""


def stream(cache: Cache) -> tuple[Progress, str | None]:
    with Streamer(MemorySource(OBJECTS), cache, options()) as streamer:
        manifest = streamer.prepare()
        progress = streamer.run()
        assert contents(manifest) == OBJECTS
        return progress, streamer.notice


def test_what_cannot_be_a_directory_is_replaced_by_the_fallback(tmp_path: Path) -> None:
    """S-23: HOME at a path that is not there and cannot be made."""
    (tmp_path / "home").write_text("")
    cache = Cache(tmp_path / "home" / ".cache", fallback=tmp_path / "fallback")
    progress, notice = stream(cache)
    assert progress.from_cache_bytes == 0
    assert notice is not None
    assert str(tmp_path / "fallback") in notice
    assert str(tmp_path / "home") in notice
    again, _ = stream(cache)
    assert again.from_cache_bytes == again.total_bytes


def test_without_a_fallback_the_start_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """S-23"""
    (tmp_path / "home").write_text("")
    source = MemorySource(OBJECTS)
    with (
        Streamer(source, Cache(tmp_path / "home" / "c"), options()) as streamer,
        pytest.raises(CacheNotWritable) as caught,
    ):
        streamer.prepare()
    assert "COLDSTART_CACHE_DIR" in str(caught.value)
    assert source.reads == ()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_cache_of_another_user_is_not_even_read(tmp_path: Path) -> None:
    """S-23"""
    stream(Cache(tmp_path / "cache"))
    os.chown(tmp_path / "cache" / "v1", 12345, 12345)
    progress, notice = stream(Cache(tmp_path / "cache", fallback=tmp_path / "fallback"))
    assert progress.from_cache_bytes == 0
    assert notice is not None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_fallback_that_somebody_else_made_first_is_refused_also_for_root(tmp_path: Path) -> None:
    """S-23: /tmp is everybody's."""
    (tmp_path / "home").write_text("")
    (tmp_path / "fallback").mkdir()
    os.chown(tmp_path / "fallback", 12345, 12345)
    with pytest.raises(CacheError, match="home"):
        stream(Cache(tmp_path / "home" / "c", fallback=tmp_path / "fallback"))


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives the directory away")
def test_another_user_takes_what_is_complete_and_puts_the_rest_elsewhere() -> None:
    """S-23: a cache that this user may read and not write, complete but for one shard."""
    with tempfile.TemporaryDirectory(prefix="fallback-") as name:
        place = Path(name)
        stream(Cache(place / "cache"))
        for path in (place, place / "cache", *(place / "cache").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (lost,) = (place / "cache").rglob("model-00002-of-00002.safetensors")
        lost.unlink()
        (place / "own").mkdir()
        os.chown(place / "own", 12345, 12345)
        found = subprocess.run(
            [sys.executable, "-c", AS_ANOTHER_USER, name], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if "adapter" not in found.stderr and "Permission denied" in found.stderr:
        pytest.skip("another user cannot run this interpreter")
    assert found.stdout.split() == [str(len(OBJECTS["model-00002-of-00002.safetensors"])), "True"], found.stderr


def test_the_fallback_is_in_the_temporary_directory_unless_it_is_refused() -> None:
    found = Settings.from_env({"TMPDIR": "/t"}).cache_fallback
    assert found == Path(f"/t/coldstart-{os.geteuid()}")
    assert Settings.from_env({"COLDSTART_CACHE_FALLBACK": "none"}).cache_fallback is None
    assert Settings.from_env({"COLDSTART_CACHE_FALLBACK": "/x"}).cache_fallback == Path("/x")
