"""Processes that a handler starts, and what they may not become."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.replicas import running_replica, until, write_module

CHILDREN = """
    import multiprocessing, os, subprocess, sys
    from adapter import coldstart_handler

    def sleep():
        import time
        time.sleep(300)

    @coldstart_handler
    def spawn(event):
        sleeper = [sys.executable, "-c", "import time; time.sleep(300)"]
        if event == "exit":
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            return os.waitpid(pid, 0)[1] >> 8
        if event == "return":
            return os.fork() and os.getpid()
        if event == "close":
            os.closerange(3, 1000)
            return "closed"
        forked = multiprocessing.get_context("fork").Process(target=sleep)
        forked.start()
        detached = subprocess.Popen(sleeper, start_new_session=True)
        return {"own": [forked.pid, subprocess.Popen(sleeper).pid], "detached": detached.pid}
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("how", ["sigterm", "kill -9 of the worker"])
def test_what_a_handler_started_ends_with_its_worker_unless_it_was_detached(tmp_path: Path, how: str) -> None:
    """S-36: own children end, detached ones are not hunted down."""
    write_module(tmp_path, "children", CHILDREN)
    with running_replica("children:spawn", tmp_path) as replica:
        replica.wait_ready()
        started = replica.post("spawn").json()
        assert all(alive(pid) for pid in (*started["own"], started["detached"]))
        if how == "sigterm":
            replica.kill("supervisor", signal.SIGTERM)
            replica.process.wait(5)
        else:
            replica.kill("worker")
        until(lambda: not any(alive(pid) for pid in started["own"]), within_s=2, what="the end of its own children")
        assert alive(started["detached"])
        if how != "sigterm":
            assert replica.post("exit").json() == 3  # and the next worker serves


def test_a_process_that_a_handler_forks_and_lets_return_is_no_second_worker(tmp_path: Path) -> None:
    write_module(tmp_path, "children", CHILDREN)
    with running_replica("children:spawn", tmp_path) as replica:
        replica.wait_ready()
        worker = replica.pid_of("worker")
        assert replica.post("exit", timeout_s=10).json() == 3
        assert replica.post("return", timeout_s=10).json() == worker
        assert replica.post("exit", timeout_s=10).json() == 3
        assert [name for _, name in replica.survivors()].count("cs-worker") == 1


def test_a_worker_whose_wire_user_code_closed_is_replaced(tmp_path: Path) -> None:
    write_module(tmp_path, "children", CHILDREN)
    with running_replica("children:spawn", tmp_path) as replica:
        replica.wait_ready()
        assert replica.post("close", timeout_s=20).status in (200, 502)
        assert replica.post("exit", timeout_s=20).json() == 3
