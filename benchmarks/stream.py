"""How fast a checkpoint gets from a store into memory: this package beside others and beside what is possible.

    python benchmarks/stream.py [--rounds 5] [--gigabytes 2.5] [--only http,tls,shaped] [--json FILE]

One checkpoint of four shards on nginx (sendfile), over HTTP and over TLS; destination: files on tmpfs. All contenders
of a round run one after the other, rounds follow each other, so that what changes on the machine meets all of them.
The floor is `floor.c`: sockets, a buffer of 1 MiB and pwrite, nothing else. Then this package alone on a shaped store:
undisturbed, with one slow connection in 50, and asked to slow down. Every byte is compared by checksum every time.

Contenders that are no dependencies (group `bench`) are installed into a virtual environment of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks.contenders import Spec  # noqa: E402 - found by the line above
from benchmarks.material import (  # noqa: E402 - found by the line above
    BUCKET,
    PREFIX,
    SHARDS,
    Checkpoint,
    build_floor,
    checksum,
    made,
    make_venv,
    memory_directory,
    write_checkpoint,
)
from benchmarks.nginx import Nginx, running_nginx  # noqa: E402 - found by the line above
from tests.support.stores import CREDENTIALS, running_store  # noqa: E402 - found by the line above

CONNECTIONS, PART_BYTES = 16, 8 << 20
OWN_PACKAGES = ("obstore", "runai")
"""Contenders that run in the other virtual environment."""
Figures = dict[str, dict[str, list[dict[str, float]]]]
"""Scene, contender, one measurement a round."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What all measurements share."""

    checkpoint: Checkpoint
    work: Path
    floor: Path
    python: str
    """Interpreter with the contenders that are no dependencies."""


def main() -> int:
    """Measure, check, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gigabytes", type=float, default=2.5)
    parser.add_argument("--only", default="http,tls,shaped", help="scenes (default: %(default)s)")
    parser.add_argument("--contenders", default="floor,ours,s3transfer,obstore,runai,awscrt")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    scenes, contenders = arguments.only.split(","), arguments.contenders.split(",")
    figures: Figures = {}
    begun_s = time.monotonic()
    with memory_directory() as work:
        bench = Bench(write_checkpoint(work / "store", arguments.gigabytes), work, build_floor(work), make_venv())
        with running_nginx(bench.checkpoint.root, made(work / "nginx"), BUCKET, max(2, os.cpu_count() or 2)) as nginx:
            for scene in [each for each in ("http", "tls") if each in scenes]:
                figures[scene] = run_scene(bench, nginx, scene, contenders, arguments.rounds)
        size = bench.checkpoint.size_bytes
    if "shaped" in scenes:
        figures["shaped"] = run_shaped(arguments.rounds)
    result = {
        "benchmark": "stream",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "bytes": size,
        "connections": CONNECTIONS,
        "part_bytes": PART_BYTES,
        "rounds": arguments.rounds,
        "took_s": round(time.monotonic() - begun_s),
        "scenes": {scene: {name: summary(runs) for name, runs in found.items()} for scene, found in figures.items()},
    }
    show(result, figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


# -- measuring --------------------------------------------------------------------------------------------------------


def run_scene(
    bench: Bench, nginx: Nginx, scene: str, contenders: Sequence[str], rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Rounds of all contenders; one that fails is told and left out."""
    endpoint = f"https://localhost:{nginx.tls_port}" if scene == "tls" else f"http://127.0.0.1:{nginx.plain_port}"
    checkpoint = bench.checkpoint
    found: dict[str, list[dict[str, float]]] = {}
    # TLS has no floor: what it costs is the library's choice of ciphers and not a matter of streaming
    taking_part = [name for name in contenders if name != "floor" or scene == "http"]
    allocation = faster_allocation(bench, nginx) if "floor" in taking_part else ""
    for _ in range(rounds):
        for name in list(taking_part):
            target = made(bench.work / "target")
            spec = Spec(
                endpoint, BUCKET, PREFIX, checkpoint.names, checkpoint.sizes, str(target), CONNECTIONS, PART_BYTES,
                str(nginx.certificate), {},
            )  # fmt: skip
            try:
                command = (
                    floor_command(bench, nginx, allocation, target) if name == "floor" else contender(bench, name, spec)
                )
                before, before_s = nginx.requests, nginx.cpu_s
                facts = measured(command, {**environment(endpoint), **trust(nginx)})
                facts |= {"requests": nginx.requests - before, "server_cpu_s": nginx.cpu_s - before_s}
                check(name, checkpoint, target, facts)
                found.setdefault(name, []).append(facts)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                print(f"{scene}: {name} fails and is left out: {error}", file=sys.stderr)
                taking_part.remove(name)
            finally:
                shutil.rmtree(target)
    return found


def floor_command(bench: Bench, nginx: Nginx, allocation: str, target: Path) -> list[str]:
    checkpoint = bench.checkpoint
    objects = [
        text
        for name, size in zip(checkpoint.names, checkpoint.sizes, strict=True)
        for text in (f"/{BUCKET}/{PREFIX}{name}", str(size))
    ]
    facts = [str(nginx.plain_port), str(CONNECTIONS), str(PART_BYTES), allocation, str(target)]
    return [str(bench.floor), *facts, *objects]


def faster_allocation(bench: Bench, nginx: Nginx) -> str:
    """What the floor gives files their size with: whatever is faster here."""
    seconds: dict[str, float] = {}
    for allocation in ("truncate", "allocate", "truncate", "allocate"):
        target = made(bench.work / "target")
        facts = measured(floor_command(bench, nginx, allocation, target), {})
        seconds[allocation] = min(facts["seconds"], seconds.get(allocation, facts["seconds"]))
        shutil.rmtree(target)
    return min(seconds, key=seconds.__getitem__)


def contender(bench: Bench, name: str, spec: Spec) -> list[str]:
    python = bench.python if name in OWN_PACKAGES else sys.executable
    return [python, str(Path(__file__).with_name("contenders.py")), name, json.dumps(asdict(spec))]


def environment(endpoint: str) -> dict[str, str]:
    return {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def trust(nginx: Nginx) -> dict[str, str]:
    return {"AWS_CA_BUNDLE": str(nginx.certificate), "SSL_CERT_FILE": str(nginx.certificate)}


def measured(command: Sequence[str], variables: dict[str, str]) -> dict[str, Any]:
    """What a contender says of itself, with the most memory it had."""
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True)
    peak = Peak(process.pid)
    with peak:
        output, _ = process.communicate(timeout=120)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command[:3])
    facts: dict[str, Any] = json.loads(output.strip().splitlines()[-1])
    return facts | {"anonymous_mib": peak.anonymous_mib, "resident_mib": peak.resident_mib}


class Peak:
    """The most memory of a process while the block runs, looked at twenty times a second."""

    def __init__(self, pid: int) -> None:
        self.anonymous_mib = self.resident_mib = 0.0
        self._path = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            try:
                lines = dict(line.split(":", 1) for line in self._path.read_text().splitlines())
                anonymous, resident = (int(lines[name].split()[0]) / 1024 for name in ("RssAnon", "VmHWM"))
            except (OSError, KeyError):
                return
            self.anonymous_mib = max(self.anonymous_mib, anonymous)
            self.resident_mib = max(self.resident_mib, resident)


def check(name: str, checkpoint: Checkpoint, target: Path, facts: dict[str, Any]) -> None:
    """Every byte is what it should be, or the benchmark ends."""
    told = facts.pop("checksums", None)
    if told is not None:
        right = told == checkpoint.tensors
    else:
        sizes = zip(checkpoint.names, checkpoint.sizes, strict=True)
        right = [checksum(target / each, size) for each, size in sizes] == checkpoint.checksums
    if not right:
        raise SystemExit(f"{name} brought other bytes than the store has")


# -- the shaped store -------------------------------------------------------------------------------------------------

SHAPED: dict[str, list[str]] = {
    "undisturbed": [],
    "slow tail": ["--slow-one-in", "50", "--slow-factor", "20"],
    "slow down": ["--requests-per-s", "5", "--for-s", "10"],
}


def run_shaped(rounds: int) -> dict[str, list[dict[str, float]]]:
    """This package on a store with 12 MB/s a connection and 20 ms to the first byte: as it is, and disturbed."""
    found: dict[str, list[dict[str, float]]] = {}
    with memory_directory() as work:
        checkpoint = write_checkpoint(work / "store", 0.8)
        for _ in range(min(rounds, 2)):
            for name, disturbance in SHAPED.items():
                target = made(work / "target")
                with running_store(checkpoint.root, connection="12MB/s", first_byte_ms=20, more=disturbance) as store:
                    spec = Spec(
                        store.endpoint, BUCKET, PREFIX, checkpoint.names, checkpoint.sizes, str(target), CONNECTIONS,
                        PART_BYTES, "", {},
                    )  # fmt: skip
                    python = [sys.executable, str(Path(__file__).with_name("contenders.py"))]
                    facts = measured([*python, "ours", json.dumps(asdict(spec))], environment(store.endpoint))
                    served = store.stats()
                facts |= {"requests": served["requests"], "sent_ratio": served["bytes_sent"] / checkpoint.size_bytes}
                check("ours", checkpoint, target, facts)
                found.setdefault(name, []).append(facts)
                shutil.rmtree(target)
    return found


# -- telling ----------------------------------------------------------------------------------------------------------


def summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Median, least and most of each figure."""
    return {
        name: {
            "median": round(statistics.median(run[name] for run in runs), 4),
            "min": round(min(run[name] for run in runs), 4),
            "max": round(max(run[name] for run in runs), 4),
            "n": len(runs),
        }
        for name in runs[0]
    }


def show(result: dict[str, Any], figures: Figures) -> None:
    """The tables: medians, and the median over the rounds of what the same round gave ours."""
    size_gb = result["bytes"] / 1e9
    print(f"\n{size_gb:.2f} GB, {SHARDS} shards, {CONNECTIONS} connections, parts of {PART_BYTES >> 20} MiB; medians")
    for scene, found in figures.items():
        if scene == "shaped":
            continue
        print(f"\n{scene:11} {'s':>7} {'(min–max)':>15} {'GB/s':>6} {'ours is':>8} {'CPU s/GB':>9} {'RAM MiB':>8}")
        for name, runs in found.items():
            seconds = [run["seconds"] for run in runs]
            middle = statistics.median(seconds)
            ratio = [one["seconds"] / own["seconds"] for one, own in zip(runs, found.get("ours", []), strict=False)]
            beside = f"{statistics.median(ratio):7.2f}x" if ratio else ""
            cpu = statistics.median(run["cpu_s"] for run in runs) / size_gb
            memory = statistics.median(run["anonymous_mib"] for run in runs)
            spread = f"{min(seconds):.2f}–{max(seconds):.2f}"
            print(f"{name:11} {middle:7.2f} {spread:>15} {size_gb / middle:6.2f} {beside:>8} {cpu:9.2f} {memory:8.0f}")
    if shaped := figures.get("shaped"):
        print(f"\n{'shaped':11} {'s':>7} {'requests':>9} {'bytes sent':>11}")
        for name, runs in shaped.items():
            middle, requests, sent = (
                statistics.median(run[key] for run in runs) for key in ("seconds", "requests", "sent_ratio")
            )
            print(f"{name:11} {middle:7.2f} {requests:9.0f} {sent:10.3f}x")
    print(f"\ntook {result['took_s']} s")


if __name__ == "__main__":
    sys.exit(main())
