"""The demo as its reader runs it: to its end, and cut short."""

from __future__ import annotations

import contextlib
import json
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


def _start(temporary: Path, directory: Path, *arguments: str) -> subprocess.Popen[str]:
    minilm_directory()
    return subprocess.Popen(
        [sys.executable, ROOT / "scripts" / "demo.py", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=directory,
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


def test_it_ends_by_itself_with_every_start_shown_and_leaves_the_page_alone(temporary: Path, tmp_path: Path) -> None:
    """A1."""
    demo = _start(temporary, tmp_path)
    said, errors = demo.communicate(timeout=110)
    assert demo.returncode == 0, said + errors
    for part in (
        "1. Cold start",
        "2. Warm calls",
        "3. The worker dies",
        "4. Nobody calls",
        "5. Second start",
        "What each start was made of",
    ):
        assert part in said
    assert said.count("critical path") == 3
    assert "r1 was ended for being idle, exit code 0; 0 replicas" in said
    assert "Every start gave the same answer; only the first read weights from the store." in said
    assert _left(temporary) == []
    out = tmp_path / ".demo"
    assert f"Side by side, in a browser: {out / 'starts.html'}" in said
    assert sorted(path.name for path in tmp_path.rglob("*")) == [".demo", "starts.html", "starts.jsonl"]
    page = (out / "starts.html").read_text()
    assert [f"<h2>{name}</h2>" in page for name in ("Cold start", "Second start")] == [True, True]
    reports = [json.loads(line) for line in (out / "starts.jsonl").read_text().splitlines()]
    assert [report["kind"] for report in reports] == ["cold", "recovery", "cold"]
    assert reports[0]["transfer"]["store_bytes"] == reports[2]["transfer"]["cache_bytes"] > 0
    assert reports[2]["transfer"]["store_bytes"] == 0


@pytest.mark.parametrize(
    ("until", "number"),
    [("1. Cold start", signal.SIGINT), ("importing", signal.SIGINT), ("kill -9", signal.SIGTERM)],
)
def test_cut_short_it_leaves_nothing(temporary: Path, tmp_path: Path, until: str, number: signal.Signals) -> None:
    demo = _start(temporary, tmp_path)
    _read_until(demo, until)
    demo.send_signal(number)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 128 + number, errors
    assert "ended by a signal" in errors
    assert _left(temporary) == []
    assert list(tmp_path.iterdir()) == []


def test_killed_it_leaves_no_process(temporary: Path, tmp_path: Path) -> None:
    demo = _start(temporary, tmp_path)
    _read_until(demo, "importing")
    demo.kill()
    demo.communicate(timeout=60)
    deadline = time.monotonic() + 10
    while left := [name for name in _left(temporary) if name.isdigit()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_place_that_cannot_be_written_is_named_before_anything_is_started(temporary: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    demo = _start(temporary, tmp_path, "--out", "file/page")
    said, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert said == ""
    assert errors.startswith("demo: failed: ")
    assert str(tmp_path / "file" / "page") in errors
    assert _left(temporary) == []


def test_a_start_that_fails_is_told_with_its_reason(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizers.py").write_text("raise RuntimeError('built for another machine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    demo = _start(temporary, tmp_path)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert errors.startswith("demo: failed: the answer is 503: handler.import: ")
    assert "built for another machine" in errors
    assert _left(temporary) == []


def test_a_platform_that_dies_ends_the_demo_with_the_reason(temporary: Path, tmp_path: Path) -> None:
    demo = _start(temporary, tmp_path)
    _read_until(demo, "importing")
    for pid in _left(temporary):
        if pid.isdigit() and b"\0emulate\0" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(int(pid), signal.SIGKILL)
    _, errors = demo.communicate(timeout=60)
    assert demo.returncode == 1
    assert errors.startswith("demo: failed: ")
    assert "emulate" in errors or "platform" in errors
    assert _left(temporary) == []
