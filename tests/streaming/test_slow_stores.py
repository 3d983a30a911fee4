"""Stores with a slow tail, and stores that ask to slow down: requests and bytes are counted where they are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.streaming.manifest import StreamManifest
from tests.support import streaming_child as child
from tests.support.shard_bytes import shard
from tests.support.stores import Store, running_store
from tests.support.streams import MEBIBYTE, contents

ADDRESS = "s3://b/m/"
NAME = "model.safetensors"
MODEL = shard(5, 24 * MEBIBYTE)
PART_BYTES = MEBIBYTE // 2
LEAST_REQUESTS = 2 + 46 + 1
"""A listing, the header's range of 1 MiB, the rest in parts of half a MiB, and the few bytes that are over."""


def model(manifest: Path) -> bytes:
    return contents(StreamManifest.read(manifest))[NAME]


def refused(store: Store) -> int:
    return sum(request["status"] == 503 for request in store.log())


def test_a_slow_connection_is_not_waited_for_at_the_end(tmp_path: Path) -> None:
    """B3"""
    slow = ("--slow-one-in", "45", "--slow-factor", "200")
    (tmp_path / "store").mkdir()
    with running_store(tmp_path / "store", connection="128Mbps", more=slow) as store:
        store.put(f"b/m/{NAME}", MODEL)
        order = {"part_bytes": PART_BYTES, "chunk_bytes": 64 << 10, "connections": 8}
        process = child.start(ADDRESS, tmp_path / "cache", tmp_path / "w.json", env=store.environment, **order)
        done = child.result(process)
        assert done["event"] == "done", done
        assert model(tmp_path / "w.json") == MODEL
        assert done["hedges"] >= 1
        assert done["retries"] == 0
        assert done["twice_bytes"] <= 0.03 * len(MODEL)
        # what had gone into the sockets' buffers before the slow one was ended counts as sent
        assert store.bytes_sent() <= 1.03 * len(MODEL) + done["hedges"] * PART_BYTES


@pytest.mark.parametrize(("processes", "retry_after"), [(1, None), (3, None), (3, "1")])
def test_a_store_that_asks_to_slow_down_is_not_asked_much_more_often_than_needed(
    tmp_path: Path, processes: int, retry_after: str | None
) -> None:
    """S-11, B3"""
    more = ["--requests-per-s", "5", "--for-s", "4"]
    more += ["--retry-after", retry_after] if retry_after else []
    (tmp_path / "store").mkdir()
    with running_store(tmp_path / "store", more=more) as store:
        store.put(f"b/m/{NAME}", MODEL)
        children = [
            child.start(
                ADDRESS, tmp_path / f"cache{i}", tmp_path / f"{i}.json", env=store.environment, part_bytes=PART_BYTES
            )
            for i in range(processes)
        ]
        results = [child.result(each) for each in children]
        assert [each["event"] for each in results] == ["done"] * processes, results
        for i in range(processes):
            assert model(tmp_path / f"{i}.json") == MODEL
        assert store.stats()["requests"] <= 1.3 * processes * LEAST_REQUESTS, f"{refused(store)} were refused"
        assert sum(each["throttles"] for each in results) <= refused(store)
        assert store.bytes_sent() <= processes * len(MODEL) + 1000 * store.stats()["requests"]


def test_more_connections_are_taken_where_each_brings_more(tmp_path: Path) -> None:
    """D3"""
    (tmp_path / "store").mkdir()
    with running_store(tmp_path / "store", connection="64Mbps") as store:
        store.put(f"b/m/{NAME}", MODEL)
        process = child.start(
            ADDRESS,
            tmp_path / "cache",
            tmp_path / "w.json",
            env=store.environment,
            part_bytes=PART_BYTES,
            connections=2,
            most_connections=12,
        )
        assert child.result(process)["event"] == "done"
        assert model(tmp_path / "w.json") == MODEL
        bodies = [request for request in store.log() if request["bytes_sent"] and request["stop_ns"]]
        together = max(
            sum(other["start_ns"] <= request["start_ns"] < other["stop_ns"] for other in bodies) for request in bodies
        )
        assert 3 <= together <= 13
        assert store.bytes_sent() <= 1.04 * len(MODEL)
