"""Streaming a checkpoint into a cache: order, resuming, replacing, and what of a cache is used again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import (
    ObjectChanged,
    StoreFailed,
)
from adapter.storage.base import RangeRequest
from adapter.storage.memory import FailRead, MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.reader import ObjectReader
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline
from adapter.timeline import Timeline
from tests.support.shard_bytes import shard, sharded
from tests.support.streams import MEBIBYTE, contents, left_names, options, stream


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


def test_a_lost_record_means_fetch_again(tmp_path: Path) -> None:
    """S-20"""
    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    first, _ = stream(MemorySource(objects), tmp_path / "cache")
    kept = first.objects[0].published.open("rb")
    (first.objects[0].published.parent / "record.json").unlink()
    source = MemorySource(objects)
    second, _ = stream(source, tmp_path / "cache")
    assert source.received_bytes == len(objects["model.safetensors"])
    with kept:
        assert not os.path.samestat(os.fstat(kept.fileno()), os.stat(second.objects[0].published))
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


def test_what_another_boot_left_without_checksums_is_fetched_again(tmp_path: Path) -> None:
    """D8"""
    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    with Streamer(MemorySource(objects), Cache(tmp_path, boot_id="before"), options()) as streamer:
        streamer.prepare()
        streamer.run()
    (record,) = tmp_path.rglob("record.json")
    known = json.loads(record.read_text())
    del known["checksums"]
    record.write_text(json.dumps(known))
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


def test_parts_with_the_tensors_that_were_asked_for_first_come_first(tmp_path: Path) -> None:
    """Over all shards; each part is still one request, and the rest follows in the order of the files."""
    objects = sharded(2, 8 * MEBIBYTE)  # four tensors of 2 MiB in each, and parts of 2 MiB
    source = MemorySource(objects)
    with Streamer(source, Cache(tmp_path), options(connections=1)) as streamer:
        streamer.prepare(tensor_hint=["s1.t2", "s0.t3", "nowhere"])
        streamer.run()
    bulk = [(read.key[6:11], read.start // (2 * MEBIBYTE)) for read in source.reads if read.start > 0]
    assert bulk[:4] == [("00002", 2), ("00002", 3), ("00001", 3), ("00001", 4)]
    assert bulk[4:] == [("00001", 0), ("00001", 1), ("00001", 2), ("00002", 0), ("00002", 1), ("00002", 4)]
    assert source.received_bytes == sum(map(len, objects.values()))
