"""Streaming a checkpoint into a cache: order, checks, resuming, and what is left after each kind of failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
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
)
from adapter.storage.base import RangeRequest
from adapter.storage.memory import ChangeObject, CutRead, DenyListing, FailRead, Fault, MemorySource
from adapter.storage.retry import RetryPolicy
from adapter.streaming.cache import Cache
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import Progress, StreamOptions
from adapter.streaming.reader import ObjectReader
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline
from adapter.timeline import Timeline
from tests.support.shard_bytes import shard, sharded

MEBIBYTE = 1 << 20
QUICK = RetryPolicy(attempts=3, first_backoff_s=0.001, longest_backoff_s=0.002)


def options(**changes: object) -> StreamOptions:
    values: dict[str, object] = {
        "address": "memory://m/",
        "connections": 4,
        "part_bytes": 2 * MEBIBYTE,
        "retry": QUICK,
        "deadline": Deadline.after(30),
    }
    return StreamOptions(**(values | changes))  # type: ignore[arg-type]


def stream(source: MemorySource, root: Path, **changes: object) -> tuple[StreamManifest, Progress]:
    with Streamer(source, Cache(root), options(**changes)) as streamer:
        manifest = streamer.prepare()
        return manifest, streamer.run()


def contents(manifest: StreamManifest) -> dict[str, bytes]:
    found = {}
    for entry in manifest:
        with ObjectReader(entry, deadline=Deadline.after(0)) as reader:
            found[entry.name] = reader.read(ByteRange(0, entry.size_bytes))
    return found


def left_names(root: Path) -> list[str]:
    return sorted(found.name for found in root.rglob("*") if found.is_file() and found.name != "lease")


def test_every_object_arrives_whole_and_only_once(tmp_path: Path) -> None:
    objects = sharded(3, 5 * MEBIBYTE, {"empty.json": b"", "tokenizer/a b.json": b"{}"})
    source = MemorySource({**objects, "pytorch_model.bin": b"x" * 100})
    manifest, progress = stream(source, tmp_path / "cache")
    assert contents(manifest) == objects
    total = sum(map(len, objects.values()))
    assert progress.total_bytes == progress.done_bytes == total
    assert progress.from_cache_bytes == 0
    assert source.received_bytes == total
    assert {entry.kind for entry in manifest} == {"shard", "index", "file"}
    assert not [name for name in left_names(tmp_path) if ".part-" in name or ".journal-" in name or ".tmp" in name]


def test_the_second_start_reads_nothing(tmp_path: Path) -> None:
    objects = sharded(2, MEBIBYTE)
    stream(MemorySource(objects), tmp_path / "cache")
    source = MemorySource(objects)
    manifest, progress = stream(source, tmp_path / "cache")
    assert source.reads == ()
    assert progress.from_cache_bytes == progress.total_bytes
    assert contents(manifest) == objects


def test_a_new_version_is_another_object(tmp_path: Path) -> None:
    """S-10"""
    source = MemorySource({"model.safetensors": shard(1, MEBIBYTE)})
    first, _ = stream(source, tmp_path / "cache")
    source.put("model.safetensors", shard(2, MEBIBYTE))
    second, _ = stream(source, tmp_path / "cache")
    assert contents(first)["model.safetensors"] == shard(1, MEBIBYTE)
    assert contents(second)["model.safetensors"] == shard(2, MEBIBYTE)


def test_index_and_headers_come_before_the_bulk(tmp_path: Path) -> None:
    """S-03, S-07"""
    objects = sharded(3, 6 * MEBIBYTE)
    source = MemorySource(objects)
    stream(source, tmp_path / "cache", connections=1)
    order = [(read.key, read.start) for read in source.reads]
    assert order[0][0] == "model.safetensors.index.json"
    assert order[1][0] == "config.json"
    assert [start for _, start in order[2:5]] == [0, 0, 0]
    assert all(start > 0 for _, start in order[5:])
    bulk = [key for key, _ in order[5:]]
    assert bulk == sorted(bulk), "shards in the order in which they are wanted"


def test_the_order_hint_decides_what_comes_first(tmp_path: Path) -> None:
    objects = sharded(3, 4 * MEBIBYTE)
    names = sorted(name for name in objects if name.endswith(".safetensors"))
    with Streamer(MemorySource(objects), Cache(tmp_path), options()) as streamer:
        manifest = streamer.prepare([names[2], "unknown", names[0]])
    assert [entry.name for entry in manifest.shards] == [names[2], names[0], names[1]]


def test_readers_get_bytes_while_the_rest_still_streams(tmp_path: Path) -> None:
    content = shard(1, 12 * MEBIBYTE)
    gate = threading.Event()

    def hold(request: RangeRequest) -> None:
        if request.start >= 6 * MEBIBYTE:
            assert gate.wait(30)

    source = MemorySource({"model.safetensors": content}, before_read=hold)
    with Streamer(source, Cache(tmp_path), options()) as streamer:
        manifest = streamer.prepare()
        thread = threading.Thread(target=streamer.run)
        thread.start()
        reader = ObjectReader(manifest.objects[0], deadline=Deadline.after(30))
        assert reader.read(ByteRange(0, 4 * MEBIBYTE)) == content[: 4 * MEBIBYTE]
        assert not reader.complete
        assert 4 * MEBIBYTE <= streamer.progress().done_bytes < len(content)
        gate.set()
        assert reader.read(ByteRange(0, len(content))) == content
        thread.join(30)


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
    assert {thread.name for thread in threading.enumerate()} == before
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


def test_a_lost_record_means_fetch_again(tmp_path: Path) -> None:
    """S-20"""
    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    first, _ = stream(MemorySource(objects), tmp_path / "cache")
    inode = first.objects[0].published.stat().st_ino
    (first.objects[0].published.parent / "record.json").unlink()
    source = MemorySource(objects)
    second, _ = stream(source, tmp_path / "cache")
    assert source.received_bytes == len(objects["model.safetensors"])
    assert second.objects[0].published.stat().st_ino != inode
    assert contents(second) == objects


def test_a_cached_shard_whose_header_lost_its_sense_is_fetched_again_once(tmp_path: Path) -> None:
    """S-02"""
    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    first, _ = stream(MemorySource(objects), tmp_path / "cache")
    published = first.objects[0].published
    published.chmod(0o600)
    with published.open("r+b") as file:
        file.write(bytes(4096))
    second, _ = stream(MemorySource(objects), tmp_path / "cache")
    assert contents(second) == objects


def test_what_another_boot_left_is_fetched_again(tmp_path: Path) -> None:
    """D8"""
    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    with Streamer(MemorySource(objects), Cache(tmp_path, boot_id="before"), options()) as streamer:
        streamer.prepare()
        streamer.run()
    source = MemorySource(objects)
    with Streamer(source, Cache(tmp_path, boot_id="after"), options()) as streamer:
        streamer.prepare()
        streamer.run()
        streamer.sync()
    assert source.received_bytes == len(objects["model.safetensors"])
    source = MemorySource(objects)
    with Streamer(source, Cache(tmp_path, boot_id="third"), options()) as streamer:
        manifest = streamer.prepare()
        streamer.run()
    assert source.reads == ()
    assert contents(manifest) == objects


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


def test_a_replacement_goes_on_with_the_files_that_the_first_manifest_names(tmp_path: Path) -> None:
    """A5"""
    content = shard(1, 8 * MEBIBYTE)
    source = MemorySource(
        {"model.safetensors": content}, [FailRead("model.safetensors", StoreFailed("500"), first=3, times=1000)]
    )
    with Streamer(source, Cache(tmp_path), options(connections=1)) as streamer:
        first = streamer.prepare()
        reader = ObjectReader(first.objects[0], deadline=Deadline.after(30))
        reader.open()
        with pytest.raises(StoreFailed):
            streamer.run()
    second, _ = stream(MemorySource({"model.safetensors": content}), tmp_path, previous=first)
    assert second == first
    assert reader.read(ByteRange(0, len(content))) == content


def test_a_replacement_keeps_the_versions_of_the_first_manifest(tmp_path: Path) -> None:
    """S-10: readers of the first manifest wait for that version, so a newer one must not be streamed instead."""
    source = MemorySource(
        {"model.safetensors": shard(1, 8 * MEBIBYTE)},
        [FailRead("model.safetensors", StoreFailed("500"), first=3, times=1000)],
    )
    with Streamer(source, Cache(tmp_path), options(connections=1)) as streamer:
        first = streamer.prepare()
        with pytest.raises(StoreFailed):
            streamer.run()
    newer = MemorySource({"model.safetensors": shard(1, 8 * MEBIBYTE)})
    newer.put("model.safetensors", shard(2, 8 * MEBIBYTE))
    with pytest.raises(ObjectChanged):
        stream(newer, tmp_path, previous=first)


def test_the_spans_of_a_stream(tmp_path: Path) -> None:
    timeline = Timeline("fetcher")
    with Streamer(MemorySource(sharded(2, MEBIBYTE)), Cache(tmp_path), options(), timeline) as streamer:
        streamer.prepare()
        streamer.run()
    names = [span.name for span in timeline.spans()]
    assert names.index("storage.list") < names.index("storage.first_range") < names.index("weights.stream")
    assert names.count("storage.first_range") == 1
    assert names.count("weights.header") == 2
    fields = timeline.spans()[-1].fields
    assert fields["bytes"] == fields["total_bytes"]
    assert fields["from_cache_bytes"] == 0
