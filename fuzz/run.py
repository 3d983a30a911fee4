"""Fuzz the parsers of what comes from outside: `python fuzz/run.py --seconds 60`.

Each target runs in a process of its own under atheris, which is guided by coverage; where atheris is not installed,
random mutation of the seeds takes its place. A finding ends the run with status 1 and the path of the input.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a program, not a package: the project's root is found from here

TARGETS = ("fuzz_header", "fuzz_index")
FINDINGS = ROOT / "fuzz" / "findings"
MEMORY_LIMIT_MB = 2048
INPUT_LIMIT_BYTES = 4096
HANG_S = 20


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the parsers of headers and indexes.")
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--target", choices=TARGETS, help="one target only, in this very process")
    parser.add_argument("--driver", choices=("auto", "atheris", "random"), default="auto")
    asked = parser.parse_args(arguments)
    driver: str = asked.driver
    if driver == "auto":
        driver = "atheris" if importlib.util.find_spec("atheris") else "random"
    if asked.target is not None:
        return _atheris(asked.target, asked.seconds) if driver == "atheris" else _random(asked.target, asked.seconds)
    failed = []
    for target in TARGETS:
        print(f"{target}: {asked.seconds} s with the {driver} driver", flush=True)
        own = ["--target", target, "--seconds", str(asked.seconds), "--driver", driver]
        if subprocess.run([sys.executable, __file__, *own], cwd=ROOT, check=False).returncode:
            failed.append(target)
    print(f"failed: {', '.join(failed)}; inputs are in {FINDINGS}" if failed else "no findings", flush=True)
    return 1 if failed else 0


def _atheris(target: str, seconds: int) -> int:
    import atheris

    # safetensors comes before the instrumentation: its torch-free core is native and not ours to cover.
    importlib.import_module("safetensors")
    # atheris has no stubs and fills its module at run time
    instrument = atheris.instrument_imports  # pyright: ignore[reportAttributeAccessIssue]
    with instrument(include=["adapter.checkpoint", "fuzz_header", "fuzz_index"]):
        module = importlib.import_module(target)
    FINDINGS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        corpus = Path(directory, "corpus")
        corpus.mkdir()
        for number, seed in enumerate(module.SEEDS):
            Path(corpus, f"seed-{number:03}").write_bytes(seed)
        words = Path(directory, "words")
        words.write_text("".join(f'"{word.encode("unicode_escape").decode()}"\n' for word in module.DICTIONARY))
        options = [
            f"-max_total_time={seconds}",
            f"-dict={words}",
            f"-max_len={INPUT_LIMIT_BYTES}",
            f"-rss_limit_mb={MEMORY_LIMIT_MB}",
            f"-timeout={HANG_S}",
            f"-artifact_prefix={FINDINGS}/{target}-",
            "-print_final_stats=1",
            "-verbosity=0",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus)], module.check)
        atheris.Fuzz()  # ends the process by itself, with a status of its own on a finding
    return 0


def _random(target: str, seconds: int) -> int:
    module = importlib.import_module(target)
    check: Callable[[bytes], None] = module.check
    seeds: list[bytes] = list(module.SEEDS)
    words = [word.encode() for word in module.DICTIONARY]
    source = random.Random(0)
    end = time.monotonic() + seconds
    runs = 0
    while time.monotonic() < end:
        data = _mutated(source, seeds, words)
        runs += 1
        try:
            check(data)
        except BaseException as error:
            FINDINGS.mkdir(exist_ok=True)
            found = FINDINGS / f"{target}-crash-{runs}"
            found.write_bytes(data)
            print(f"{target}: {type(error).__name__}: {error}\n{target}: input in {found}", flush=True)
            return 1
    print(f"{target}: {runs} inputs", flush=True)
    return 0


def _mutated(source: random.Random, seeds: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    data = bytearray(source.choice(seeds))
    for _ in range(source.randrange(1, 6)):
        at = source.randrange(len(data) + 1)
        removed = source.choice((0, 0, 1, 1, 2, 8))
        added = source.choice((b"", source.choice(words), source.randbytes(source.randrange(1, 4))))
        other = source.choice(seeds)
        if source.randrange(8) == 0:  # a piece of another seed
            cut = source.randrange(len(other) + 1)
            added = other[cut : cut + 40]
        data[at : at + removed] = added
    return bytes(data[:INPUT_LIMIT_BYTES])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
