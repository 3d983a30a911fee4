"""The demo as its reader runs it: to its end, and cut short."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.minilm import minilm_directory

ROOT = Path(__file__).parents[2]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A short path: sockets are made below it."""
    with tempfile.TemporaryDirectory(prefix="cs") as directory:
        yield Path(directory)


def _start(temporary: Path) -> subprocess.Popen[str]:
    minilm_directory()
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "demo.py"],
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _read_until(demo: subprocess.Popen[str], wanted: str) -> None:
    assert demo.stdout is not None
    if not any(wanted in line for line in demo.stdout):
        pytest.fail(f"the demo ended without a line with {wanted!r}: {demo.communicate()[1]}")


def _left(temporary: Path) -> list[str]:
    """Processes that were given a path below the directory, and files in it."""
    found = [str(path) for path in temporary.iterdir()]
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(temporary).encode() in environ.read_bytes():
                found.append(environ.parent.name)
    return found


def test_it_ends_by_itself_with_every_start_shown_and_leaves_nothing(temporary: Path) -> None:
    """A1."""
    demo = _start(temporary)
    said, errors = demo.communicate(timeout=110)
    assert demo.returncode == 0, said + errors
    for part in (
        "1. Cold start",
        "2. Warm calls",
        "3. The worker dies",
        "4. Second start",
        "What each start was made of",
    ):
        assert part in said
    assert said.count("critical path") == 3
    assert "Every start gave the same answer." in said
    assert _left(temporary) == []


@pytest.mark.parametrize(
    ("until", "number"), [("1. Cold start", signal.SIGINT), ("importing", signal.SIGINT), ("ready", signal.SIGTERM)]
)
def test_cut_short_it_leaves_nothing(temporary: Path, until: str, number: signal.Signals) -> None:
    demo = _start(temporary)
    _read_until(demo, until)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number, errors
    assert "ended by a signal" in errors
    assert _left(temporary) == []


def test_killed_it_leaves_no_process(temporary: Path) -> None:
    demo = _start(temporary)
    _read_until(demo, "importing")
    demo.kill()
    demo.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while left := [name for name in _left(temporary) if name.isdigit()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
