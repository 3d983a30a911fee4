"""Streams that fail: by type, at once, before the bulk where that can be, and with nothing left that misleads."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import pytest

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConnectionFailed,
    HeaderError,
    InitTimeout,
    InvocationCancelled,
    NotSafetensors,
    ObjectChanged,
    ObjectNotFound,
    StoreFailed,
    WeightIndexError,
    WrongRange,
)
from adapter.storage.base import RangeAnswer, RangeRequest
from adapter.storage.memory import ChangeObject, CutRead, DenyListing, FailRead, Fault, MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline
from tests.support.shard_bytes import shard, sharded
from tests.support.streams import MEBIBYTE, contents, left_names, options, stream


@pytest.mark.parametrize(
    ("objects", "kind"),
    [
        ({"model.safetensors": b"<html>nothing here</html>"}, NotSafetensors),
        ({"model.safetensors": b""}, NotSafetensors),
        ({"model.safetensors": b"\xff" * 8 + bytes(4 * MEBIBYTE)}, HeaderError),
        ({"model.safetensors": shard(1, 4 * MEBIBYTE)[:-1]}, HeaderError),
        ({"model.safetensors": shard(1, 4 * MEBIBYTE) + b"surplus"}, HeaderError),
        ({"model.safetensors.index.json": b"{}"}, WeightIndexError),
        ({"config.json": b"{}"}, WeightIndexError),
    ],
)
def test_what_is_no_checkpoint_ends_the_stream_before_the_bulk(
    tmp_path: Path, objects: Mapping[str, bytes], kind: type[AdapterError]
) -> None:
    """S-01, S-02, S-03, S-16, A6"""
    source = MemorySource(objects)
    with pytest.raises(kind):
        stream(source, tmp_path / "cache")
    assert source.received_bytes <= MEBIBYTE
    left = left_names(tmp_path)
    assert "model.safetensors" not in left
    assert not [name for name in left if ".part-" in name]


def test_missing_shards_are_named_before_any_shard_is_read(tmp_path: Path) -> None:
    """S-04"""
    objects = sharded(3, MEBIBYTE)
    del objects["model-00002-of-00003.safetensors"]
    source = MemorySource(objects)
    with pytest.raises(WeightIndexError, match="model-00002-of-00003"):
        stream(source, tmp_path / "cache")
    assert {read.key for read in source.reads} == {"model.safetensors.index.json"}


def test_an_index_that_leads_out_reads_and_writes_nothing_there(tmp_path: Path) -> None:
    """S-05"""
    index = json.dumps({"weight_map": {"a": "../other/model.safetensors"}}).encode()
    source = MemorySource({"model.safetensors.index.json": index, "../other/model.safetensors": shard(1, 100)})
    with pytest.raises(WeightIndexError):
        stream(source, tmp_path / "cache")
    assert {read.key for read in source.reads} == {"model.safetensors.index.json"}
    assert [found.name for found in tmp_path.iterdir()] == ["cache"]


@pytest.mark.parametrize("count", [1, 2])
def test_cut_reads_go_on_where_they_ended(tmp_path: Path, count: int) -> None:
    """S-08"""
    content = shard(1, 8 * MEBIBYTE)
    faults: Sequence[Fault] = [
        CutRead("model.safetensors", 300_000, first=2, times=count),
        FailRead("model.safetensors", ConnectionFailed("reset"), first=5),
    ]
    source = MemorySource({"model.safetensors": content}, faults)
    manifest, progress = stream(source, tmp_path / "cache")
    assert contents(manifest)["model.safetensors"] == content
    assert progress.retries == count + 1
    assert source.received_bytes == len(content)


def test_a_range_that_always_fails_ends_everything_with_a_typed_error(tmp_path: Path) -> None:
    """S-08, A6"""
    before = {thread.name for thread in threading.enumerate()}
    source = MemorySource(
        {"model.safetensors": shard(1, 8 * MEBIBYTE)},
        [FailRead("model.safetensors", StoreFailed("500"), first=3, times=1000)],
    )
    with pytest.raises(StoreFailed) as caught:
        stream(source, tmp_path / "cache", connections=2)
    assert caught.value.fields["attempts"] == 3
    assert "model.safetensors" not in left_names(tmp_path)
    assert {thread.name for thread in threading.enumerate()} <= before  # those of earlier tests may end meanwhile
    again = MemorySource({"model.safetensors": shard(1, 8 * MEBIBYTE)})
    manifest, progress = stream(again, tmp_path / "cache")
    assert contents(manifest)["model.safetensors"] == shard(1, 8 * MEBIBYTE)
    assert again.received_bytes == progress.total_bytes - progress.from_cache_bytes
    assert progress.from_cache_bytes > 0, "what had arrived was kept"


def test_an_object_that_changes_midway_is_never_mixed(tmp_path: Path) -> None:
    """S-10"""
    source = MemorySource(
        {"model.safetensors": shard(1, 8 * MEBIBYTE)},
        [ChangeObject("model.safetensors", shard(2, 8 * MEBIBYTE), first=3)],
    )
    with pytest.raises(ObjectChanged):
        stream(source, tmp_path / "cache")
    assert left_names(tmp_path) == []
    manifest, _ = stream(MemorySource({"model.safetensors": shard(2, 8 * MEBIBYTE)}), tmp_path / "cache")
    assert contents(manifest)["model.safetensors"] == shard(2, 8 * MEBIBYTE)


def test_without_the_right_to_list_names_are_tried(tmp_path: Path) -> None:
    """S-14"""
    objects = sharded(2, MEBIBYTE)
    source = MemorySource({**objects, "unknown.txt": b"x"}, [DenyListing(AccessDenied("no"))])
    manifest, _ = stream(source, tmp_path / "cache")
    assert contents(manifest) == objects


def test_without_the_right_to_list_and_without_a_known_name_the_denial_is_told(tmp_path: Path) -> None:
    """S-14"""
    source = MemorySource({"weights.safetensors": shard(1, 100)}, [DenyListing(AccessDenied("no listing"))])
    with pytest.raises(AccessDenied, match=r"no listing.*model\.safetensors"):
        stream(source, tmp_path / "cache")


def test_nothing_there_is_told(tmp_path: Path) -> None:
    """A6"""
    with pytest.raises(ObjectNotFound):
        stream(MemorySource({}), tmp_path / "cache")


def test_cancelling_ends_it_soon_and_keeps_what_came(tmp_path: Path) -> None:
    """A7"""
    streamers: list[Streamer] = []

    def cancel(request: RangeRequest) -> None:
        if request.start >= 4 * MEBIBYTE:
            streamers[0].cancel()

    source = MemorySource({"model.safetensors": shard(1, 8 * MEBIBYTE)}, before_read=cancel)
    with Streamer(source, Cache(tmp_path), options(connections=1)) as streamer:
        streamers.append(streamer)
        streamer.prepare()
        with pytest.raises(InvocationCancelled):
            streamer.run()
    manifest, progress = stream(MemorySource({"model.safetensors": shard(1, 8 * MEBIBYTE)}), tmp_path)
    assert contents(manifest)["model.safetensors"] == shard(1, 8 * MEBIBYTE)
    assert 4 * MEBIBYTE <= progress.from_cache_bytes < progress.total_bytes


def test_the_deadline_ends_it(tmp_path: Path) -> None:
    release = threading.Event()

    def hold(request: RangeRequest) -> None:
        release.wait(10)

    source = MemorySource({"model.safetensors": shard(1, 8 * MEBIBYTE)}, before_read=hold)
    with Streamer(source, Cache(tmp_path), options(deadline=Deadline.after(0.2))) as streamer:
        streamer.prepare()
        with pytest.raises(InitTimeout, match=r"model\.safetensors"):
            streamer.run()
        release.set()


class WholeOnly(MemorySource):
    """A store that answers every range with all of the object."""

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        chunks = super().read_chunks(request, buffer)
        first = next(chunks)
        if (request.start, request.length_bytes) != (0, first.info.size_bytes):
            chunks.close()
            raise WrongRange("200 with the whole object", ignores_range=True)
        yield first
        yield from chunks


@pytest.mark.parametrize("connections", [1, 4])
def test_a_store_that_ignores_ranges_is_read_once_from_the_beginning(tmp_path: Path, connections: int) -> None:
    """S-09"""
    objects = sharded(2, 6 * MEBIBYTE)
    source = WholeOnly(objects)
    manifest, progress = stream(source, tmp_path / "cache", connections=connections)
    assert contents(manifest) == objects
    assert progress.fetched_bytes == progress.total_bytes
