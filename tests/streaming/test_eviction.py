"""What goes when room is needed, and what never does."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import CacheError, NoSpace
from adapter.storage.memory import MemorySource
from adapter.streaming.budget import Budget, Room
from adapter.streaming.cache import Cache
from adapter.streaming.eviction import CachedObject, by_last_use, cached_objects, evict, make_room, shortfall
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.pins import pin, pins, unpin
from adapter.streaming.private import is_open
from adapter.streaming.reader import open_sized
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import shard
from tests.support.streams import contents, options

MEBIBYTE = 1 << 20


def model(root: Path, name: str, seconds_ago: float = 100.0, budget: Budget | None = None) -> Path:
    """A cached model of 2 MiB and a bit; its slot."""
    with Streamer(source(name), Cache(root, budget=budget), options(address=f"memory://{name}/")) as streamer:
        manifest = streamer.prepare()
        streamer.run()
    slot = manifest.objects[0].published.parent
    used_s = os.stat(slot).st_mtime - seconds_ago
    os.utime(slot, (used_s, used_s))
    return slot


def source(name: str) -> MemorySource:
    return MemorySource({"model.safetensors": shard(ord(name), 2 * MEBIBYTE)})


def titles(cache: Cache) -> set[str]:
    return {found.title.split("/")[2] for found in cached_objects(cache)}


@contextmanager
def child(code: str, path: Path) -> Iterator[None]:
    """Another process that runs the code with `path` until the block ends."""
    text = f"import mmap, os, sys\npath = sys.argv[1]\n{code}\nprint(flush=True)\nsys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", text, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()


def test_what_was_used_longest_ago_goes_first_and_no_more_than_needed(tmp_path: Path) -> None:
    model(tmp_path, "a", 10), model(tmp_path, "b", 30), model(tmp_path, "c", 20)
    size = next(cached_objects(Cache(tmp_path))).bytes_on_disk
    cache = Cache(tmp_path, budget=Budget(limit_bytes=3 * size))
    assert [gone.title.split("/")[2] for gone in make_room(cache, size)] == ["b"]
    assert titles(cache) == {"a", "c"}
    assert make_room(cache, size) == []


def test_a_start_evicts_what_it_needs_the_room_of_and_counts_as_use(tmp_path: Path) -> None:
    """S-19"""
    model(tmp_path, "a", 30), model(tmp_path, "b", 20)
    size = next(cached_objects(Cache(tmp_path))).bytes_on_disk
    budget = Budget(limit_bytes=2 * size + MEBIBYTE)
    with Streamer(source("a"), Cache(tmp_path, budget=budget), options(address="memory://a/")) as streamer:
        streamer.prepare()
        streamer.run()
    model(tmp_path, "c", 0, budget)
    assert titles(Cache(tmp_path)) == {"a", "c"}


def test_the_floor_of_free_space_is_kept_by_evicting_but_no_start_fails_for_it(tmp_path: Path) -> None:
    model(tmp_path, "a")
    cache = Cache(tmp_path, budget=Budget(floor_bytes=1 << 60))
    assert len(make_room(cache, 1)) == 1
    assert make_room(cache, 1) == []


def test_more_than_the_limit_is_refused_with_what_is_needed_and_free(tmp_path: Path) -> None:
    """S-19"""
    slot = model(tmp_path, "a")
    pin(slot, "image-1", "restored from it")
    cache = Cache(tmp_path, budget=Budget(limit_bytes=3 * MEBIBYTE))
    with pytest.raises(NoSpace, match="COLDSTART_CACHE_DIR") as caught:
        make_room(cache, 2 * MEBIBYTE)
    assert caught.value.fields["needed_bytes"] == 2 * MEBIBYTE
    assert titles(cache) == {"a"}
    unpin(slot, "image-1")
    assert len(make_room(cache, 2 * MEBIBYTE)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "kept = os.open(path, os.O_RDONLY)",
        "kept = mmap.mmap(os.open(path, os.O_RDONLY), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)",
        "d = os.open(path, os.O_RDONLY); kept = mmap.mmap(d, 0, prot=mmap.PROT_READ); os.close(d)",
    ],
)
def test_what_another_process_has_open_or_mapped_stays(tmp_path: Path, code: str) -> None:
    """A running replica's weights."""
    slot = model(tmp_path, "a")
    (found,) = cached_objects(Cache(tmp_path))
    assert found.published is not None
    with child(code, found.published):
        assert is_open(found.published)
        assert not evict(found)
        assert found.published.exists()
    assert not is_open(found.published)
    assert evict(found)
    assert [each.name for each in slot.iterdir()] == ["lease"]


def test_a_file_can_be_opened_while_it_is_asked_whether_it_is_used(tmp_path: Path) -> None:
    model(tmp_path, "a")
    (found,) = cached_objects(Cache(tmp_path))
    path = found.published
    assert path is not None
    code = "from pathlib import Path\nfrom adapter.streaming.eviction import is_open\nfrom threading import Thread\n"
    code += "Thread(target=lambda: [is_open(Path(path)) for _ in iter(int, 1)], daemon=True).start()"
    with child(code, path):
        for _ in range(2000):
            os.close(open_sized(path, path.stat().st_size))
    assert not is_open(path)


def test_what_is_being_filled_stays(tmp_path: Path) -> None:
    slot = model(tmp_path, "a")
    (found,) = cached_objects(Cache(tmp_path))
    code = "import fcntl\nkept = os.open(path, os.O_RDWR)\nfcntl.lockf(kept, fcntl.LOCK_EX)"
    with child(code, slot / "lease"):
        assert not evict(found)
    assert evict(found)


def test_looking_for_what_may_go_does_not_end_a_lease_of_this_process(tmp_path: Path) -> None:
    """Closing any descriptor of a file ends a process's lock on it."""
    with Streamer(source("a"), Cache(tmp_path), options(address="memory://a/")) as streamer:
        slot = streamer.prepare().objects[0].published.parent
        (found,) = cached_objects(Cache(tmp_path))
        assert not evict(found)
        code = "import fcntl\nfd = os.open(path, os.O_RDWR)\ntry:\n    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        code += "except BlockingIOError:\n    sys.exit(7)"
        tried = subprocess.run(
            [sys.executable, "-c", f"import os, sys\npath = sys.argv[1]\n{code}", str(slot / "lease")], check=False
        )
        assert tried.returncode == 7
        streamer.run()


def test_a_stream_keeps_what_it_took_from_the_cache_until_it_is_closed(tmp_path: Path) -> None:
    """Between the manifest and a worker that maps the files nobody else holds them."""
    model(tmp_path, "a")
    (found,) = cached_objects(Cache(tmp_path))
    with Streamer(source("a"), Cache(tmp_path), options(address="memory://a/")) as streamer:
        manifest = streamer.prepare()
        assert not evict(found)
        streamer.run()
        assert contents(manifest)
    assert evict(found)


def test_a_map_outlives_a_file_that_was_removed_by_hand(tmp_path: Path) -> None:
    slot = model(tmp_path, "a")
    with (slot / "model.safetensors").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    before = bytes(mapped)
    for path in slot.iterdir():
        path.unlink()
    assert bytes(mapped) == before


def test_after_eviction_the_next_start_streams_again(tmp_path: Path) -> None:
    model(tmp_path, "a")
    for found in cached_objects(Cache(tmp_path)):
        assert evict(found)
    model(tmp_path, "a")
    assert titles(Cache(tmp_path)) == {"a"}


def test_pins_have_names_of_their_own(tmp_path: Path) -> None:
    pin(tmp_path, "image-1")
    pin(tmp_path, "image-2", "why")
    pin(tmp_path, "image-2", "why else")
    assert pins(tmp_path) == ("image-1", "image-2")
    unpin(tmp_path, "image-1")
    unpin(tmp_path, "never")
    assert pins(tmp_path) == ("image-2",)
    assert pins(tmp_path / "none") == ()
    for name in ("", "../x", "a/b", "a b", "x" * 101):
        with pytest.raises(CacheError):
            pin(tmp_path, name)


def test_an_object_named_like_a_pin_is_none(tmp_path: Path) -> None:
    """S-12"""
    objects = {"model.safetensors": shard(1, 4096), "pin-x": b"file"}
    with Streamer(MemorySource(objects), Cache(tmp_path), options()) as streamer:
        manifest: StreamManifest = streamer.prepare()
        streamer.run()
    assert contents(manifest) == objects
    assert [found.pins for found in cached_objects(Cache(tmp_path))] == [(), ()]


@given(
    needed=st.integers(0, 100),
    free=st.integers(0, 100),
    cached=st.integers(0, 100),
    limit=st.none() | st.integers(0, 100),
    floor=st.integers(0, 100),
)
def test_the_shortfall_is_just_what_has_to_go(
    needed: int, free: int, cached: int, limit: int | None, floor: int
) -> None:
    short = shortfall(needed, cached, Room(free, limit), floor)

    def fits(gone: int) -> bool:
        return needed + floor <= free + gone and (limit is None or cached - gone + needed <= limit)

    assert fits(max(0, short))
    if short > 0:
        assert not fits(short - 1)


def test_pinned_and_wanted_slots_are_never_candidates(tmp_path: Path) -> None:
    def found(name: str, used_s: float, *pinned: str) -> CachedObject:
        return CachedObject(tmp_path / name, None, (), 1, used_s, pinned)

    objects = [found("a", 3), found("b", 1), found("c", 2, "image"), found("d", 0)]
    assert [each.digest for each in by_last_use(objects, {tmp_path / "d"})] == ["b", "a"]
