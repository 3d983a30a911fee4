"""The emulator's HTTP API: streams, events, and who may change anything."""

from __future__ import annotations

import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapter.emulator.guard import host_names
from adapter.errors import ConfigurationError
from tests.support.emulators import RunningEmulator, running_emulator
from tests.support.replicas import until, write_module


@pytest.fixture(scope="module")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEmulator]:
    """An emulator of a handler that streams."""
    with running_emulator("handlers.echo:count", tmp_path_factory.mktemp("count"), "--idle-s", "600") as emulator:
        yield emulator


class Events:
    """Server-sent events of an open response."""

    def __init__(self, response: httpx.Response) -> None:
        self._lines = response.iter_lines()
        self.last_id = ""

    def next(self) -> tuple[str, Any]:
        """Kind and value of the next event."""
        kind, value = "", None
        limit = time.monotonic() + 30
        for line in self._lines:
            assert time.monotonic() < limit, "nothing but signs of life"
            field, _, text = line.partition(": ")
            if field == "id":
                self.last_id = text
            elif field == "event":
                kind = text
            elif field == "data":
                value = json.loads(text)
            elif not line and kind:
                return kind, value
        raise AssertionError("the stream of events ended")

    def until(self, kind: str, **fields: object) -> Any:
        """The value of the first event of that kind with those fields."""
        while True:
            found, value = self.next()
            if found == kind and all(value[name] == wanted for name, wanted in fields.items()):
                return value


def test_items_of_a_stream_pass_through_as_they_come(counting: RunningEmulator) -> None:
    counting.invoke({"to": 1})
    with counting.client.stream("POST", "/invoke", json={"to": 3, "sleep_s": 0.3}) as answer:
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert "x-coldstart-replica" in answer.headers
        came = [(json.loads(line), time.monotonic()) for line in answer.iter_lines()]
    assert [item for item, _ in came] == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert came[2][1] - came[0][1] > 0.3  # they did not come together, at the end


def test_a_stream_whose_replica_dies_ends_with_the_reason(counting: RunningEmulator) -> None:
    replica = counting.invoke({"to": 1}).headers["x-coldstart-replica"]
    with counting.client.stream("POST", "/invoke", json={"to": 500, "sleep_s": 0.1}) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines)) == {"n": 1}
        counting.client.post(f"/replicas/{replica}/kill?role=supervisor").raise_for_status()
        last = [json.loads(line) for line in lines][-1]
    assert last["error"]["code"] == "worker_died"
    assert counting.get("/invocations")[0]["error"] == "worker_died"


def test_events_tell_a_snapshot_first_and_then_what_happens(counting: RunningEmulator) -> None:
    counting.client.post("/scale-to-zero")
    until(lambda: not counting.replicas(), what="scale to zero")
    with counting.client.stream("GET", "/events") as response, ThreadPoolExecutor(1) as pool:
        events = Events(response)
        kind, snapshot = events.next()
        assert kind == "snapshot"
        assert snapshot["target"] == "handlers.echo:count"
        assert snapshot["queue"] == {"waiting": 0, "running": 0}
        asking = pool.submit(counting.invoke, {"to": 2})
        invocation = events.until("invocation", state="waiting")["id"]
        name = events.until("replica", state="starting")["id"]
        assert events.until("queue", waiting=1)["running"] == 0
        assert events.until("replica", id=name, state="busy")["phase"] == "ready"
        seen = events.last_id
        following: dict[str, Any] = {}
        while {"report", "invocation"} - set(following):  # in either order
            kind, value = events.next()
            if value.get("replica") == name and value.get("state", "done") == "done":
                following[kind] = value
        assert following["report"]["outcome"] == "ready"
        assert (following["invocation"]["id"], following["invocation"]["status"]) == (invocation, 200)
        assert asking.result(10).status_code == 200
    with counting.client.stream("GET", "/events", headers={"Last-Event-ID": seen}) as response:
        missed = Events(response)
        assert missed.next()[0] != "snapshot"  # it goes on where it was
    with counting.client.stream("GET", "/events", headers={"Last-Event-ID": "another-1"}) as response:
        assert Events(response).next()[0] == "snapshot"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("POST", "/scale-to-zero", {"Origin": "http://elsewhere.example"}, 403),
        ("POST", "/invoke", {"Origin": "null"}, 403),
        ("POST", "/invoke", {"Origin": "http://["}, 403),
        ("GET", "/health", {"Host": "["}, 403),
        ("POST", "/invoke", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/scale-to-zero", {"Host": "rebound.example"}, 403),
        ("GET", "/events", {"Host": "rebound.example:80"}, 403),
        ("GET", "/health", {"Host": "localhost:1"}, 200),
        ("GET", "/health", {"Origin": "http://elsewhere.example"}, 200),
    ],
)
def test_pages_of_others_can_change_nothing(
    counting: RunningEmulator, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    assert counting.client.request(method, path, headers=headers).status_code == status


def test_wherever_it_listens_it_answers_only_to_addresses_and_names_that_were_given(tmp_path: Path) -> None:
    """A page whose name was made to mean this machine names itself as origin and host alike (DNS rebinding)."""
    arguments = ("--host", "0.0.0.0", "--allow-host", "emulator", "--allow-host", "Dev.Example")
    with running_emulator("handlers.echo:echo", tmp_path, *arguments) as emulator:
        for host, status in {
            "evil.example:80": 403,
            "localhost.evil.example": 403,
            "dev.example.evil.example": 403,
            "": 403,
            "localhost:80": 200,
            "127.0.0.1": 200,
            "192.168.7.7:8787": 200,
            "[fd00::1]:8787": 200,
            "emulator:8787": 200,
            "dev.example": 200,
        }.items():
            assert emulator.client.get("/health", headers={"Host": host}).status_code == status, host
        rebound = {"Host": "evil.example:80", "Origin": "http://evil.example:80", "Content-Type": "text/plain"}
        assert emulator.client.post("/invoke", content="{}", headers=rebound).status_code == 403
        assert emulator.get("/invocations") == []


@pytest.mark.parametrize("name", ["", "*", "a:80", "http://a", "a/b"])
def test_what_is_no_name_of_a_host_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="--allow-host"):
        host_names([name])


def test_its_own_page_may_ask(counting: RunningEmulator) -> None:
    answer = counting.invoke({"to": 1}, Origin=counting.url.rstrip("/"), **{"Sec-Fetch-Site": "same-origin"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/reports/999", 404),
        ("GET", "/replicas/r999/log", 404),
        ("POST", "/replicas/r999/kill", 404),
        ("POST", "/replicas/r1/kill?role=king", 400),
        ("GET", "/store", 404),
        ("GET", "/invoke", 405),
        ("GET", "/nothing", 404),
        ("DELETE", "/", 405),
        ("GET", f"/reports/{'9' * 5000}", 404),
        ("GET", f"/reports/{'9' * 5000}.html", 404),
        ("GET", f"/compare/1/{'9' * 5000}", 404),
        ("GET", "/reports/\u0661", 404),
        ("GET", "/reports/-1", 404),
    ],
)
def test_what_is_not_there_is_said_to_be_so(counting: RunningEmulator, method: str, path: str, status: int) -> None:
    answer = counting.client.request(method, path)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["message"]
    assert (error["code"], error["retryable"]) == (
        {400: "bad_request", 404: "not_found", 405: "method_not_allowed"}[status],
        False,
    )


def test_a_number_that_is_none_is_passed_over(counting: RunningEmulator) -> None:
    assert counting.client.get(f"/?start={'9' * 5000}").status_code == 200
    with counting.client.stream("GET", "/events") as response:
        events = Events(response)
        events.next()
    last = f"{events.last_id.partition('-')[0]}-{'9' * 5000}"
    with counting.client.stream("GET", "/events", headers={"Last-Event-ID": last}) as response:
        assert Events(response).next()[0] == "snapshot"


def test_a_listener_who_does_not_read_leaves_no_trace_at_the_end(tmp_path: Path) -> None:
    with running_emulator("handlers.echo:echo", tmp_path) as emulator:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before it connects: then it counts
            deaf.connect((emulator.client.base_url.host, emulator.client.base_url.port or 80))
            deaf.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            deaf.recv(100)
            for number in range(5000):  # more than the kernel's buffers take
                emulator.invoke({"n": number})
            assert emulator.interrupt() == 0
        assert "Traceback" not in emulator.said()
        assert "CancelledError" not in emulator.said()


def test_a_replica_sees_little_of_the_surroundings(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "mine",
        """
        import os
        from adapter import coldstart_handler

        @coldstart_handler
        def environment(event):
            print("a line of the user's")
            return dict(os.environ)
        """,
    )
    surroundings = {"SECRET_OF_THE_SHELL": "x", "PORT": "1", "COLDSTART_QUEUE_LIMIT": "7", "AWS_REGION": "mars-1"}
    arguments = ("--env", "MINE=a=b", "--grace-s", "5")
    with running_emulator("mine:environment", tmp_path, *arguments, environment=surroundings) as emulator:
        seen = emulator.invoke({}).json()
        assert "SECRET_OF_THE_SHELL" not in seen
        assert "PORT" not in seen
        assert seen["MINE"] == "a=b"
        assert (seen["COLDSTART_QUEUE_LIMIT"], seen["AWS_REGION"]) == ("7", "mars-1")
        assert seen["COLDSTART_GRACE_S"] == "2.5"
        host = Path(seen["COLDSTART_CACHE_DIR"]).parent
        assert host.is_dir()
        until(lambda: "a line of the user's" in emulator.client.get("/replicas/r1/log").text, what="the log line")
        assert emulator.interrupt() == 0
        assert not host.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_its_end_lets_what_runs_finish_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    (tmp_path / "buckets" / "models").mkdir(parents=True)
    arguments = ("--weights", str(tmp_path / "buckets"), "--max-replicas", "1")
    with running_emulator("handlers.echo:echo", tmp_path, *arguments) as emulator, ThreadPoolExecutor(2) as pool:
        running = pool.submit(emulator.invoke, {"sleep_s": 2})
        until(lambda: [r for r in emulator.replicas() if r["state"] == "busy"], what="a busy replica")
        waiting = pool.submit(emulator.invoke, {})
        until(lambda: emulator.get("/invocations")[0]["state"] == "waiting", what="a caller who waits")
        with emulator.client.stream("GET", "/events") as events:  # somebody who looks does not hold it up
            next(events.iter_lines())
            assert emulator.interrupt(number) == 0
        assert running.result(5).json()["event"] == {"sleep_s": 2}
        assert waiting.result(5).json()["error"]["code"] == "draining"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running_emulator("handlers.echo:echo", tmp_path) as emulator, ThreadPoolExecutor(1) as pool:
        running = pool.submit(emulator.invoke, {"sleep_s": 50})
        until(lambda: [r for r in emulator.replicas() if r["state"] == "busy"], what="a busy replica")
        emulator.process.send_signal(signal.SIGINT)
        until(lambda: emulator.replicas()[0]["state"] == "stopping", what="its beginning")
        assert emulator.interrupt() == 0
        assert running.result(5).status_code == 502


def test_nothing_outlives_an_emulator_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "buckets" / "models").mkdir(parents=True)
    arguments = ("--weights", str(tmp_path / "buckets"))
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as short,  # nobody is left to remove its own
        running_emulator("handlers.echo:echo", tmp_path, *arguments, environment={"TMPDIR": short}) as emulator,
    ):
        assert emulator.invoke({}).status_code == 200
        names = emulator.survivors()
        assert len(names) == 5, f"itself, the store, supervisor, front and worker: {names}"
        assert emulator.interrupt(signal.SIGKILL) == -signal.SIGKILL


def test_what_a_killed_emulator_left_on_the_disk_goes_with_the_next(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path is short
        surroundings = {"TMPDIR": short}
        with running_emulator("handlers.echo:echo", tmp_path, environment=surroundings) as emulator:
            assert emulator.invoke({}).status_code == 200
            emulator.interrupt(signal.SIGKILL)
        (left,) = Path(short).iterdir()
        with running_emulator("handlers.echo:echo", tmp_path, environment=surroundings) as living:
            assert left.is_dir()  # it could be one that is just being made
            os.utime(left, (0, 0))
            os.utime(next(path for path in Path(short).iterdir() if path != left), (0, 0))
            with running_emulator("handlers.echo:echo", tmp_path, environment=surroundings):
                assert not left.exists()
                assert living.invoke({}).status_code == 200  # one that is old and lives is left alone
        assert list(Path(short).iterdir()) == []
