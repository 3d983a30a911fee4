"""Streams of generator handlers over HTTP."""

from __future__ import annotations

import json
import os

from adapter.errors import HandlerFailed
from adapter.runtime.link import Frame
from tests.support.fake_worker import FakeWorker, hold
from tests.support.front_process import FrontProcess

EVENTS = {"Accept": "text/event-stream"}


def test_the_first_item_arrives_before_the_last_is_made(front: FrontProcess) -> None:
    """A10: items are flushed as they come."""

    def first(worker: FakeWorker, invoke: Frame) -> None:
        worker.item(invoke.head["id"], b"0")

    with FakeWorker(front.run_dir, first).ready() as worker, front.client.stream("POST", "/", content=b"1") as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        request_id, lines = worker.invoked[0].head["id"], answer.iter_lines()
        assert next(lines) == "0"
        for n in (1, 2):
            worker.item(request_id, b"%d" % n)
            assert next(lines) == str(n)
        worker.end(request_id)
        assert list(lines) == []


def test_the_answer_to_a_stream_begins_with_its_first_item(front: FrontProcess) -> None:
    """S-32: nothing sent yet, so the ordinary error."""
    with FakeWorker(front.run_dir, lambda worker, invoke: worker.error(invoke.head["id"], HandlerFailed("no"))).ready():
        answer = front.client.post("/", content=b"1")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "handler.failed")


def three(worker: FakeWorker, invoke: Frame) -> None:
    request_id = invoke.head["id"]
    worker.progress(request_id, b'"half"')
    worker.item(request_id, b'{"error": "an item of the user"}')
    worker.item(request_id, b'"two"')
    ending = json.loads(invoke.body)
    if ending == "error":
        worker.error(request_id, HandlerFailed("ValueError: midway", error_type="ValueError", step=2))
    elif ending == "death":
        worker.die()
    else:
        worker.end(request_id)


def test_an_error_midway_is_the_last_line_and_items_are_kept(front: FrontProcess) -> None:
    """S-32: in-band error, partial items kept, extra fields intact."""
    with FakeWorker(front.run_dir, three).ready():
        lines = front.client.post("/", content=b'"error"').text.splitlines()
        assert [json.loads(line) for line in lines[:2]] == [{"error": "an item of the user"}, "two"]
        told = json.loads(lines[2])["error"]
        assert (told["code"], told["fields"]) == ("handler.failed", {"error_type": "ValueError", "step": 2})
        assert len(lines) == 3


def test_a_worker_that_dies_midway_is_told_in_the_stream(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, three).ready():
        lines = front.client.post("/", content=b'"death"').text.splitlines()
        assert json.loads(lines[-1])["error"]["code"] == "worker_died"


def test_a_stream_of_nothing_is_empty(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, lambda worker, invoke: worker.end(invoke.head["id"])).ready():
        answer = front.client.post("/", content=b"1")
        assert (answer.status_code, answer.content) == (200, b"")


def test_events_carry_progress_items_and_the_end(front: FrontProcess) -> None:
    with FakeWorker(front.run_dir, three).ready():
        answer = front.client.post("/", content=b'"end"', headers=EVENTS)
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.text == (
            'event: progress\ndata: "half"\n\n'
            'data: {"error": "an item of the user"}\n\n'
            'data: "two"\n\n'
            "event: end\ndata: {}\n\n"
        )
        failed = front.client.post("/", content=b'"error"', headers=EVENTS)
        assert failed.text.rpartition("event: ")[2].startswith('error\ndata: {"error":{"code":"handler.failed"')


def test_progress_before_a_plain_result_is_a_stream_for_who_asks(front: FrontProcess) -> None:
    def answer(worker: FakeWorker, invoke: Frame) -> None:
        worker.progress(invoke.head["id"], b"0.5")
        worker.result(invoke.head["id"], b"42")

    with FakeWorker(front.run_dir, answer).ready():
        assert front.client.post("/", content=b"1").content == b"42"
        events = front.client.post("/", content=b"1", headers=EVENTS).text
        assert events == "event: progress\ndata: 0.5\n\nevent: result\ndata: 42\n\n"


def test_hanging_up_in_a_stream_cancels_it(front: FrontProcess) -> None:
    """S-32: run for ever while the client hangs up."""
    with FakeWorker(front.run_dir, hold).ready() as worker:

        def item() -> None:
            worker.item(worker.invoked[0].head["id"], b"1")

        worker.behaviour = lambda worker, invoke: item()
        with front.client.stream("POST", "/", content=b"1") as answer:
            next(answer.iter_lines())
        assert worker.wait_cancelled(1)[0].head["reason"] == "client_gone"
        worker.error(worker.invoked[0].head["id"], HandlerFailed("stopped"))
        worker.behaviour = lambda worker, invoke: worker.result(invoke.head["id"], b'"next"')
        assert front.client.post("/", content=b"2").content == b'"next"'


def test_a_slow_reader_holds_the_worker_back_and_not_the_fronts_memory(front: FrontProcess) -> None:
    size, count = 1 << 20, 100
    sent = []

    def much(worker: FakeWorker, invoke: Frame) -> None:
        for n in range(count):
            worker.item(invoke.head["id"], b'"%s"' % (b"%02d" % n * (size // 2)))
            sent.append(n)
        worker.end(invoke.head["id"])

    with FakeWorker(front.run_dir, much).ready(), front.client.stream("POST", "/", content=b"1") as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith('"00')
        before = -1
        while before != len(sent):  # until the worker stands still, or has sent everything
            before = len(sent)
            front.client.get("/health/live")
            os.sched_yield()
            for _ in range(20):
                front.client.get("/health/live")
        assert len(sent) < count
        rest = list(lines)
        assert [line[1:3] for line in rest] == [f"{n:02d}" for n in range(1, count)]
