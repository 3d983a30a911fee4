"""The dispatcher without I/O: whatever happens in whatever order, each invocation ends exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.errors import AdapterError, Draining, HandlerFailed, LoadError, QueueFull
from adapter.lifecycle import Phase
from adapter.runtime.invocation import Invocation, Outcome
from adapter.runtime.link import Frame
from adapter.runtime.metrics import Metrics
from adapter.runtime.queue import BACKLOG_HIGH_BYTES, Dispatcher, Limits

PATIENCE_S = 5


class Port:
    """A wire to a worker that keeps what it is given."""

    def __init__(self) -> None:
        self.sent: list[Frame] = []
        self.held = False
        self.closed = False

    def send(self, frame: Frame) -> None:
        self.sent.append(frame)

    def hold(self, held: bool) -> None:
        self.held = held

    def close(self) -> None:
        self.closed = True

    def ids(self, kind: str) -> list[str]:
        return [frame.head["id"] for frame in self.sent if frame.kind == kind]


class Replica:
    """A dispatcher, the ports it was given and what it told."""

    def __init__(self, **limits: Any) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.dispatcher = Dispatcher(Limits(**limits), Metrics(), self.told.append)
        self.ports: list[Port] = []

    @property
    def port(self) -> Port:
        return self.ports[-1]

    def worker(self, concurrency: int = 1, timeout_s: float | None = None) -> Port:
        self.ports.append(Port())
        self.dispatcher.attach(self.port, {"pid": 1})
        self.say("ready", concurrency=concurrency, timeout_s=timeout_s)
        return self.port

    def say(self, kind: str, body: bytes = b"", **head: Any) -> None:
        self.dispatcher.receive(self.port, Frame(kind, head, body))

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 (a condition of any kind, polled within a bound)
                await asyncio.sleep(0)


async def outcomes(invocation: Invocation) -> list[Outcome]:
    async with asyncio.timeout(PATIENCE_S):
        return [outcome async for outcome in invocation]


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_waiting_invocations_go_in_the_order_of_their_arrival() -> None:
    async def story() -> None:
        replica = Replica()
        calls = [replica.dispatcher.submit(b"%d" % n) for n in range(4)]
        port = replica.worker(concurrency=2)
        assert [frame.body for frame in port.sent] == [b"0", b"1"]
        replica.say("result", b"x", id=calls[1].request_id)
        assert [frame.body for frame in port.sent] == [b"0", b"1", b"2"]
        assert await outcomes(calls[1]) == [Outcome("result", b"x")]

    run(story)


def test_a_place_is_free_only_when_the_worker_has_stopped() -> None:
    async def story() -> None:
        replica = Replica()
        port = replica.worker()
        first, second = replica.dispatcher.submit(b"1"), replica.dispatcher.submit(b"2")
        first.cancel("client_gone")
        first.cancel("client_gone")
        assert port.ids("cancel") == [first.request_id]
        assert port.ids("invoke") == [first.request_id]
        replica.say("error", id=first.request_id, error=HandlerFailed("stopped").to_dict())
        assert port.ids("invoke") == [first.request_id, second.request_id]
        assert [outcome.error and outcome.error.code for outcome in await outcomes(first)] == ["invocation.cancelled"]

    run(story)


def test_a_worker_that_does_not_stop_is_told_once() -> None:
    async def story() -> None:
        replica = Replica(unresponsive_s=0.01)
        replica.worker(concurrency=2)
        stuck, good = replica.dispatcher.submit(b"1"), replica.dispatcher.submit(b"2")
        stuck.cancel("deadline")
        good.cancel("deadline")
        replica.say("error", id=good.request_id, error={})
        await replica.until(lambda: replica.told[-1]["event"] == "unresponsive")
        assert [line["id"] for line in replica.told if line["event"] == "unresponsive"] == [stuck.request_id]

    run(story)


def test_a_reader_that_stands_still_is_cancelled_and_the_others_go_on() -> None:
    async def story() -> None:
        replica = Replica(stall_s=0.01)
        port = replica.worker(concurrency=2)
        slow, other = replica.dispatcher.submit(b"1"), replica.dispatcher.submit(b"2")
        replica.say("item", b"x" * (BACKLOG_HIGH_BYTES + 1), id=slow.request_id)
        assert port.held
        await replica.until(lambda: not port.held)
        assert port.ids("cancel") == [slow.request_id]
        assert [outcome.kind for outcome in await outcomes(slow)] == ["error"]
        replica.say("result", b"2", id=other.request_id)
        assert await outcomes(other) == [Outcome("result", b"2")]

    run(story)


def test_a_reader_that_catches_up_lets_the_worker_go_on() -> None:
    async def story() -> None:
        replica = Replica()
        port = replica.worker()
        call = replica.dispatcher.submit(b"1")
        for _ in range(5):
            replica.say("item", b"x" * (1 << 20), id=call.request_id)
        assert port.held
        for _ in range(3):
            await call.next()
        assert port.held
        await call.next()
        assert not port.held

    run(story)


def test_a_failed_start_refuses_and_ends_with_its_own_error() -> None:
    async def story() -> None:
        replica = Replica()
        waiting = replica.dispatcher.submit(b"1")
        replica.dispatcher.fail(LoadError("no such layer", line=7))
        with pytest.raises(LoadError, match="no such layer"):
            replica.dispatcher.submit(b"2")
        (outcome,) = await outcomes(waiting)
        assert isinstance(outcome.error, LoadError)
        assert outcome.error.fields == {"line": 7}
        assert replica.dispatcher.phase is Phase.FAILED

    run(story)


def test_phases_go_forward_only_and_unknown_ones_change_nothing() -> None:
    async def story() -> None:
        replica = Replica()
        replica.ports.append(Port())
        replica.dispatcher.attach(replica.port, {})
        seen = []
        for phase in ("warming", "importing", "dreaming", "ready", None):
            replica.say("phase", phase=phase, detail={"note": phase})
            seen.append(replica.dispatcher.phase)
        assert seen == [Phase.WARMING] * 5
        assert replica.dispatcher.detail == {"note": None}
        assert not replica.dispatcher.ready

    run(story)


def test_nothing_waits_where_nothing_may_wait() -> None:
    async def story() -> None:
        replica = Replica(queue_length=0)
        with pytest.raises(QueueFull):
            replica.dispatcher.submit(b"1")
        replica.worker()
        replica.dispatcher.submit(b"1")
        with pytest.raises(QueueFull):
            replica.dispatcher.submit(b"2")

    run(story)


def test_a_drain_of_an_idle_replica_is_over_at_once() -> None:
    async def story() -> None:
        replica = Replica()
        replica.worker()
        async with asyncio.timeout(PATIENCE_S):
            await replica.dispatcher.drain(3600, asyncio.Event())
        with pytest.raises(Draining):
            replica.dispatcher.submit(b"1")

    run(story)


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "finish", "finish", "item", "cancel", "lose", "worker", "stale", "read"]),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 3), st.sampled_from(["drain", "fail"]))
@settings(deadline=None, max_examples=150)
def test_every_invocation_ends_exactly_once(story: list[tuple[str, int]], concurrency: int, end: str) -> None:
    """Submissions, results, cancellations, deaths of workers and late frames in any order."""

    async def play() -> None:
        replica = Replica(queue_length=4)
        calls: list[Invocation] = []
        finished_by_worker: set[str] = set()
        for step, n in story:
            port = replica.ports[-1] if replica.ports else None
            in_worker = [i for i in port.ids("invoke") if i not in finished_by_worker] if port else []
            if step == "submit":
                try:
                    calls.append(replica.dispatcher.submit(b"%d" % n, timeout_s=3600 if n else None))
                except QueueFull:
                    continue
            elif step == "worker":
                replica.worker(concurrency, timeout_s=3600 if n else None)
                finished_by_worker = set()
            elif step == "lose" and port:
                replica.dispatcher.detach(port)
            elif step == "cancel" and calls:
                calls[n % len(calls)].cancel("client_gone")
            elif step == "read" and calls:
                calls[n % len(calls)].next_nowait() if not calls[n % len(calls)].finished else None
            elif step == "stale" and len(replica.ports) > 1:
                replica.dispatcher.receive(
                    replica.ports[0], Frame("result", {"id": calls[0].request_id if calls else ""})
                )
            elif in_worker and step in ("finish", "item"):
                replica.say("result" if step == "finish" else "item", b"1", id=in_worker[n % len(in_worker)])
                if step == "finish":
                    finished_by_worker.add(in_worker[n % len(in_worker)])
            if replica.ports:
                open_places = set(replica.port.ids("invoke")) - finished_by_worker
                assert len(open_places) <= concurrency
        if end == "drain":
            hurry = asyncio.Event()
            hurry.set()
            await replica.dispatcher.drain(3600, hurry)
        else:
            replica.dispatcher.fail(AdapterError("over"))
        for call in calls:
            told = await outcomes(call)
            assert [outcome.last for outcome in told] == [False] * (len(told) - 1) + [True]
            assert call.next_nowait() is None

    run(play)
