"""The front's life: workers that die, drains, and a front that is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from adapter.runtime.link import Frame
from tests.support.fake_worker import FakeWorker, hold
from tests.support.front_process import FrontProcess

FORKING_WORKER = """
import os, socket, sys, time
from adapter.runtime.link import Frame
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
if os.fork() == 0:  # as a data loader does: it keeps the wire open
    time.sleep(60)
link.sendall(Frame("hello", {"pid": os.getpid()}).encode() + Frame("ready", {"concurrency": 1}).encode())
time.sleep(60)
"""

ANSWERING_WORKER = """
import os, sys, threading
from pathlib import Path
from tests.support.fake_worker import FakeWorker
def answer(worker, invoke):
    worker.result(invoke.head["id"], b"%d" % os.getpid())
FakeWorker(Path(sys.argv[1]).parent, answer).ready()
threading.Event().wait()
"""


def test_a_worker_that_dies_is_an_error_for_its_callers_and_a_wait_for_the_others(run_dir: Path) -> None:
    """S-02 of the link: the front outlives the worker, and the next worker serves what waited."""
    with FrontProcess(run_dir) as front, ThreadPoolExecutor() as pool:
        first = FakeWorker(run_dir, hold).ready()
        front.wait_status("ready")
        held = pool.submit(front.client.post, "/", content=b"1")
        first.wait_invoked(1)
        waiting = pool.submit(front.client.post, "/", content=b"2")
        first.die()
        answer = held.result()
        assert (answer.status_code, answer.json()["error"]["type"]) == (502, "WorkerDied")
        assert answer.json()["error"]["retryable"] is True
        assert front.client.get("/health/ready").json()["phase"] == "recovering"
        with FakeWorker(run_dir).ready():
            answer = waiting.result()
            assert (answer.content, answer.headers["x-coldstart"]) == (b"2", "cold")
            assert "coldstart_workers_lost_total 1.0" in front.client.get("/metrics").text


def test_a_killed_worker_is_noticed_though_a_child_of_it_keeps_the_wire_open(run_dir: Path) -> None:
    with FrontProcess(run_dir) as front, ThreadPoolExecutor() as pool:
        front.wait_status("listening")
        worker = subprocess.Popen(
            [sys.executable, "-c", FORKING_WORKER, str(run_dir / "front.sock")], start_new_session=True
        )
        try:
            front.wait_status("ready")
            call = pool.submit(front.client.post, "/", content=b"1")
            while "coldstart_running 1.0" not in front.client.get("/metrics").text:
                pass
            worker.kill()
            worker.wait()
            assert call.result().json()["error"]["code"] == "worker_died"
        finally:
            os.killpg(worker.pid, signal.SIGKILL)


def test_a_second_worker_waits_until_the_first_has_ended(run_dir: Path) -> None:
    with FrontProcess(run_dir) as front:
        front.wait_status("listening")
        first, second = (
            subprocess.Popen([sys.executable, "-c", ANSWERING_WORKER, run_dir / "front.sock"]) for _ in "12"
        )
        try:
            front.wait_status("ready")
            served = {front.client.post("/", content=b"1").json() for _ in range(20)}
            assert len(served) == 1
            (seated,) = served
            loser = second if seated == first.pid else first
            os.kill(seated, signal.SIGKILL)
            front.wait_status("ready")
            assert front.client.post("/", content=b"1").json() == loser.pid
        finally:
            for worker in (first, second):
                worker.kill()
                worker.wait()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 2,
        Frame("ready", {}).encode(),
        Frame("hello", {}).encode() + Frame("ready", {"concurrency": 0}).encode(),
        Frame("hello", {}).encode() + Frame("result", {"id": 7}).encode(),
        Frame("hello", {}).encode() + Frame("song", {"id": "x"}).encode(),
    ],
)
def test_nonsense_on_the_wire_ends_that_wire_only(run_dir: Path, nonsense: bytes) -> None:
    with FrontProcess(run_dir) as front:
        front.wait_status("listening")
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(run_dir / "front.sock"))
            link.sendall(nonsense)
            link.settimeout(10)
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(1) == b""
        with FakeWorker(run_dir).ready():
            assert front.client.post("/", content=b"1").content == b"1"


def test_an_idle_front_ends_when_told(run_dir: Path) -> None:
    """S-34: children end too; a keep-alive connection does not hold it up."""
    with FrontProcess(run_dir) as front, FakeWorker(run_dir).ready(), httpx.Client(base_url=front.url) as client:
        front.wait_status("ready")
        client.post("/", content=b"1")
        front.terminate()
        assert front.wait() == 0


def test_a_drain_finishes_what_was_accepted_and_takes_no_more(run_dir: Path) -> None:
    """S-34: no new work, finish if grace allows, readiness drops at once."""
    with (
        FrontProcess(run_dir, grace_s=20) as front,
        FakeWorker(run_dir, hold).ready() as worker,
        ThreadPoolExecutor() as pool,
    ):
        front.wait_status("ready")
        calls = [pool.submit(front.client.post, "/", content=b"%d" % n) for n in range(2)]
        worker.wait_invoked(1)
        wait_for(front, "coldstart_queue_length 1.0")
        front.terminate()
        wait_for(front, 'coldstart_phase{phase="draining"} 1.0')
        assert front.client.get("/health/ready").status_code == 503
        assert front.client.get("/health/live").status_code == 200
        refused = front.client.post("/", content=b"3")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "Draining")
        for count in (1, 2):
            invoke = worker.wait_invoked(count)[-1]
            worker.result(invoke.head["id"], invoke.body)
        assert sorted(call.result().content for call in calls) == [b"0", b"1"]
        assert front.wait() == 0


def test_a_drain_that_outlasts_its_grace_tells_the_caller(run_dir: Path) -> None:
    """S-34: else report it as interrupted."""
    with (
        FrontProcess(run_dir, grace_s=0.1) as front,
        FakeWorker(run_dir, hold).ready() as worker,
        ThreadPoolExecutor() as pool,
    ):
        front.wait_status("ready")
        call = pool.submit(front.client.post, "/", content=b"1")
        worker.wait_invoked(1)
        front.terminate()
        answer = call.result()
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Draining")
        assert "interrupted" in answer.json()["error"]["message"]
        assert worker.wait_cancelled(1)[0].head["reason"] == "drain"
        assert front.wait() == 0


def test_a_drain_waits_for_callers_that_read_slowly(run_dir: Path) -> None:
    """S-34: a job that is done is not lost on its last stretch; meanwhile new callers are told, not left waiting."""
    size = 30_000_000
    with (
        FrontProcess(run_dir, grace_s=20) as front,
        FakeWorker(run_dir, lambda worker, invoke: worker.result(invoke.head["id"], b"1" * size)).ready(),
        front.client.stream("POST", "/", content=b"1") as answer,
    ):
        front.terminate()
        wait_for(front, 'coldstart_phase{phase="draining"} 1.0')
        assert front.client.post("/", content=b"2").json()["error"]["type"] == "Draining"
        assert sum(map(len, answer.iter_bytes())) == size
        assert front.wait() == 0


def test_a_caller_that_reads_nothing_does_not_outlast_the_grace(run_dir: Path) -> None:
    with (
        FrontProcess(run_dir, grace_s=0.2) as front,
        FakeWorker(run_dir, lambda worker, invoke: worker.result(invoke.head["id"], b"1" * 30_000_000)).ready(),
        front.client.stream("POST", "/", content=b"1") as answer,
    ):
        front.terminate()
        assert front.wait() == 0
        with pytest.raises(httpx.TransportError):
            answer.read()


def test_a_second_signal_ends_the_grace(run_dir: Path) -> None:
    """S-34: two SIGTERMs."""
    with (
        FrontProcess(run_dir, grace_s=60) as front,
        FakeWorker(run_dir, hold).ready() as worker,
        ThreadPoolExecutor() as pool,
    ):
        front.wait_status("ready")
        call = pool.submit(front.client.post, "/", content=b"1")
        worker.wait_invoked(1)
        front.terminate()
        wait_for(front, 'coldstart_phase{phase="draining"} 1.0')
        front.terminate()
        assert call.result().status_code == 503
        assert front.wait() == 0


def test_a_drain_during_the_start_answers_who_waits_at_once(run_dir: Path) -> None:
    """S-34: SIGTERM during init stops within a second or two."""
    with FrontProcess(run_dir, grace_s=60) as front, ThreadPoolExecutor() as pool:
        front.wait_status("listening")
        call = pool.submit(front.client.post, "/", content=b"1")
        wait_for(front, "coldstart_queue_length 1.0")
        front.terminate()
        assert call.result().json()["error"]["type"] == "Draining"
        assert front.wait() == 0


def test_a_worker_that_dies_in_a_drain_leaves_nobody_waiting(run_dir: Path) -> None:
    with (
        FrontProcess(run_dir, grace_s=60) as front,
        FakeWorker(run_dir, hold).ready() as worker,
        ThreadPoolExecutor() as pool,
    ):
        front.wait_status("ready")
        held = pool.submit(front.client.post, "/", content=b"1")
        worker.wait_invoked(1)
        waiting = pool.submit(front.client.post, "/", content=b"2")
        wait_for(front, "coldstart_queue_length 1.0")
        front.terminate()
        wait_for(front, 'coldstart_phase{phase="draining"} 1.0')
        worker.die()
        assert held.result().json()["error"]["type"] == "WorkerDied"
        assert waiting.result().json()["error"]["type"] == "Draining"
        assert front.wait() == 0


def test_a_replaced_front_finds_the_worker_again(run_dir: Path) -> None:
    with FrontProcess(run_dir) as first, FakeWorker(run_dir).ready():
        first.wait_status("ready")
        (run_dir / "ready").touch()
        first.process.kill()
        first.process.wait()
        with FrontProcess(run_dir) as second:
            assert second.wait_status("ready")["name"] == "fake"
            answer = second.client.post("/", content=b"1")
            assert (answer.content, answer.headers["x-coldstart"]) == (b"1", "warm")


def test_liveness_answers_all_along_a_handler_that_blocks(run_dir: Path) -> None:
    """A9: within a second every time, probed through a start and a call that takes long."""
    with FrontProcess(run_dir) as front, ThreadPoolExecutor() as pool:
        front.wait_status("listening")
        call = pool.submit(front.client.post, "/", content=b"1")
        with httpx.Client(base_url=front.url, timeout=1) as client:
            for _ in range(20):
                assert client.get("/health/live").status_code == 200
            with FakeWorker(run_dir, hold).ready() as worker:
                invoke = worker.wait_invoked(1)[0]
                for _ in range(20):
                    assert client.get("/health/live").status_code == 200
                    assert client.get("/health/ready").status_code == 200
                worker.result(invoke.head["id"], json.dumps(1).encode())
                assert call.result().content == b"1"


def wait_for(front: FrontProcess, line: str) -> None:
    until = time.monotonic() + 10
    while line not in front.client.get("/metrics").text:
        assert time.monotonic() < until, line
