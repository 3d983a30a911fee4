"""What a replica answers, and when: health, streams, the first call and the later ones."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from tests.support.replicas import REPOSITORY, Answer, running_replica, until, write_module


def test_liveness_answers_within_a_second_through_start_and_a_blocking_handler(tmp_path: Path) -> None:
    """A9, S-33."""
    write_module(
        tmp_path,
        "blocking",
        """
        import time
        import torch
        from adapter import coldstart_handler
        def load():
            stop = time.monotonic() + 2
            while time.monotonic() < stop:
                pass
        @coldstart_handler(load=load)
        def block(model, event):
            stop = time.monotonic() + 5
            while time.monotonic() < stop:
                pass
            return "done"
        """,
    )
    slowest, probes, ready, early = 0.0, 0, False, 0
    with running_replica("blocking:block", tmp_path) as replica:
        port = replica.port
        answers: list[Answer] = []
        call = threading.Thread(target=lambda: answers.append(replica.post({})))
        call.start()
        while call.is_alive():
            begun = time.monotonic()
            assert replica.get("/health/live").status == 200
            slowest, probes = max(slowest, time.monotonic() - begun), probes + 1
            status = replica.get("/health/ready")
            assert status.status in (200, 503)
            if status.status == 503:
                assert not ready, "ready, then not"
                assert "phase" in status.json()
                early += 1
            ready = status.status == 200
            call.join(0.05)
        assert answers[0].json() == "done"
        assert port == replica.port
    assert slowest < 1
    assert probes > 50
    assert early > 5
    assert ready


def test_a_generator_streams_item_by_item(tmp_path: Path) -> None:
    """A10: the second item is made only after the first was seen by the caller."""
    write_module(
        tmp_path,
        "stream",
        """
        import os, time
        from adapter import coldstart_handler
        @coldstart_handler
        def count(event):
            for i in range(event["n"]):
                yield {"i": i}
                while not os.path.exists(f"seen-{i}"):
                    time.sleep(0.005)
        """,
    )
    with running_replica("stream:count", tmp_path) as replica:
        replica.wait_ready()
        connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=20)
        connection.request("POST", "/", json.dumps({"n": 3}), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200
        for i in range(3):
            assert json.loads(answer.readline()) == {"i": i}
            (tmp_path / f"seen-{i}").touch()
        assert answer.read() == b""
        connection.close()


def test_an_async_generator_streams_and_its_cleanup_runs_at_hang_up(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "stream",
        """
        import asyncio
        from adapter import coldstart_handler
        @coldstart_handler
        async def forever(event):
            try:
                while True:
                    yield 1
                    await asyncio.sleep(0.01)
            finally:
                open("closed", "w").close()
        """,
    )
    with running_replica("stream:forever", tmp_path) as replica:
        replica.wait_ready()
        connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=20)
        connection.request("POST", "/", "{}", {"Content-Type": "application/json"})
        assert connection.getresponse().readline() == b"1\n"
        connection.close()
        until(lambda: (tmp_path / "closed").exists(), what="the generator's clean-up")


def test_the_first_call_is_cold_the_next_warm_and_the_report_tells_the_start(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "plain",
        """
        from adapter import coldstart_handler, InvocationContext
        @coldstart_handler
        def plain(event, context: InvocationContext):
            return {"cold": context.is_cold_start, "id": context.request_id}
        plain.warm_up({})
        plain.warm_up({"a": 1})
        """,
    )
    with running_replica("plain:plain", tmp_path) as replica:
        replica.wait_ready()
        first = replica.post({}, headers={"X-Request-Id": "r1"})
        second = replica.post({}, path="/invocations")
        assert first.json() == {"cold": True, "id": "r1"}
        assert (first.headers["x-coldstart"], second.headers["x-coldstart"]) == ("cold", "warm")
        assert not second.json()["cold"]
        assert "handler;dur=" in second.headers["server-timing"]
        report = replica.report()
    names = [stage["name"] for stage in report["stages"]]
    assert names.count("warm_up[0]") == names.count("warm_up[1]") == 1
    assert report["outcome"] == "ready"
    assert (
        abs(sum(share["seconds"] for share in report["layers"].values()) - report["total_s"]) < 0.01 * report["total_s"]
    )


def test_bad_input_is_refused_and_the_worker_goes_on(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "plain",
        """
        from adapter import coldstart_handler
        @coldstart_handler
        def plain(event):
            return {"nan": float("nan"), "odd": object()}.get(event, event) if isinstance(event, str) else event
        """,
    )
    with running_replica("plain:plain", tmp_path) as replica:
        replica.wait_ready()
        connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=20)
        connection.request("POST", "/", b"{not json", {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["error"]["code"]) == (400, "invalid_event")
        connection.close()
        for event, path in (("nan", "output"), ("odd", "output")):
            refused = replica.post(event)
            assert (refused.status, refused.json()["error"]["code"]) == (500, "encode")
            assert refused.json()["error"]["fields"]["path"] == path
        assert replica.post({"a": "é"}).json() == {"a": "é"}


def test_what_a_handler_prints_and_logs_is_seen_at_once(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "talkative",
        """
        import sys
        from adapter import coldstart_handler, InvocationContext
        @coldstart_handler
        def talk(event, context: InvocationContext):
            print("printed", file=sys.stderr)
            context.log.info("logged %s", event)
            return 1
        """,
    )
    with running_replica("talkative:talk", tmp_path) as replica:
        replica.wait_ready()
        replica.post("that", headers={"X-Request-Id": "r7"})
        line = replica.wait_log("handler.log")
        assert (line["message"], line["request_id"], line["level"]) == ("logged that", "r7", "info")
        until(lambda: "printed" in replica.raw)


def test_the_run_directory_of_a_killed_replica_goes_with_the_next_start(tmp_path: Path) -> None:
    write_module(tmp_path, "plain", PLAIN)
    (tmp_path / "run").mkdir()
    environment = {"COLDSTART_RUN_ROOT": str(tmp_path / "run")}
    with running_replica("plain:plain", tmp_path, environment=environment) as killed:
        killed.wait_ready()
        left = killed.run_dir
        killed.process.kill()
        killed.process.wait()
        assert left.exists()
    with running_replica("plain:plain", tmp_path, environment=environment) as one:
        one.wait_ready()
        assert not left.exists()
        with running_replica("plain:plain", tmp_path, environment=environment) as other:
            other.wait_ready()
            assert one.run_dir.exists()  # it lives
            other.process.terminate()
            assert other.end() == 0
        assert list((tmp_path / "run").iterdir()) == [one.run_dir]


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">/dev/full 2>/dev/full"])
def test_closed_and_full_standard_streams_do_not_matter(tmp_path: Path, streams: str) -> None:
    write_module(tmp_path, "plain", PLAIN)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    serve = f"exec {sys.executable} -m adapter.cli serve plain:plain --host 127.0.0.1 --port {port}"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "COLDSTART_CACHE_DIR": str(tmp_path / "cache")}
    replica = subprocess.Popen(["sh", "-c", f"{serve} {streams}"], cwd=tmp_path, env=environment)

    def asked() -> bytes:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b'"a"', timeout=10) as answer:
                return bytes(answer.read())
        except OSError:
            assert replica.poll() is None
            return b""

    try:
        assert until(asked, what="an answer") == b'"a"'
        replica.terminate()
        assert replica.wait(10) == 0
    finally:
        replica.kill()
        replica.wait()


PLAIN = """
    from adapter import coldstart_handler
    @coldstart_handler
    def plain(event):
        return event
"""
