"""Measured starts, side by side in one run: what a start costs, against its parts and against doing them in a row.

    python benchmarks/start.py [--rounds 5] [--megabytes 300] [--link 1Gbps] [--json FILE]

Each round measures, in this order and on one shaped store:

- import alone: a process that imports torch;
- stream alone: a process that streams the weights into an empty cache and does nothing else;
- in a row: what a plain container does: import torch, boto3's `download_file`, `load_file`, one call;
- cold: `coldstart serve` on an empty cache, from its exec to READY (its own report);
- cached: the same again on the cache that this left.

The answer of every start is checked. Results: medians, spread and n as a table and as JSON.
"""

from __future__ import annotations

import argparse
import bisect
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from adapter.errors import CacheError  # noqa: E402 - found by the line above
from adapter.streaming.journal import JournalReader  # noqa: E402 - found by the line above
from adapter.timeline import process_start_ns  # noqa: E402 - found by the line above
from tests.support.replicas import Replica, running_replica  # noqa: E402 - found by the line above
from tests.support.stores import Store, running_store  # noqa: E402 - found by the line above

IN_A_ROW = """
import sys, time, boto3
import torch
from safetensors.torch import load_file
imported = time.perf_counter()
boto3.client("s3").download_file("models", "stack/model.safetensors", sys.argv[1])
from benchmarks.start_handler import Stack, WIDTH
state = load_file(sys.argv[1])
with torch.device("meta"):
    model = Stack(len(state))
model.load_state_dict(state, assign=True)
with torch.inference_mode():
    print(float(model(torch.full((1, WIDTH), 0.5)).sum()))
"""
STREAM_ALONE = """
import sys
from pathlib import Path
from adapter.storage.sources import open_source
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
address = "s3://models/stack/"
with open_source(address, connections=16) as source:
    with Streamer(source, Cache(Path(sys.argv[1])), StreamOptions(address=address)) as streamer:
        streamer.prepare()
        streamer.run()
"""


def main() -> int:
    """Measure, check, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=300)
    parser.add_argument("--link", default="1Gbps")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with temporary_directory() as directory:
        size = write_stack(directory / "store" / "models" / "stack" / "model.safetensors", arguments.megabytes)
        with running_store(directory / "store", link=arguments.link) as store:
            rounds = [measure_round(store, directory, size) for _ in range(arguments.rounds)]
    figures = {name: summary([one[name] for one in rounds]) for name in rounds[0]}
    result = {
        "benchmark": "start",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "bytes": size,
        "link": arguments.link,
        "figures": figures,
    }
    show(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


@contextlib.contextmanager
def temporary_directory() -> Iterator[Path]:
    """A directory that goes away whatever happens."""
    directory = Path(tempfile.mkdtemp(prefix="coldstart-bench-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def write_stack(path: Path, megabytes: int) -> int:
    """A checkpoint of about this size in a process of its own (this one stays light); its bytes."""
    code = """
import sys, torch
from safetensors.torch import save_file
from benchmarks.start_handler import WIDTH
torch.manual_seed(0)
depth = int(sys.argv[2]) * 1_000_000 // (4 * WIDTH * WIDTH)
save_file({f"layers.{i}.weight": torch.randn(WIDTH, WIDTH) / 32 for i in range(depth)}, sys.argv[1],
          metadata={"depth": str(depth)})
"""
    path.parent.mkdir(parents=True)
    child(code, {}, str(path), str(megabytes))
    return path.stat().st_size


def child(code: str, environment: dict[str, str], *arguments: str) -> tuple[float, str]:
    """Run Python code in a process of its own; seconds from its start to its end, and what it printed."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment, "PYTHONPATH": str(REPOSITORY)},
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return time.perf_counter() - begun, done.stdout.strip()


def measure_round(store: Store, directory: Path, size: int) -> dict[str, float]:
    """Every contender once."""
    work = directory / "work"
    work.mkdir()
    figures: dict[str, float] = {}
    figures["import alone"], _ = child("import torch", {})
    figures["stream alone"], _ = child(STREAM_ALONE, store.environment, str(work / "alone"))
    figures["in a row"], expected = child(IN_A_ROW, store.environment, str(work / "model.safetensors"))
    with start(store, work) as replica:
        landed = Landed(work / "cache")
        replica.wait_ready(120)
        landed.stop()
        check(replica, float(expected))
        cold = replica.report()
        origin_ns = process_start_ns(replica.process.pid)
    with start(store, work) as replica:
        replica.wait_ready(120)
        check(replica, float(expected))
        cached = replica.report()
    figures["cold"] = cold["total_s"]
    figures["cached"] = cached["total_s"]
    work_s = duration(cached, "model.load") + sum(
        stage["stop_s"] - stage["start_s"] for stage in cached["stages"] if stage["name"].startswith("warm_up[")
    )
    figures["load + warm-up"] = work_s
    bound = max(figures["stream alone"], figures["import alone"]) + work_s
    figures["cold / (max(stream, import) + load + warm-up)"] = cold["total_s"] / bound
    figures["in a row / cold"] = figures["in a row"] / cold["total_s"]
    first_s, imported_s = moment(cold, "storage.first_range"), stage_of(cold, "import.framework")["stop_s"]
    allowed = min(float(size), (imported_s - first_s) * link_bytes_per_s(store))
    figures["landed at the end of import / the link's"] = landed.at(origin_ns + int(imported_s * 1e9)) / allowed
    shutil.rmtree(work)
    return figures


def start(store: Store, work: Path) -> contextlib.AbstractContextManager[Replica]:
    """`coldstart serve` of the stack, its cache in `work`."""
    environment = {**store.environment, "OMP_NUM_THREADS": str(os.cpu_count() or 1), "PYTHONPATH": str(REPOSITORY)}
    return running_replica("benchmarks.start_handler:answer", work, environment=environment)


def check(replica: Replica, expected: float) -> None:
    """The replica's answer is the one of the plain way."""
    found = replica.post(0.5).json()
    assert abs(found - expected) <= 1e-4 * max(1.0, abs(expected)), (found, expected)


class Landed:
    """Samples how many bytes the journals of a cache tell of, on the clock that all roles share."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._times: list[int] = []
        self._bytes: list[int] = []
        self._ended = threading.Event()
        self._reader: JournalReader | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No more samples."""
        self._ended.set()
        self._thread.join()

    def at(self, when_ns: int) -> int:
        """The last count before that time."""
        found = bisect.bisect_right(self._times, when_ns)
        return self._bytes[found - 1] if found else 0

    def _run(self) -> None:
        while not self._ended.wait(0.01):
            if self._reader is None:
                for path in self._cache.rglob("*.journal-*"):
                    with contextlib.suppress(FileNotFoundError, CacheError):
                        self._reader = JournalReader(path)
            if self._reader is not None:
                self._reader.poll()
                self._times.append(time.monotonic_ns())
                self._bytes.append(self._reader.done.total)


def stage_of(report: dict[str, Any], name: str) -> dict[str, Any]:
    """The first stage of that name."""
    return next(dict(stage) for stage in report["stages"] if stage["name"] == name)


def duration(report: dict[str, Any], name: str) -> float:
    """Seconds of the first stage of that name."""
    stage = stage_of(report, name)
    return float(stage["stop_s"] - stage["start_s"])


def moment(report: dict[str, Any], name: str) -> float:
    """When the first stage of that name began, in seconds since the start."""
    return float(stage_of(report, name)["start_s"])


def link_bytes_per_s(store: Store) -> float:
    """The shaped speed, as the store was told."""
    command = store.process.args
    assert isinstance(command, list)
    text = command[command.index("--link") + 1]
    return (
        float(text.removesuffix("Gbps")) * 125e6 if text.endswith("Gbps") else float(text.removesuffix("Mbps")) * 125e3
    )


def summary(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest of the rounds."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "n": len(values)}


def show(figures: dict[str, dict[str, float]]) -> None:
    """The table."""
    print(f"{'figure':<48}{'median':>9}{'min':>9}{'max':>9}{'n':>4}")
    for name, found in figures.items():
        print(f"{name:<48}{found['median']:>9.3f}{found['min']:>9.3f}{found['max']:>9.3f}{found['n']:>4.0f}")


if __name__ == "__main__":
    sys.exit(main())
