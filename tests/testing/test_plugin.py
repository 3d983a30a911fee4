"""The plugin inside a pytest of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.replicas import write_module

HEAVY = ("torch", "numpy", "boto3", "botocore", "safetensors", "asyncio", "ssl", "starlette", "uvicorn", "tenacity")


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def test_pytest_has_the_fixture_and_loads_next_to_nothing_for_it(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "test_modules",
        """
        import json, sys

        def test_modules(emulator):
            print(json.dumps(sorted(sys.modules)))
        """,
    )
    with_it = run_pytest(tmp_path, "-s")
    without = run_pytest(tmp_path, "-s", "-p", "no:coldstart")
    loaded = _printed(with_it.stdout)
    assert with_it.returncode == 0, with_it.stdout
    assert without.returncode == 1, "without the plugin there is no such fixture"
    rooms = {name.split(".")[1] for name in loaded if name.startswith("adapter.")}
    assert rooms <= {"errors", "init_report", "storage", "testing", "timeline"}
    # other plugins of this environment may load what they like: ours is looked at alone
    program = (
        "import pytest, sys; before = set(sys.modules); import adapter.testing.plugin\n"
        "print(*sorted({name.split('.')[0] for name in set(sys.modules) - before}))"
    )
    alone = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not set(alone.stdout.split()) & set(HEAVY)


def _printed(output: str) -> set[str]:
    return set(json.loads(next(line for line in output.splitlines() if line.startswith("["))))


def test_a_test_that_fails_shows_what_was_said_and_leaves_nothing(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "said_handler",
        """
        import sys
        from adapter import coldstart_handler

        @coldstart_handler
        def say(event):
            print(event, file=sys.stderr)
        """,
    )
    write_module(
        tmp_path,
        "test_said",
        """
        import json
        import pathlib

        def test_fails(emulator):
            one, other = emulator("said_handler:say"), emulator("said_handler:say")
            for run in (one, other):
                assert run.invoke("words of the handler").status == 200
            pids = [replica.pid for run in (one, other) for replica in run.replicas()]
            pathlib.Path("pids").write_text(json.dumps(pids))
            assert False, "on purpose"
        """,
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "on purpose" in done.stdout
    assert done.stdout.count("words of the handler") >= 2
    pids = json.loads((tmp_path / "pids").read_text())
    assert len(pids) == 2
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_test_that_fails_shows_what_a_platform_of_several_tests_has_said(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "said_handler",
        """
        import sys
        from adapter import coldstart_handler

        @coldstart_handler
        def say(event):
            print(event * 2, file=sys.stderr)
        """,
    )
    write_module(
        tmp_path,
        "test_shared",
        """
        import pytest
        from adapter.testing import Emulator

        @pytest.fixture(scope="module")
        def run():
            with Emulator("said_handler:say") as run:
                yield run

        def test_passes(run):
            assert run.invoke("good").status == 200

        def test_fails(run):
            assert run.invoke("bad").status == 500
        """,
    )
    done = run_pytest(tmp_path)
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert done.stdout.count("- coldstart emulate said_handler:say -") == 1
    assert "badbad" in done.stdout
