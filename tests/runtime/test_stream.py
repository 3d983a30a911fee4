"""The stream as part of a start: what it overlaps with, what it costs, what a killed start leaves to the next."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.errors import CacheError
from adapter.streaming.journal import JournalReader
from tests.support.checkpoints import MEBIBYTE, write_checkpoint
from tests.support.replicas import Replica, running_replica, until, write_module
from tests.support.stores import running_store

CRC = """
    import zlib
    from adapter import coldstart_handler

    def load(weights):
        return {name: tensor for name, tensor in weights.items()}

    @coldstart_handler(weights="s3://models/m/", load=load)
    def crc(model, event):
        return zlib.crc32(memoryview(model[event["name"]].numpy()))
"""
IDLE = """
    import numpy, torch
    from adapter import coldstart_handler

    @coldstart_handler
    def idle(event):
        return 1
"""
GIBIBYTE = 1 << 30
CONNECTIONS = 16


@pytest.fixture(scope="module")
def gibibyte(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, int]]]:
    root = tmp_path_factory.mktemp("store")
    path = root / "models" / "m" / "model.safetensors"
    yield root, write_checkpoint(path, GIBIBYTE // 16, 16)
    path.unlink()


def stage(report: dict[str, Any], name: str) -> dict[str, Any]:
    found = [stage for stage in report["stages"] if stage["name"] == name]
    assert found, f"{name} is not among {[stage['name'] for stage in report['stages']]}"
    return dict(found[0])


def anonymous_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                total += int(line.split()[1]) << 10
    return total


@pytest.mark.parametrize("from_source", [True, False], ids=["address in the source", "address from the settings"])
def test_the_first_range_leaves_before_the_framework_is_imported(tmp_path: Path, from_source: bool) -> None:
    """A3, D1: in the first start and in a later one."""
    write_checkpoint(tmp_path / "store" / "models" / "m" / "model.safetensors", MEBIBYTE, 3)
    source = CRC if from_source else CRC.replace('weights="s3://models/m/", ', "")
    write_module(tmp_path, "model", source)
    arguments = [] if from_source else ["--weights", "s3://models/m/"]
    with running_store(tmp_path / "store") as store:
        for again in (False, True):
            with running_replica("model:crc", tmp_path, *arguments, environment=store.environment) as replica:
                replica.wait_ready()
                report = replica.report()
                if not again:
                    assert stage(report, "storage.first_range")["start_s"] < stage(report, "import.framework")["stop_s"]
                    store.reset()
                else:
                    # a second start reads the listing only
                    assert store.bytes_sent() < MEBIBYTE
                    assert report["transfer"]["cache_bytes"] >= 3 * MEBIBYTE


def test_a_wrong_guess_of_the_address_is_replaced_by_what_the_handler_says(tmp_path: Path) -> None:
    """D1: the decorator disagrees with the record of an earlier start; its error does not count."""
    sums = write_checkpoint(tmp_path / "store" / "models" / "right" / "model.safetensors", MEBIBYTE, 2)
    write_checkpoint(tmp_path / "store" / "models" / "early" / "model.safetensors", MEBIBYTE, 1)
    write_module(tmp_path, "model", CRC.replace('"s3://models/m/"', 'open("which").read()'))
    with running_store(tmp_path / "store") as store:
        for which in ("early", "right"):
            (tmp_path / "which").write_text(f"s3://models/{which}/")
            if which == "right":
                (tmp_path / "store" / "models" / "early" / "model.safetensors").unlink()
            with running_replica("model:crc", tmp_path, environment=store.environment) as replica:
                replica.wait_ready()
                if which == "right":
                    assert replica.post({"name": "t1"}).json() == sums["t1"]


def test_streaming_a_gibibyte_adds_little_memory_and_its_tensors_none(
    tmp_path: Path, gibibyte: tuple[Path, dict[str, int]]
) -> None:
    """A4: at most 100 MiB of anonymous memory over all roles above the same replica without weights."""
    root, sums = gibibyte
    write_module(
        tmp_path,
        "idle",
        "import torch, boto3, numpy\n"
        "from adapter import coldstart_handler\n@coldstart_handler\ndef idle(event):\n    return 1\n",
    )
    with running_replica("idle:idle", tmp_path) as replica:
        replica.wait_ready()
        idle = anonymous_bytes([pid for pid, _ in replica.survivors()])
    write_module(tmp_path, "model", CRC + '\n    crc.warm_up({"name": "t0"})\n')
    peak = 0
    with running_store(root) as store, running_replica("model:crc", tmp_path, environment=store.environment) as replica:

        def ready() -> bool:
            nonlocal peak
            try:
                peak = max(peak, anonymous_bytes([pid for pid, _ in replica.survivors()]))
            except (OSError, ProcessLookupError):
                return False  # a role ended while it was looked at
            return replica.logged("replica.start.complete") is not None

        until(ready, within_s=90, what=lambda: "\n".join(replica.raw))
        for name, crc in sums.items():
            assert replica.post({"name": name}).json() == crc
        worker = replica.pid_of("worker")
        assert worker is not None
        loaded = anonymous_bytes([worker])
    assert peak - idle <= 100 * MEBIBYTE, f"idle {idle >> 20} MiB, peak {peak >> 20} MiB"
    assert loaded - idle <= 0, "the tensors of a CPU model are the file's pages"


def test_every_role_may_be_killed_and_only_what_is_missing_is_read_again(
    tmp_path: Path, gibibyte: tuple[Path, dict[str, int]]
) -> None:
    """A5: fetcher, then worker, then supervisor; the next start reads the missing bytes + connections x 1 MiB."""
    root, sums = gibibyte
    write_module(tmp_path, "model", CRC)
    size = (root / "models" / "m" / "model.safetensors").stat().st_size

    def streamed(share: float) -> None:
        until(lambda: on_disk(tmp_path) >= share * size, within_s=60, what=f"{share:.0%} of the stream")

    with running_store(root, link="1Gbps") as store:
        with running_replica("model:crc", tmp_path, environment=store.environment) as replica:
            streamed(1 / 3)
            replica.kill("fetcher")
            streamed(1 / 2)
            replica.kill("worker")
            streamed(2 / 3)
            os.kill(replica.process.pid, signal.SIGKILL)
            replica.process.wait()
            until(lambda: not replica.survivors(), within_s=2)
        missing = size - on_disk(tmp_path)
        assert missing > 0
        store.reset()
        with running_replica("model:crc", tmp_path, environment=store.environment) as replica:
            replica.wait_ready(90)
            assert store.bytes_sent() <= missing + CONNECTIONS * MEBIBYTE
            check(replica, sums)
        # and a start after that reads nothing of the weights
        store.reset()
        with running_replica("model:crc", tmp_path, environment=store.environment) as replica:
            replica.wait_ready()
            assert store.bytes_sent() < MEBIBYTE
            check(replica, sums)


LAZY = """
    import zlib
    from adapter import coldstart_handler

    @coldstart_handler(weights="s3://models/m/")
    def crc(weights, event):
        return zlib.crc32(memoryview(weights[event["name"]].numpy()))
"""


def test_a_fetcher_that_dies_after_readiness_is_replaced(tmp_path: Path) -> None:
    """A7: a model that reads its weights only when it is called is ready before they are here."""
    sums = write_checkpoint(tmp_path / "store" / "models" / "m" / "model.safetensors", 2 * MEBIBYTE, 4)
    write_module(tmp_path, "model", LAZY)
    with (
        running_store(tmp_path / "store", link="6Mbps") as store,
        running_replica("model:crc", tmp_path, environment=store.environment) as replica,
    ):
        replica.wait_ready()
        replica.kill("fetcher")
        assert not (replica.run_dir / "sealed").exists()
        assert replica.post({"name": "t2"}).json() == sums["t2"]


def test_a_store_that_goes_away_after_readiness_ends_callers_and_replica_with_its_error(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "store" / "models" / "m" / "model.safetensors", 2 * MEBIBYTE, 4)
    write_module(tmp_path, "model", LAZY)
    with running_store(tmp_path / "store", link="6Mbps") as store:
        environment = {**store.environment, "COLDSTART_WORKER_RESTARTS": "0"}
        with running_replica("model:crc", tmp_path, environment=environment) as replica:
            replica.wait_ready()
            store.process.kill()
            answer = replica.post({"name": "t3"}, timeout_s=60)
            assert answer.status >= 500
            assert answer.json()["error"]["code"] == "storage.connection"
            assert replica.end() == 25


def on_disk(directory: Path) -> int:
    """Bytes that the journals of the cache tell of: what was received, written and recorded."""
    total = 0
    for path in (directory / "cache").rglob("*.journal-*"):
        try:
            with contextlib.closing(JournalReader(path)) as journal:
                journal.poll()
                total += journal.done.total
        except (FileNotFoundError, CacheError):
            continue  # just begun, or sealed meanwhile
    return total


def check(replica: Replica, sums: dict[str, int]) -> None:
    for name in ("t0", "t7", f"t{len(sums) - 1}"):
        assert replica.post({"name": name}).json() == sums[name]
