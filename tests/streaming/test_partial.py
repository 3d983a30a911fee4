"""Streams that want only some tensors, beside others that want all, one after the other and at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from adapter.checkpoint.header import parse_header
from adapter.checkpoint.tensor_filter import TensorFilter
from adapter.errors import ConfigurationError, NoSpace, StoreFailed, TensorMismatch
from adapter.storage.base import RangeRequest
from adapter.storage.memory import FailRead, MemorySource
from adapter.streaming.budget import Budget
from adapter.streaming.cache import Cache
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.reader import ObjectReader
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline
from tests.support.shard_bytes import shard, sharded
from tests.support.streams import MEBIBYTE, contents, options, stream

CONTENT = shard(7, 16 * MEBIBYTE, tensors=16)
HEADER = parse_header(CONTENT[: 8 + int.from_bytes(CONTENT[:8], "little")], file="x", file_bytes=len(CONTENT))
ONE = TensorFilter(["t3"])
HEAD_BYTES = 64 << 10


def source() -> MemorySource:
    return MemorySource({"model.safetensors": CONTENT})


def read(manifest: StreamManifest, name: str) -> bytes:
    """A tensor as a reader gives it, without waiting."""
    with ObjectReader(manifest.objects[0], deadline=Deadline.after(0)) as reader:
        return reader.read(reader.header().tensors[name].range)


def expected(name: str) -> bytes:
    return CONTENT[HEADER.tensors[name].start : HEADER.tensors[name].stop]


def parts(root: Path) -> list[Path]:
    return list(root.rglob("*.part-*"))


def test_what_is_wanted_is_there_and_counted(tmp_path: Path) -> None:
    """B7."""
    store = source()
    manifest, progress = stream(store, tmp_path, tensors=ONE)
    assert read(manifest, "t3") == expected("t3")
    assert progress.done_bytes == progress.total_bytes
    assert MEBIBYTE <= progress.total_bytes <= MEBIBYTE + HEAD_BYTES
    assert store.received_bytes <= MEBIBYTE + HEAD_BYTES + 2 * 4096
    assert not manifest.objects[0].published.exists()


def test_the_manifest_tells_what_is_wanted(tmp_path: Path) -> None:
    manifest, _ = stream(source(), tmp_path / "cache", tensors=TensorFilter("t3", ["t4"]))
    manifest.write(tmp_path / "weights.json")
    assert StreamManifest.read(tmp_path / "weights.json") == manifest
    assert manifest.tensors == TensorFilter(("t3",), ("t4",))


def test_what_another_stream_left_counts(tmp_path: Path) -> None:
    stream(source(), tmp_path, tensors=TensorFilter(["t3", "t4"]))
    store = source()
    manifest, progress = stream(store, tmp_path, tensors=TensorFilter(["t4", "t9"]))
    assert (read(manifest, "t4"), read(manifest, "t9")) == (expected("t4"), expected("t9"))
    assert store.received_bytes <= MEBIBYTE + 2 * 4096
    assert progress.from_cache_bytes >= MEBIBYTE
    assert len(parts(tmp_path)) == 1


def test_the_last_tensor_makes_it_a_complete_file(tmp_path: Path) -> None:
    for number in range(16):
        manifest, _ = stream(source(), tmp_path, tensors=TensorFilter([f"t{number}"]))
    assert contents(manifest)["model.safetensors"] == CONTENT
    assert manifest.objects[0].published.exists()
    assert parts(tmp_path) == []


def test_other_files_are_whole(tmp_path: Path) -> None:
    objects = sharded(2, MEBIBYTE)
    manifest, _ = stream(MemorySource(objects), tmp_path, tensors=TensorFilter(["s1.t0"]))
    assert [entry.name for entry in manifest.shards] == ["model-00002-of-00002.safetensors"]
    assert {entry.name for entry in manifest.files} == {"config.json", "model.safetensors.index.json"}
    assert all(entry.published.read_bytes() == objects[entry.name] for entry in manifest.files)


class Gate:
    """Holds up every read from some byte on, once somebody is there."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, request: RangeRequest) -> None:
        if request.start + request.length_bytes > self.start:
            self.reached.set()
            self.open.wait(30)


@pytest.fixture
def owned() -> Iterator[ExitStack]:
    """Closed after the test."""
    with ExitStack() as stack:
        yield stack


def begin(streamer: Streamer, owned: ExitStack) -> tuple[StreamManifest, threading.Thread]:
    """Prepare, and run in a thread."""
    owned.enter_context(streamer)
    manifest = streamer.prepare()
    thread = threading.Thread(target=streamer.run)
    thread.start()
    owned.callback(thread.join)
    return manifest, thread


def test_a_stream_that_wants_little_ends_while_another_fills_the_rest(tmp_path: Path, owned: ExitStack) -> None:
    """The holder is in no hurry; what is wanted is there."""
    gate = Gate(HEADER.tensors["t8"].stop)
    store = MemorySource({"model.safetensors": CONTENT}, before_read=gate)
    holder, _ = begin(Streamer(store, Cache(tmp_path), options(connections=1)), owned)
    owned.callback(gate.open.set)
    assert gate.reached.wait(30)
    other = source()
    manifest, progress = stream(other, tmp_path, tensors=ONE)
    assert read(manifest, "t3") == expected("t3")
    assert progress.done_bytes == progress.total_bytes
    assert other.reads == ()
    assert manifest.objects[0].partial == holder.objects[0].partial


def test_a_stream_that_wants_all_goes_on_where_one_that_wants_little_ends(tmp_path: Path, owned: ExitStack) -> None:
    """It need not wait for the other's process to end."""
    gate = Gate(HEADER.tensors["t3"].start)
    little = MemorySource({"model.safetensors": CONTENT}, before_read=gate)
    _, first = begin(Streamer(little, Cache(tmp_path), options(tensors=ONE)), owned)
    owned.callback(gate.open.set)
    assert gate.reached.wait(30)
    rest = source()
    manifest, second = begin(Streamer(rest, Cache(tmp_path), options()), owned)
    gate.open.set()
    first.join()
    second.join()
    assert contents(manifest)["model.safetensors"] == CONTENT
    assert manifest.objects[0].published.exists()
    assert little.received_bytes + rest.received_bytes == len(CONTENT)


def test_a_full_limit_has_room_for_what_is_wanted_of_a_large_file(tmp_path: Path) -> None:
    """S-19: holes take no room."""
    budget = Budget(limit_bytes=4 * MEBIBYTE)
    with Streamer(source(), Cache(tmp_path, budget=budget), options(tensors=ONE)) as streamer:
        manifest = streamer.prepare()
        streamer.run()
    assert read(manifest, "t3") == expected("t3")
    with Streamer(source(), Cache(tmp_path, budget=budget), options(tensors=TensorFilter(["t[0-9]"]))) as streamer:
        streamer.prepare()
        with pytest.raises(NoSpace):
            streamer.run()


def test_rows_that_are_not_there_end_the_stream_and_leave_what_is(tmp_path: Path) -> None:
    stream(source(), tmp_path, tensors=ONE)
    with pytest.raises(TensorMismatch, match=r"model\.safetensors: rows 0 to 2000000 of tensor 't3' are wanted"):
        stream(source(), tmp_path, tensors=TensorFilter(["t3[0:2000000]"]))
    store = source()
    stream(store, tmp_path, tensors=ONE)
    assert store.reads == ()


@pytest.mark.parametrize("verify", ["crc", "sha256"])
def test_checks_of_whole_files_are_not_promised_for_holes(tmp_path: Path, verify: str) -> None:
    with pytest.raises(ConfigurationError, match=f"verify={verify} compares whole files"):
        stream(source(), tmp_path, tensors=ONE, verify=verify)


def test_a_stream_that_is_gone_on_with_wants_the_same(tmp_path: Path) -> None:
    """A fetcher that died is replaced under the same manifest: readers go on."""
    with Streamer(source(), Cache(tmp_path), options(tensors=ONE)) as streamer:
        manifest = streamer.prepare()
    again, _ = stream(source(), tmp_path, tensors=ONE, previous=manifest)
    assert again == manifest
    assert read(manifest, "t3") == expected("t3")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_wanted_in_whatever_order_with_failures_between_is_exact_and_read_once(
    tmp_path: Path, seed: int
) -> None:
    """B7: one file, filled by many streams, some of which break."""
    chance = random.Random(seed)
    content = shard(seed, 3 * MEBIBYTE, tensors=60)
    header = parse_header(content[: 8 + int.from_bytes(content[:8], "little")], file="x", file_bytes=len(content))
    read_bytes = 0
    for _ in range(12):
        names = chance.sample(list(header.tensors), chance.randrange(1, 20))
        rows = {name: sorted(chance.choices(range(header.tensors[name].shape[0] + 1), k=2)) for name in names}
        wanted = TensorFilter([f"{name}[{start}:{stop}]" for name, (start, stop) in rows.items()])
        faults = [FailRead("model.safetensors", StoreFailed("500"), first=chance.randrange(1, 6), times=50)]
        store = MemorySource({"model.safetensors": content}, faults if chance.random() < 0.4 else ())
        small = {"part_bytes": 64 << 10, "chunk_bytes": 16 << 10, "connections": 3}
        with Streamer(store, Cache(tmp_path), options(tensors=wanted, **small)) as streamer:
            manifest = streamer.prepare()
            with suppress(StoreFailed):
                streamer.run()
                with ObjectReader(manifest.objects[0], deadline=Deadline.after(0)) as reader:
                    for info in wanted.narrow(reader.header(), file="x").tensors.values():
                        assert reader.read(info.range) == content[info.start : info.stop]
        read_bytes += store.received_bytes
    manifest, _ = stream(last := MemorySource({"model.safetensors": content}), tmp_path)
    assert contents(manifest)["model.safetensors"] == content
    assert read_bytes + last.received_bytes == len(content)
