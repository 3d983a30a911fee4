"""Killed at any moment, and four replicas at once: bytes counted at the store."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError
from adapter.streaming.journal import JournalReader
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.reader import ObjectReader
from adapter.streaming.waiting import Deadline
from tests.support import streaming_child as child
from tests.support.shard_bytes import sharded
from tests.support.stores import Store, running_store
from tests.support.streams import contents

MEBIBYTE = 1 << 20
ADDRESS = "s3://b/m/"
OBJECTS = sharded(3, 4 * MEBIBYTE)
SIZE = sum(map(len, OBJECTS.values()))
CONNECTIONS = 4
KILLS = 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of a model of three shards that takes half a second to stream."""
    with running_store(tmp_path_factory.mktemp("store"), link="200Mbps") as running:
        for name, content in OBJECTS.items():
            running.put(f"b/m/{name}", content)
        yield running


def sent_bytes(store: Store) -> int:
    return sum(int(request["bytes_sent"]) for request in store.log() if request["key"] != "")


def on_disk(cache: Path) -> int:
    """Bytes that are there for the next start, by journals and published files."""
    total = 0
    for slot in (cache / "v1" / "objects").glob("*"):
        names = {found.name for found in slot.iterdir()}
        published = [name for name in names if name in OBJECTS]
        if published and "record.json" in names:
            total += len(OBJECTS[published[0]])
            continue
        fullest = 0
        for name in names:
            if ".journal-" in name:
                with suppress(CacheError):
                    journal = JournalReader(slot / name)
                    journal.poll()
                    fullest = max(fullest, journal.done.total)
                    journal.close()
        total += fullest
    return total


def leftovers(cache: Path) -> list[str]:
    return [
        found.name for found in cache.rglob("*") if any(mark in found.name for mark in (".part-", ".journal-", ".tmp-"))
    ]


def run_for(process: subprocess.Popen[str], seconds: float) -> bool:
    """Let it run so long, then kill it; whether it ended by itself before."""
    try:
        ended = process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        ended = False
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()
    return ended


def test_killed_at_twenty_random_moments_every_start_reads_only_what_was_missing(tmp_path: Path, store: Store) -> None:
    """B4, S-20: each start goes on from the one before; now and then one completes, and a new cache is begun."""
    moments = random.Random(20)
    cache, manifest = tmp_path / "cache", tmp_path / "w.json"
    for _ in range(KILLS):
        missing = SIZE - on_disk(cache)
        store.reset()
        process = child.start(ADDRESS, cache, manifest, env=store.environment, connections=CONNECTIONS)
        if moments.random() < 0.8:
            assert child.heard(process) == {"event": "manifest"}
            ended = run_for(process, moments.uniform(0, 0.6))
        else:
            ended = run_for(process, moments.uniform(0, 1.0))
        assert sent_bytes(store) <= missing + CONNECTIONS * MEBIBYTE
        if ended:
            assert contents(StreamManifest.read(manifest)) == OBJECTS
            assert leftovers(cache) == []
            shutil.rmtree(cache)
    missing = SIZE - on_disk(cache)
    store.reset()
    process = child.start(ADDRESS, cache, manifest, env=store.environment, connections=CONNECTIONS)
    assert child.result(process)["event"] == "done"
    assert sent_bytes(store) <= missing + CONNECTIONS * MEBIBYTE
    assert contents(StreamManifest.read(manifest)) == OBJECTS
    assert leftovers(cache) == [], "no temporary file outlives the recovery"


def test_four_replicas_on_an_empty_cache_read_the_model_once(tmp_path: Path, store: Store) -> None:
    """B5, S-21: and the first tensor of each is there before the last byte of the model is."""
    store.reset()
    manifests = [tmp_path / f"w{number}.json" for number in range(4)]
    go = tmp_path / "go"
    replicas = [
        child.start(ADDRESS, tmp_path / "cache", manifest, env=store.environment, go=str(go)) for manifest in manifests
    ]
    assert [child.heard(process) for process in replicas] == [{"event": "waiting"}] * 4
    go.touch()
    early = 0
    for manifest, process in zip(manifests, replicas, strict=True):
        assert child.heard(process) == {"event": "manifest"}
        first, *_, last = StreamManifest.read(manifest).shards
        with ObjectReader(first, deadline=Deadline.after(30)) as reader, ObjectReader(last) as end:
            header = reader.header()
            tensor = header.tensors["s0.t0"]
            data = reader.read(ByteRange(tensor.start, tensor.stop))
            assert data == OBJECTS[first.name][tensor.start : tensor.stop]
            early += not end.complete
    results = [child.result(process) for process in replicas]
    assert [result["event"] for result in results] == ["done"] * 4
    # reads that hardly move are asked for again near the end, which a busy machine makes of any
    assert SIZE <= sent_bytes(store) <= 1.03 * SIZE
    assert early, "no replica waits for the whole model"
    assert all(contents(StreamManifest.read(manifest)) == OBJECTS for manifest in manifests)


def test_with_locks_that_lie_four_replicas_are_right_and_read_four_times_at_worst(tmp_path: Path, store: Store) -> None:
    """B5, S-21"""
    store.reset()
    manifests = [tmp_path / f"w{number}.json" for number in range(4)]
    replicas = [
        child.start(ADDRESS, tmp_path / "cache", manifest, env=store.environment, lying_lock=True)
        for manifest in manifests
    ]
    assert [child.result(process)["event"] for process in replicas] == ["done"] * 4
    assert SIZE <= sent_bytes(store) <= 4 * SIZE
    assert all(contents(StreamManifest.read(manifest)) == OBJECTS for manifest in manifests)
    assert leftovers(tmp_path / "cache") == []


def test_a_forked_child_of_a_killed_holder_does_not_block_the_next(tmp_path: Path, store: Store) -> None:
    """B5, D6, S-22: the child has the open file of the lease, and lives on."""
    process = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=store.environment, fork=True)
    assert child.heard(process) == {"event": "manifest"}
    orphan = int(child.heard(process)["pid"])
    try:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        # far below the 30 s after which a holder that brings nothing is taken for stalled
        again = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=store.environment, deadline_s=15)
        assert child.result(again)["event"] == "done"
        os.kill(orphan, 0)
        assert contents(StreamManifest.read(tmp_path / "w2.json")) == OBJECTS
    finally:
        os.kill(orphan, signal.SIGKILL)
