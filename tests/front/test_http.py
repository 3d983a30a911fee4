"""The front over real HTTP, with a worker that does what each test says."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from adapter.errors import (
    AdapterError,
    EncodeError,
    HandlerFailed,
    InvalidEvent,
    LoadError,
    ResponseTooLarge,
)
from adapter.runtime.link import Frame
from adapter.timeline import read_spans
from tests.support.fake_worker import FakeWorker, hold
from tests.support.front_process import FrontProcess


def test_the_first_answer_is_cold_and_the_second_warm(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir).ready() as worker, httpx.Client(base_url=front.url) as client:
        front.wait_status("ready")
        first, second = (client.post("/", content=b'{"n": 1}', headers={"X-Request-Id": "r-1"}) for _ in range(2))
        assert (first.status_code, first.content) == (200, b'{"n": 1}')
        assert (first.headers["x-coldstart"], second.headers["x-coldstart"]) == ("cold", "warm")
        assert [frame.head["cold"] for frame in worker.invoked] == [True, False]
        assert first.headers["x-request-id"] == worker.invoked[0].head["id"] == "r-1"
        assert first.headers["content-type"] == "application/json"
        names = [re.findall(r"(\w+);dur=[\d.]+", answer.headers["server-timing"]) for answer in (first, second)]
        assert names == [["queue", "handler", "init", "total"], ["queue", "handler", "total"]]
    spans = {span.name for span in read_spans(front.run_dir / "timeline.jsonl") if span.role == "front"}
    assert spans == {"import.server", "front.listening", "replica.ready"}


def test_an_id_that_is_no_id_is_replaced(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir).ready():
        for wanted in ("", "a b", "x" * 200):
            answer = front.client.post("/", content=b"1", headers={"X-Request-Id": wanted})
            assert re.fullmatch("[0-9a-f]{32}", answer.headers["x-request-id"])


def test_ids_in_flight_are_told_apart(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, hold, concurrency=2).ready() as worker, ThreadPoolExecutor() as pool:
        calls = [
            pool.submit(front.client.post, "/", content=b"%d" % n, headers={"X-Request-Id": "same"}) for n in range(2)
        ]
        for invoke in worker.wait_invoked(2):
            worker.result(invoke.head["id"], invoke.body)
        assert [call.result().content for call in calls] == [b"0", b"1"]
        assert sorted(len(call.result().headers["x-request-id"]) for call in calls) == [4, 13]


def test_unknown_routes_and_methods_are_errors_in_json(front: FrontProcess) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("GET", "/", 405), ("POST", "/metrics", 405)):
        answer = front.client.request(method, path)
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == f"http.{status}"


def test_readiness_comes_with_the_worker_and_liveness_before(run_dir: Path) -> None:
    """S-33: listening before init ends, not ready until truly ready, with phase and progress."""
    with FrontProcess(run_dir) as front, httpx.Client(base_url=front.url) as client:
        front.wait_status("listening")
        before = client.get("/health/ready")
        assert (before.status_code, before.json()["phase"], before.json()["progress"]) == (503, "cold", None)
        with FakeWorker(front.run_dir) as worker:
            (run_dir / "progress.json").write_text('{"done_bytes": 3, "total_bytes": 9}')
            worker.phase("loading", {"tensor": "w"}, init_timeout_s=5)
            assert front.wait_status("phase")["init_timeout_s"] == 5
            loading = client.get("/health/ready")
            assert loading.status_code == 503
            assert loading.json() == {
                "status": "not ready",
                "phase": "loading",
                "progress": {"bytes": 3, "of": 9},
                "detail": {"tensor": "w"},
            }
            assert client.get("/health/live").json() == {"status": "live"}
            worker.ready()
            front.wait_status("ready")
            assert client.get("/health/ready").status_code == 200
            assert client.get("/coldstart").json() == {"outcome": "ready"}


def test_a_call_during_the_start_waits_for_it(front: FrontProcess) -> None:
    with ThreadPoolExecutor() as pool:
        call = pool.submit(front.client.post, "/", content=b'"early"')
        with FakeWorker(front.run_dir) as worker:
            worker.phase("importing")
            front.wait_status("phase")
            assert not call.done()
            worker.ready()
            assert call.result().content == b'"early"'


def test_a_failed_start_is_told_to_who_waits_and_ends_the_front(run_dir: Path) -> None:
    """S-33: failed init stays not-ready and ends the process."""
    with FrontProcess(run_dir) as front, ThreadPoolExecutor() as pool:
        front.wait_status("listening")
        calls = [pool.submit(front.client.post, "/", content=b"1") for _ in range(3)]
        wait_for_queue(front, 3)
        front.fail(LoadError("load raised ValueError: no such layer", line=7))
        assert front.wait() == 0
        for call in calls:
            answer = call.result()
            assert answer.status_code == 503
            assert answer.json()["error"] == {
                "code": "load",
                "type": "LoadError",
                "message": "load raised ValueError: no such layer",
                "retryable": False,
                "fields": {"line": 7},
            }


def wait_for_queue(front: FrontProcess, length: int) -> None:
    while f"coldstart_queue_length {length}.0" not in front.client.get("/metrics").text:
        pass


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidEvent("the event has no text"), 400),
        (HandlerFailed("ValueError: x", error_type="ValueError"), 500),
        (EncodeError("output.x has no form", path="output.x"), 500),
        (ResponseTooLarge("too large", size_bytes=9, limit_bytes=1), 500),
        (AdapterError("something else"), 500),
    ],
)
def test_an_error_of_the_worker_has_its_status(front: FrontProcess, error: AdapterError, status: int) -> None:
    with FakeWorker(front.run_dir, lambda worker, invoke: worker.error(invoke.head["id"], error)).ready():
        answer = front.client.post("/", content=b"1")
        assert answer.status_code == status
        told = answer.json()["error"]
        assert (told["code"], told["message"], told["fields"]) == (error.code, error.message, error.fields)
        assert "exit_code" not in told
        assert answer.headers["x-coldstart"] == "cold"


def test_events_and_results_of_many_megabytes_pass_unread(front: FrontProcess) -> None:
    body = b'"%s"' % (b"x" * 20_000_000)
    with FakeWorker(front.run_dir).ready(), httpx.Client(base_url=front.url, timeout=30) as client:
        assert client.post("/invocations", content=body).content == body
        assert client.post("/invocations", content=iter([body[:7], body[7:]])).content == body


def test_an_event_over_the_limit_is_refused(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir).ready() as worker:
        large = b"x" * ((32 << 20) + 1)
        for content in (large, iter([large])):
            try:
                answer = front.client.post("/", content=content)
            except httpx.WriteError:
                continue  # the answer came before all was sent, and the connection went
            assert answer.status_code == 413
            assert answer.json()["error"]["code"] == "event_too_large"
        assert worker.invoked == []
        assert front.client.post("/", content=b"1").status_code == 200


def test_an_endless_event_is_cut_off(front: FrontProcess) -> None:
    """What is over the limit is not taken in for ever."""
    chunk = b"x" * (1 << 20)
    head = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(head)
        with contextlib.suppress(ConnectionError):
            for _ in range(500):
                connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            pytest.fail("500 MB were taken")


def test_a_caller_that_goes_away_frees_its_place(front: FrontProcess) -> None:
    """S-32: hang-up frees the slot, once the worker has stopped."""
    with FakeWorker(front.run_dir, hold).ready() as worker:
        post_and_hang_up(front, worker)
        cancel = worker.wait_cancelled(1)[0]
        first = worker.invoked[0].head["id"]
        assert cancel.head == {"id": first, "reason": "client_gone"}
        with ThreadPoolExecutor() as pool:
            call = pool.submit(front.client.post, "/", content=b"2")
            wait_for_queue(front, 1)  # the place is still taken
            worker.error(first, HandlerFailed("stopped"))
            worker.result(worker.wait_invoked(2)[1].head["id"], b"2")
            assert call.result().content == b"2"


def post_and_hang_up(front: FrontProcess, worker: FakeWorker) -> None:
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1")
        worker.wait_invoked(1)


def test_a_caller_that_goes_away_while_it_waits_is_never_run(front: FrontProcess) -> None:
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1")
        wait_for_queue(front, 1)
    wait_for_queue(front, 0)
    with FakeWorker(front.run_dir).ready() as worker:
        assert front.client.post("/", content=b"2").content == b"2"
        assert [invoke.body for invoke in worker.invoked] == [b"2"]


def test_the_callers_patience_counts_from_arrival(front: FrontProcess) -> None:
    answer = front.client.post("/", content=b"1", headers={"X-Coldstart-Timeout-S": "0.05"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "invocation.timeout")
    assert "waited for the worker" in answer.json()["error"]["message"]
    assert "x-coldstart" not in answer.headers
    for wrong in ("-1", "nan", "inf", "soon"):
        answer = front.client.post("/", content=b"1", headers={"X-Coldstart-Timeout-S": wrong})
        assert answer.status_code == 400


def test_the_handlers_limit_ends_a_call_at_once_and_a_late_result_is_dropped(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, hold, timeout_s=0.05).ready() as worker:
        answer = front.client.post("/", content=b"1", headers={"X-Coldstart-Timeout-S": "30"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (504, "InvocationTimeout")
        first = worker.wait_invoked(1)[0].head
        assert worker.wait_cancelled(1)[0].head == {"id": first["id"], "reason": "deadline"}
        worker.result(first["id"], b'"late"')
        worker.behaviour = lambda worker, invoke: worker.result(invoke.head["id"], invoke.body)
        assert front.client.post("/", content=b'"next"').content == b'"next"'


def test_more_than_the_queue_holds_is_refused_as_busy(run_dir: Path) -> None:
    with (
        FrontProcess(run_dir, queue_limit=1) as front,
        FakeWorker(run_dir, hold).ready() as worker,
        ThreadPoolExecutor() as pool,
    ):
        front.wait_status("ready")
        running = pool.submit(front.client.post, "/", content=b"1")
        worker.wait_invoked(1)
        waiting = pool.submit(front.client.post, "/", content=b"2")
        wait_for_queue(front, 1)
        refused = front.client.post("/", content=b"3")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "QueueFull")
        assert refused.headers["retry-after"] == "1"
        for count in (1, 2):
            invoke = worker.wait_invoked(count)[-1]
            worker.result(invoke.head["id"], invoke.body)
        assert [running.result().content, waiting.result().content] == [b"1", b"2"]
        text = front.client.get("/metrics").text
        assert 'coldstart_invocations_total{outcome="ok",start="cold"} 1.0' in text
        assert 'coldstart_invocations_total{outcome="queue_full",start="none"} 1.0' in text


def test_as_many_run_at_once_as_the_worker_allows(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, hold, concurrency=32).ready() as worker, ThreadPoolExecutor(64) as pool:
        calls = [pool.submit(front.client.post, "/", content=b"%d" % n) for n in range(64)]
        invoked = worker.wait_invoked(32)
        assert len(invoked) == 32
        for invoke in reversed(invoked):
            worker.result(invoke.head["id"], invoke.body)
        for invoke in worker.wait_invoked(64)[32:]:
            worker.result(invoke.head["id"], invoke.body)
        assert [call.result().content for call in calls] == [b"%d" % n for n in range(64)]


def test_one_at_a_time_serves_many_callers(front: FrontProcess) -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def count(worker: FakeWorker, invoke: Frame) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        with lock:
            running -= 1
        worker.result(invoke.head["id"], invoke.body)

    with FakeWorker(front.run_dir, count).ready(), ThreadPoolExecutor(32) as pool:
        calls = [pool.submit(front.client.post, "/", content=b"%d" % n) for n in range(64)]
        assert [call.result().content for call in calls] == [b"%d" % n for n in range(64)]
    assert most == 1


def test_metrics_are_prometheus_text(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir).ready():
        front.client.post("/", content=b"1")
        answer = front.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert 'coldstart_phase{phase="ready"} 1.0' in answer.text
        counted = re.search(r"coldstart_handler_seconds_count (\d+)", answer.text)
        assert counted is not None
        assert int(counted[1]) >= 1
        openmetrics = front.client.get("/metrics", headers={"Accept": "application/openmetrics-text"})
        assert openmetrics.text.endswith("# EOF\n")
        assert json.loads(front.client.get("/health/ready").text)["phase"] == "ready"


def test_answers_are_sent_at_once(front: FrontProcess) -> None:
    """Else head and body are two packets, and the second waits 40 ms for an acknowledgement that is delayed."""
    assert front.client.get("/health/live").status_code == 200
    assert front.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


def test_what_libraries_log_is_json_too(front: FrontProcess) -> None:
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(b"no HTTP at all\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400")
    assert {"logger": "uvicorn.error", "level": "warning"}.items() <= front.log_lines()[-1].items()
