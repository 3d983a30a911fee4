"""A7: signals and deaths. Nothing survives, nobody waits for nothing."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.replicas import REPOSITORY, Answer, Replica, running_replica, until, write_module
from tests.support.stores import running_store

SLEEPER = """
    import os, time
    from adapter import coldstart_handler

    @coldstart_handler
    def sleep(event):
        open("running", "w").close()
        time.sleep(event["s"])
        return {"slept": event["s"], "pid": os.getpid()}
"""


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Replica]:
    write_module(tmp_path, "sleeper", SLEEPER)
    with running_replica("sleeper:sleep", tmp_path) as replica:
        replica.wait_ready()
        yield replica


def call_in_thread(replica: Replica, event: object, directory: Path) -> tuple[threading.Thread, list[Answer]]:
    """A call under way; its answer comes into the list, or none where the connection breaks."""
    answers: list[Answer] = []

    def call() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answers.append(replica.post(event))

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: (directory / "running").exists(), what="the handler's begin")
    return thread, answers


def ends_within(replica: Replica, seconds: float) -> int:
    begun = time.monotonic()
    code = replica.end(seconds)
    assert time.monotonic() - begun <= seconds
    return code


def test_sigterm_in_a_long_import_ends_within_2_s(tmp_path: Path) -> None:
    write_module(tmp_path, "slow", "open('importing', 'w').close()\nimport time\ntime.sleep(60)\n")
    with running_replica("slow:x", tmp_path) as replica:
        until(lambda: (tmp_path / "importing").exists())
        replica.kill("supervisor", signal.SIGTERM)
        assert ends_within(replica, 2) == 143


def test_sigterm_that_an_import_ignores_ends_within_2_s(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "slow",
        """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        open('importing', 'w').close()
        time.sleep(60)
        """,
    )
    with running_replica("slow:x", tmp_path) as replica:
        until(lambda: (tmp_path / "importing").exists())
        replica.kill("supervisor", signal.SIGTERM)
        assert ends_within(replica, 2) == 143


def test_sigint_in_load_ends_within_2_s(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "slow",
        """
        import time
        from adapter import coldstart_handler
        def load():
            open('loading', 'w').close()
            time.sleep(60)
        @coldstart_handler(load=load)
        def answer(model, event):
            return 1
        """,
    )
    with running_replica("slow:answer", tmp_path) as replica:
        until(lambda: (tmp_path / "loading").exists())
        replica.kill("supervisor", signal.SIGINT)
        assert ends_within(replica, 2) == 130


def test_sigterm_in_a_download_ends_within_2_s_and_publishes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / "models" / "m").mkdir(parents=True)
    save_file({"w": torch.zeros(8 << 20)}, root / "models" / "m" / "model.safetensors")
    write_module(
        tmp_path,
        "model",
        """
        from adapter import coldstart_handler
        @coldstart_handler(weights="s3://models/m/")
        def total(weights, event):
            return weights["w"].sum().item()
        total.warm_up({})
        """,
    )
    with (
        running_store(root, link="40Mbps") as store,
        running_replica("model:total", tmp_path, environment=store.environment) as replica,
    ):
        until(lambda: store.bytes_sent() > 1 << 20, what="a part of the download")
        replica.kill("supervisor", signal.SIGTERM)
        assert ends_within(replica, 2) == 143
        assert not list((tmp_path / "cache").rglob("model.safetensors"))


def test_sigterm_lets_an_invocation_finish_within_the_grace(sleeper: Replica, tmp_path: Path) -> None:
    thread, answers = call_in_thread(sleeper, {"s": 1.5}, tmp_path)
    sleeper.kill("supervisor", signal.SIGTERM)
    assert ends_within(sleeper, 4) == 0
    thread.join(5)
    assert answers[0].status == 200
    assert answers[0].json()["slept"] == 1.5


def test_a_caller_gets_a_clear_error_when_the_grace_is_over(tmp_path: Path) -> None:
    write_module(tmp_path, "sleeper", SLEEPER)
    with running_replica("sleeper:sleep", tmp_path, "--grace-s", "0.5") as replica:
        replica.wait_ready()
        thread, answers = call_in_thread(replica, {"s": 30}, tmp_path)
        replica.kill("supervisor", signal.SIGTERM)
        ends_within(replica, 4)
        thread.join(5)
        assert answers[0].status >= 499
        assert "code" in answers[0].json()["error"]


def test_idle_sigterm_ends_at_once(sleeper: Replica) -> None:
    sleeper.kill("supervisor", signal.SIGTERM)
    assert ends_within(sleeper, 2) == 0


def test_kill_9_of_the_supervisor_leaves_no_process(sleeper: Replica, tmp_path: Path) -> None:
    thread, _ = call_in_thread(sleeper, {"s": 30}, tmp_path)
    sleeper.kill("supervisor")
    sleeper.process.wait()
    until(lambda: not sleeper.survivors(), within_s=2, what="the end of every process")
    thread.join(5)


def test_kill_9_of_the_worker_tells_its_callers_and_the_next_is_answered(sleeper: Replica, tmp_path: Path) -> None:
    thread, answers = call_in_thread(sleeper, {"s": 30}, tmp_path)
    dead = sleeper.kill("worker")
    thread.join(3)
    assert answers[0].status == 502
    assert answers[0].json()["error"]["code"] == "worker_died"
    answer = sleeper.post({"s": 0})
    assert answer.status == 200
    assert answer.json()["pid"] != dead
    assert answer.headers["x-coldstart"] == "cold"


def test_kill_9_of_the_front_is_healed(sleeper: Replica) -> None:
    first = sleeper.post({"s": 0}).json()["pid"]
    dead = sleeper.kill("front")
    until(lambda: sleeper.pid_of("front") not in (None, dead), what="another front")
    answer = sleeper.post({"s": 0})
    assert (answer.status, answer.json()["pid"]) == (200, first)  # the worker went on
    assert answer.headers["x-coldstart"] == "warm"


def test_a_worker_that_dies_in_every_start_ends_the_replica(tmp_path: Path) -> None:
    write_module(tmp_path, "suicidal", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with running_replica("suicidal:x", tmp_path, environment={"COLDSTART_WORKER_RESTARTS": "1"}) as replica:
        assert replica.end(20) == 60
    line = replica.logged("replica.start.failed")
    assert line is not None
    assert "killed by SIGKILL" in line["message"]


def test_a_handler_that_exits_or_interrupts_ends_its_invocation_only(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "rude",
        """
        import os, sys
        from adapter import coldstart_handler
        class Odd(BaseException):
            pass
        @coldstart_handler
        def rude(event):
            if event == "exit":
                sys.exit(3)
            if event == "interrupt":
                raise KeyboardInterrupt
            if event == "odd":
                raise Odd("very")
            return os.getpid()
        """,
    )
    with running_replica("rude:rude", tmp_path) as replica:
        replica.wait_ready()
        first = replica.post("pid").json()
        for event, kind in (("exit", "SystemExit"), ("interrupt", "KeyboardInterrupt"), ("odd", "Odd")):
            answer = replica.post(event)
            assert answer.status == 500
            assert answer.json()["error"]["fields"]["error_type"] == kind
        assert replica.post("pid").json() == first


def test_a_caller_that_hangs_up_frees_the_handler(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "sleeper",
        """
        import time
        from adapter import coldstart_handler
        @coldstart_handler
        def sleep(event):
            open("running", "w").close()
            try:
                time.sleep(event["s"])
            except Exception:
                pass
            finally:
                open("cleaned", "w").close()
            return 1
        """,
    )
    with running_replica("sleeper:sleep", tmp_path) as replica:
        replica.wait_ready()
        with pytest.raises(TimeoutError):
            replica.post({"s": 60}, timeout_s=0.5)
        assert replica.post({"s": 0}, timeout_s=5).status == 200
        assert (tmp_path / "cleaned").exists()


def test_the_callers_patience_is_a_deadline(sleeper: Replica) -> None:
    answer = sleeper.post({"s": 60}, headers={"X-Coldstart-Timeout-S": "0.3"}, timeout_s=5)
    assert answer.status == 504
    assert sleeper.post({"s": 0}, timeout_s=5).status == 200


def test_an_async_handlers_invocations_overlap_and_are_cancelled(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "together",
        """
        import asyncio
        from adapter import coldstart_handler
        here, peak = 0, 0
        @coldstart_handler(concurrency=4)
        async def meet(event):
            global here, peak
            here += 1
            try:
                while peak < event["n"]:
                    peak = max(peak, here)
                    await asyncio.sleep(0.005)
                return peak
            finally:
                here -= 1
        """,
    )
    with running_replica("together:meet", tmp_path) as replica:
        replica.wait_ready()
        answer = replica.post({"n": 99}, headers={"X-Coldstart-Timeout-S": "0.3"})
        assert answer.status == 504
        answers: list[Answer] = []
        threads = [threading.Thread(target=lambda: answers.append(replica.post({"n": 4}))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert [(answer.status, answer.json()) for answer in answers] == [(200, 4)] * 4


def test_a_handler_that_ignores_its_end_is_replaced(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "stubborn",
        """
        import os, time
        from adapter import coldstart_handler
        @coldstart_handler
        def stubborn(event):
            while event == "stay":
                try:
                    time.sleep(60)
                except BaseException:
                    pass
            return os.getpid()
        """,
    )
    with running_replica("stubborn:stubborn", tmp_path) as replica:
        replica.wait_ready()
        first = replica.post("pid").json()
        answer = replica.post("stay", headers={"X-Coldstart-Timeout-S": "0.2"}, timeout_s=5)
        assert answer.status == 504
        assert replica.post("pid", timeout_s=20).json() != first
        assert replica.logged("worker.unresponsive")


def test_a_log_that_nobody_reads_does_not_hold_the_replica(tmp_path: Path) -> None:
    write_module(tmp_path, "sleeper", SLEEPER)
    read, write = os.pipe()
    try:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        os.write(write, bytes(4096))
        serve = [sys.executable, "-m", "adapter.cli", "serve", "sleeper:sleep", "--host", "127.0.0.1", "--port", "0"]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLDSTART_CACHE_DIR": str(tmp_path / "cache")}
        replica = subprocess.Popen(serve, cwd=tmp_path, env=environment, stdout=write, stderr=write)
        try:
            port = until(lambda: listening_port(replica.pid), what="a listener")
            with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                assert connection.recv(64).startswith(b"HTTP/1.1 200")
            replica.terminate()
            assert replica.wait(4) in (0, 143)
        finally:
            replica.kill()
            replica.wait()
    finally:
        os.close(read)
        os.close(write)


def listening_port(pid: int) -> int | None:
    """The port on which this very process holds a listener."""
    inodes = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            return int(fields[1].split(":")[1], 16)
    return None


@pytest.mark.parametrize(
    ("flag", "value"), [("--port", "99999"), ("--init-timeout-s", "-1"), ("--grace-s", "nan"), ("--port", "-1")]
)
def test_flags_are_checked_as_the_variables_are(tmp_path: Path, flag: str, value: str) -> None:
    write_module(tmp_path, "sleeper", SLEEPER)
    with running_replica("sleeper:sleep", tmp_path, flag, value) as replica:
        assert replica.end(10) == 10
        assert value in "\n".join(replica.raw)
