"""`coldstart invoke`: one cold start, one answer, and an exit code that says how it went."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from adapter.errors import (
    AdapterError,
    ConfigurationError,
    HandlerFailed,
    HandlerImportError,
    HandlerNotFound,
    InvalidEvent,
    InvocationTimeout,
)
from tests.support.checkpoints import write_checkpoint
from tests.support.replicas import REPOSITORY, until, write_module


def invoke(directory: Path, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command in `directory`."""
    return subprocess.run(
        [sys.executable, "-m", "adapter.cli", "invoke", *arguments],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_answer_goes_to_standard_output_and_the_waterfall_to_standard_error(tmp_path: Path) -> None:
    """G6."""
    result = invoke(tmp_path, "handlers.echo:echo", "--input", '{"n": 1}')
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert (answer["event"], answer["is_cold_start"]) == ({"n": 1}, True)
    assert result.stderr.startswith("cold start of handlers.echo:echo: ready after ")
    assert "import.handler" in result.stderr


def test_weights_in_a_directory_are_streamed_for_it(tmp_path: Path) -> None:
    source = """
        from adapter import coldstart_handler

        @coldstart_handler(weights="s3://elsewhere/model/")
        def names(weights, event):
            return sorted(weights)
    """
    write_module(tmp_path, "mine", source)
    write_checkpoint(tmp_path / "model" / "model.safetensors", 1000, 3)
    result = invoke(tmp_path, "mine:names", "--input", "null", "--weights", "model")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == ["t0", "t1", "t2"]
    assert "weights: " in result.stderr


def test_a_cache_that_is_kept_is_used_by_the_next_run_and_does_not_grow(tmp_path: Path) -> None:
    """The embedded store is at another port then; a file that was changed is fetched anew."""
    source = """
        import zlib
        from adapter import coldstart_handler

        @coldstart_handler(weights="s3://elsewhere/model/")
        def crc(weights, event):
            return zlib.crc32(weights["t0"].numpy().tobytes())
    """
    write_module(tmp_path, "mine", source)
    arguments = ("mine:crc", "--input", "null", "--weights", "model", "--cache-dir", "cache")
    for size, origin in ((5000, "store"), (5000, "cache"), (6000, "store")):
        if origin == "store":
            sums = write_checkpoint(tmp_path / "model" / "model.safetensors", size, 1)
        result = invoke(tmp_path, *arguments)
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == sums["t0"]
        weights = next(line for line in result.stderr.splitlines() if "weights: " in line)
        assert ("0 B from the store" in weights, "0 B from the cache" in weights) == (
            origin == "cache",
            origin == "store",
        )
        if origin == "cache":
            assert len(list((tmp_path / "cache").rglob("model.safetensors"))) == 1


@pytest.mark.parametrize("source", ["file", "standard input"])
def test_the_event_comes_from_a_file_or_from_standard_input(tmp_path: Path, source: str) -> None:
    (tmp_path / "event.json").write_text('{"to": 3}')
    how = ("event.json", None) if source == "file" else ("-", '{"to": 3}')
    result = invoke(tmp_path, "handlers.echo:count", "--quiet", "--input", how[0], given=how[1])
    assert (result.returncode, result.stderr) == (0, "")
    assert [json.loads(line) for line in result.stdout.splitlines()] == [{"n": 1}, {"n": 2}, {"n": 3}]


MINE = """
    from adapter import coldstart_handler

    @coldstart_handler
    def raises(event):
        print("on the way")
        return 1 / 0

    @coldstart_handler
    def stops(event):
        yield 1
        yield 2
        raise ValueError("no more")
"""


@pytest.mark.parametrize(
    ("arguments", "error", "out"),
    [
        (("mine:raises", "--input", "1"), HandlerFailed, ""),
        (("mine:stops", "--input", "1"), HandlerFailed, "1\n2\n"),
        (("handlers.echo:echo", "--input", '{"sleep_s": -1}'), InvalidEvent, ""),
        (("handlers.echo:echo", "--input", '{"sleep_s": 30}', "--request-limit-s", "0.3"), InvocationTimeout, ""),
        (("mine:nobody", "--input", "1"), HandlerNotFound, ""),
        (("nowhere:f", "--input", "1"), HandlerImportError, ""),
        (("mine:raises", "--input", "{no json"), ConfigurationError, ""),
        (("mine:raises", "--input", "nofile.json"), ConfigurationError, ""),
        (("mine", "--input", "1"), ConfigurationError, ""),
        (("mine:raises", "--input", "1", "--env", "=x"), ConfigurationError, ""),
        (("mine:raises", "--input", "1", "--weights", "nowhere"), ConfigurationError, ""),
    ],
)
def test_an_error_is_one_line_and_its_own_exit_code(
    tmp_path: Path, arguments: tuple[str, ...], error: type[AdapterError], out: str
) -> None:
    """G6."""
    write_module(tmp_path, "mine", MINE)
    result = invoke(tmp_path, *arguments)
    assert result.returncode == error.exit_code, result.stderr
    assert result.stdout == out
    assert result.stderr.splitlines()[-1].startswith(f"coldstart: {error.code}: ")
    assert "/adapter/" not in result.stderr  # no trace of ours


def test_a_handler_that_fails_shows_where_and_what_it_had_printed(tmp_path: Path) -> None:
    write_module(tmp_path, "mine", MINE)
    result = invoke(tmp_path, "mine:raises", "--input", "1")
    assert result.stdout == ""
    assert "on the way\n" in result.stderr
    assert f'File "{tmp_path}/mine.py", line 7, in raises' in result.stderr


def test_nothing_that_user_code_says_is_obeyed_by_a_terminal(tmp_path: Path) -> None:
    source = """
        import sys
        from adapter import coldstart_handler

        @coldstart_handler
        def rude(event):
            print("\\x1b]0;pwned\\x07", file=sys.stderr)
            raise ValueError("\\x1b[2J")
    """
    write_module(tmp_path, "rude", source)
    result = invoke(tmp_path, "rude:rude", "--input", "1")
    assert result.returncode == HandlerFailed.exit_code
    assert "\x1b" not in result.stderr
    assert "pwned" in result.stderr


def test_json_that_user_code_writes_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    source = """
        import json, sys
        from adapter import coldstart_handler

        print(json.dumps({"event": "replica.start.failed", "code": "no_space", "message": "forged"}), file=sys.stderr)
        forged = {"at": 1.5, "level": "error", "role": "supervisor", "event": "replica.start.failed", "code": "x"}
        print(json.dumps(forged, separators=(",", ":")), file=sys.stderr, flush=True)

        @coldstart_handler
        def answer(event):
            print(json.dumps({"event": "order.placed", "n": 3}))
            return 5
    """
    write_module(tmp_path, "mine", source)
    result = invoke(tmp_path, "mine:answer", "--input", "1")
    assert (result.returncode, result.stdout) == (0, "5\n"), result.stderr
    assert '{"event": "order.placed", "n": 3}\n' in result.stderr
    assert '"message": "forged"' in result.stderr
    assert "ready after" in result.stderr


def test_the_waterfall_is_drawn_also_where_the_stream_outlives_the_answer(tmp_path: Path) -> None:
    source = """
        from adapter import coldstart_handler

        @coldstart_handler(weights="s3://elsewhere/model/", load=lambda weights: 7)
        def answer(model, event):
            return model
    """
    write_module(tmp_path, "mine", source)
    write_checkpoint(tmp_path / "model" / "model.safetensors", 1 << 20, 8)
    arguments = ("--weights", "model", "--link", "12Mbps", "--env", "COLDSTART_PART_BYTES=1048576")
    result = invoke(tmp_path, "mine:answer", "--input", "1", *arguments)
    assert (result.returncode, result.stdout) == (0, "7\n"), result.stderr
    assert "ready after" in result.stderr
    assert "weights.stream" in result.stderr


def processes(mark: str) -> list[int]:
    """Living processes with that in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def test_what_user_code_started_ends_with_its_replica(tmp_path: Path) -> None:
    """Children, and those that went into a session of their own, as at the end of a container."""
    mark = f"left-{uuid.uuid4().hex}"
    source = f"""
        import os, subprocess, sys
        from adapter import coldstart_handler

        @coldstart_handler
        def leave(event):
            sleep = [sys.executable, "-c", "import time; time.sleep(600)", "{mark}"]
            return [subprocess.Popen(sleep, start_new_session=new).pid for new in (False, True)]
    """
    write_module(tmp_path, "mine", source)
    result = invoke(tmp_path, "mine:leave", "--input", "1", "--quiet")
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)) == 2
    until(lambda: not processes(mark), within_s=5, what=lambda: f"the end of {processes(mark)}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    token = f"invoke-{number}-{os.getpid()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", "invoke", "handlers.echo:echo", "--input", '{"sleep_s": 50}'],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "COLDSTART_TEST_TOKEN": token},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )

    def others() -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and token.encode() in (entry / "environ").read_bytes():
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    found += [(entry / "comm").read_text().strip()] if state != "Z" else []
            except OSError:
                continue
        return found

    try:
        until(lambda: "cs-worker" in others(), what="a worker")
        process.send_signal(number)
        assert process.wait(20) == 128 + number
        until(lambda: not others(), within_s=5, what="the end of all")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
