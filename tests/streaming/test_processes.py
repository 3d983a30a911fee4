"""Several processes on one cache, killed, stopped and lied to by the lock: bytes are right and hardly read twice."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import StorageError
from adapter.streaming.journal import JournalReader
from adapter.streaming.manifest import ObjectEntry, StreamManifest
from adapter.streaming.reader import ObjectReader
from adapter.streaming.waiting import Deadline
from tests.support import streaming_child as child
from tests.support.shard_bytes import shard, sharded
from tests.support.stores import Store, running_store

MEBIBYTE = 1 << 20
ADDRESS = "s3://b/m/"
MODEL = shard(5, 24 * MEBIBYTE)
NAME = "model.safetensors"


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store of one model that takes about a second to stream."""
    root = tmp_path_factory.mktemp("store")
    with running_store(root, link="200Mbps") as store:
        store.put(f"b/m/{NAME}", MODEL)
        yield store


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.002)


def grown(journal: JournalReader, beyond_bytes: int) -> bool:
    journal.poll()
    return journal.done.total > beyond_bytes


def filling_journal(manifest: Path) -> JournalReader:
    return JournalReader(StreamManifest.read(manifest).objects[0].journal)


def started(store: Store, cache: Path, manifest: Path, **more: object) -> tuple[subprocess.Popen[str], JournalReader]:
    """A child that has brought a third of the model."""
    process = child.start(ADDRESS, cache, manifest, env=store.environment, **more)
    assert child.heard(process) == {"event": "manifest"}
    journal = filling_journal(manifest)

    def a_third() -> bool:
        journal.poll()
        return journal.done.total >= len(MODEL) // 3

    until(a_third)
    return process, journal


def sent_bytes(store: Store) -> int:
    return sum(int(request["bytes_sent"]) for request in store.log() if request["key"].endswith(NAME))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def read_model(manifest: Path) -> bytes:
    entry = StreamManifest.read(manifest).objects[0]
    with ObjectReader(entry, deadline=Deadline.after(0)) as reader:
        return reader.read(ByteRange(0, entry.size_bytes))


def test_after_kill_9_only_what_is_missing_is_read(tmp_path: Path, slow: Store) -> None:
    """A5, S-20"""
    process, journal = started(slow, tmp_path / "cache", tmp_path / "w.json")
    kill(process)
    journal.poll()
    done = journal.done.total
    assert len(MODEL) // 3 <= done < len(MODEL)
    slow.reset()
    again = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=slow.environment)
    progress = child.result(again)
    assert progress["from_cache_bytes"] == done
    assert sent_bytes(slow) == len(MODEL) - done
    assert read_model(tmp_path / "w2.json") == MODEL


def test_a_reader_sees_through_the_death_and_replacement_of_its_fetcher(tmp_path: Path, slow: Store) -> None:
    """A5: the reader keeps its manifest and its map."""
    process, _ = started(slow, tmp_path / "cache", tmp_path / "w.json")
    reader = ObjectReader(StreamManifest.read(tmp_path / "w.json").objects[0], deadline=Deadline.after(30))
    descriptor = reader.open()
    kill(process)
    again = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=slow.environment, previous=True)
    reader.wait()
    assert os.pread(descriptor, len(MODEL), 0) == MODEL
    assert child.result(again)["event"] == "done"
    assert os.path.samestat(os.fstat(descriptor), os.stat(reader.entry.published))
    os.close(descriptor)


def test_a_follower_reads_nothing_and_takes_over_from_a_dead_holder(tmp_path: Path, slow: Store) -> None:
    """D6, S-22"""
    holder, journal = started(slow, tmp_path / "cache", tmp_path / "w.json")
    holder.send_signal(signal.SIGSTOP)
    follower = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=slow.environment)
    assert child.heard(follower) == {"event": "manifest"}
    first, second = (StreamManifest.read(tmp_path / name).objects[0] for name in ("w.json", "w2.json"))
    assert first == second
    reader = ObjectReader(second, deadline=Deadline.after(30))
    reader.wait(ByteRange(0, 1))
    kill(holder)
    journal.poll()
    slow.reset()
    done = journal.done.total
    begun_s = time.monotonic()
    until(partial(grown, journal, done))
    assert time.monotonic() - begun_s < 2, "a dead holder is replaced within two seconds"
    reader.wait()
    assert child.result(follower)["event"] == "done"
    assert reader.read(ByteRange(0, len(MODEL))) == MODEL
    assert sent_bytes(slow) == len(MODEL) - done


def test_a_follower_of_a_live_holder_reads_nothing_at_all(tmp_path: Path, slow: Store) -> None:
    """D6, S-21"""
    slow.reset()
    holder, _ = started(slow, tmp_path / "cache", tmp_path / "w.json")
    holder.send_signal(signal.SIGSTOP)
    follower = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=slow.environment)
    assert child.heard(follower) == {"event": "manifest"}
    holder.send_signal(signal.SIGCONT)
    assert child.result(follower)["requests"] == 0
    assert child.result(holder)["event"] == "done"
    assert sent_bytes(slow) == len(MODEL)
    assert read_model(tmp_path / "w2.json") == MODEL


def test_a_stopped_holder_is_not_waited_for_for_ever(tmp_path: Path, slow: Store) -> None:
    """D6: alive and with the lock, but bringing nothing."""
    holder, _ = started(slow, tmp_path / "cache", tmp_path / "w.json")
    holder.send_signal(signal.SIGSTOP)
    try:
        follower = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=slow.environment, stall_s=0.5)
        assert child.result(follower)["event"] == "done"
        assert read_model(tmp_path / "w2.json") == MODEL
        inode = StreamManifest.read(tmp_path / "w2.json").objects[0].published.stat().st_ino
    finally:
        holder.send_signal(signal.SIGCONT)
    assert child.result(holder)["event"] == "done"
    assert StreamManifest.read(tmp_path / "w2.json").objects[0].published.stat().st_ino == inode
    assert read_model(tmp_path / "w.json") == MODEL


def test_a_live_but_slow_holder_is_waited_for_up_to_the_deadline(tmp_path: Path, slow: Store) -> None:
    """S-22"""
    holder, _ = started(slow, tmp_path / "cache", tmp_path / "w.json")
    holder.send_signal(signal.SIGSTOP)
    try:
        follower = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w2.json", env=slow.environment, deadline_s=1.5)
        failed = child.result(follower)
        assert failed["code"] == "cache.lease_timeout"
        assert NAME in str(failed["message"])
    finally:
        kill(holder)


@pytest.mark.parametrize("lying", [False, True])
def test_four_at_once_in_an_empty_cache(tmp_path: Path, lying: bool) -> None:
    """S-21: with working locks about one read, with broken ones at worst four, never a wrong byte."""
    objects = sharded(3, 3 * MEBIBYTE)
    total = sum(map(len, objects.values()))
    (tmp_path / "m").mkdir()
    for name, content in objects.items():
        (tmp_path / "m" / name).write_bytes(content)
    for attempt in range(3):
        cache, go = tmp_path / f"cache{attempt}", tmp_path / f"go{attempt}"
        manifests = [tmp_path / f"w{attempt}-{number}.json" for number in range(4)]
        processes = [
            child.start(str(tmp_path / "m"), cache, manifest, lying_lock=lying, go=str(go)) for manifest in manifests
        ]
        assert [child.heard(process) for process in processes] == [{"event": "waiting"}] * 4
        go.touch()
        digests = []
        for manifest, process in zip(manifests, processes, strict=True):
            assert child.heard(process) == {"event": "manifest"}
            digests.append({entry.name: _digest(entry) for entry in StreamManifest.read(manifest)})
        expected = {name: hashlib.sha256(content).hexdigest() for name, content in objects.items()}
        assert digests == [expected] * 4
        results = [child.result(process) for process in processes]
        assert [result["event"] for result in results] == ["done"] * 4
        fetched = sum(result["fetched_bytes"] for result in results)
        assert total <= fetched <= total * (4 if lying else 1)
        left = [found.name for found in cache.rglob("*") if ".part-" in found.name or ".journal-" in found.name]
        assert left == []
        for entry in StreamManifest.read(manifests[0]):
            assert entry.published.read_bytes() == objects[entry.name]


def _digest(entry: ObjectEntry) -> str:
    with ObjectReader(entry, deadline=Deadline.after(30)) as reader:
        return hashlib.sha256(reader.read(ByteRange(0, entry.size_bytes))).hexdigest()


def test_kill_9_again_and_again_ends_with_the_right_bytes(tmp_path: Path, slow: Store) -> None:
    """S-20"""
    done = 0
    for _ in range(3):
        process = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=slow.environment)
        child.heard(process)
        journal = filling_journal(tmp_path / "w.json")
        journal.poll()
        assert journal.done.total == done, "nothing that was there is lost"
        until(partial(grown, journal, done))
        kill(process)
        journal.poll()
        done = journal.done.total
    final = child.result(child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=slow.environment))
    assert final["from_cache_bytes"] == done
    assert read_model(tmp_path / "w.json") == MODEL


def test_many_shards_do_not_end_at_the_usual_limit_of_open_files(tmp_path: Path) -> None:
    objects = sharded(80, 4096)
    (tmp_path / "m").mkdir()
    for name, content in objects.items():
        (tmp_path / "m" / name).write_bytes(content)
    go = tmp_path / "go"
    process = child.start(str(tmp_path / "m"), tmp_path / "cache", tmp_path / "w.json", go=str(go))
    assert child.heard(process) == {"event": "waiting"}
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (100, hard))
    go.touch()
    assert child.result(process)["event"] == "done"


def test_a_store_that_is_gone_is_told_by_type(tmp_path: Path) -> None:
    """A6"""
    (tmp_path / "store").mkdir()
    with running_store(tmp_path / "store") as store:
        environment = store.environment
    process = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=environment, deadline_s=1)
    failed = child.result(process)
    assert failed["event"] == "failed"
    assert isinstance(StorageError.from_dict(failed), StorageError)
