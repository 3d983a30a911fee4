"""The dispatcher: which invocation goes to the worker when, and how each ends, exactly once.

No I/O: what the worker must hear goes to a `WorkerPort`, what the supervisor must hear to a callable. All of it runs
on the front's event loop; none of it blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.errors import AdapterError, LinkError, QueueFull
from adapter.lifecycle import Event, Phase, advance
from adapter.runtime.endings import cancelled, copy_of, draining, worker_died
from adapter.runtime.invocation import CancelReason, Invocation, Outcome, StartKind
from adapter.runtime.link import Frame
from adapter.runtime.metrics import Metrics

BACKLOG_HIGH_BYTES = 4 << 20
"""Unread outcomes of one invocation at which the worker is held back: a slow reader must not fill our memory."""
BACKLOG_LOW_BYTES = 1 << 20

_FORWARD = (Event.START, Event.IMPORTED, Event.LOADED, Event.WARMED)


@dataclass(frozen=True, slots=True)
class Limits:
    """How many and how long."""

    queue_length: int = 256
    """Invocations that may wait for the worker."""
    stall_s: float = 30.0
    """How long a caller that reads nothing may hold the worker back; then its invocation is cancelled."""
    unresponsive_s: float = 5.0
    """How long the worker may take to stop a cancelled invocation before the supervisor hears of it."""


class WorkerPort(Protocol):
    """The front's end of the wire to one worker."""

    def send(self, frame: Frame) -> None:
        """Hand a frame to the wire; never blocks, a broken wire is told by `Dispatcher.detach`."""
        ...

    def hold(self, held: bool) -> None:
        """Stop (or go on) taking what the worker sends."""
        ...

    def close(self) -> None:
        """Give up this worker."""
        ...


class Dispatcher:
    """The replica's invocations; platforms submit, the wire to the worker reports.

    Args:
        limits: How many may wait, and how long for.
        metrics: Counts what happens.
        on_change: Told what the supervisor must know: phase, ready, unresponsive.
        init_started_s: When the replica's start began (monotonic clock).
        served: Whether this replica's worker has served before (the front was replaced).
    """

    def __init__(
        self,
        limits: Limits,
        metrics: Metrics,
        on_change: Callable[[Mapping[str, Any]], None],
        *,
        init_started_s: float | None = None,
        served: bool = False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._metrics = metrics
        self._on_change = on_change
        self._init_started_s = time.monotonic() if init_started_s is None else init_started_s
        self._init_s = 0.0
        self._next_start: StartKind = "warm" if served else "cold"
        self._port: WorkerPort | None = None
        self._concurrency = 1
        self._timeout_s: float | None = None
        self._waiting: dict[str, Invocation] = {}
        self._running: dict[str, Invocation] = {}
        self._clogged: dict[str, asyncio.TimerHandle] = {}
        self._open = 0
        self._idle = asyncio.Event()
        self._failure: AdapterError | None = None
        self.phase: Phase = Phase.COLD
        self.detail: Mapping[str, Any] = {}
        metrics.watch(queue_length=lambda: len(self._waiting), running=lambda: len(self._running), phase=self._phase)

    # -- what platforms use --------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the worker is up and takes invocations."""
        return self.phase is Phase.READY

    @property
    def concurrency(self) -> int:
        """How many invocations the worker takes at a time; known once it is ready."""
        return self._concurrency

    @property
    def failure(self) -> AdapterError | None:
        """Why the start failed, if it did."""
        return self._failure

    def submit(self, event: bytes, *, request_id: str | None = None, timeout_s: float | None = None) -> Invocation:
        """Accept an invocation; it may wait for the start and for a free place in the worker.

        Args:
            event: The encoded event.
            request_id: The platform's id; a new one where None. An id that is in flight already gets a suffix.
            timeout_s: The caller's patience from now on, waiting included; the handler's own limit counts from when
                the worker gets the event.

        Raises:
            QueueFull: Too many wait already.
            Draining: The replica is ending.
            AdapterError: The error that ended the start.
        """
        if self._failure is not None:
            raise copy_of(self._failure)
        if self.phase in (Phase.DRAINING, Phase.STOPPED):
            raise draining()
        free = self._free
        if not free and len(self._waiting) >= self._limits.queue_length:
            self._metrics.refused("queue_full")
            raise QueueFull(
                f"{len(self._waiting)} invocations wait already, as many as may (COLDSTART_QUEUE_LIMIT): try later",
                queue_limit=self._limits.queue_length,
            )
        invocation = Invocation(self._new_id(request_id), event, self._loop.time(), self._cancel, self._on_read)
        self._open += 1
        if timeout_s is not None:
            invocation.timer = self._loop.call_later(timeout_s, self._cancel, invocation, "deadline")
        if free:
            self._dispatch(invocation)
        else:
            self._waiting[invocation.request_id] = invocation
        return invocation

    # -- what the role uses --------------------------------------------------------------------------------------------

    async def drain(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Take no new work, let what was accepted finish within the grace, then cancel what is left.

        Args:
            grace_s: How long.
            hurry: Ends the grace early when set.
        """
        started = self.ready
        self._step(Event.DRAIN)
        if not started:  # nothing will ever take what waits
            self._end_all(self._waiting, draining)
        self._settle()
        waits = [asyncio.ensure_future(self._idle.wait()), asyncio.ensure_future(hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for invocation in [*self._waiting.values(), *self._running.values()]:
            self._cancel(invocation, "drain")

    def fail(self, error: AdapterError) -> None:
        """The start failed for good: everyone who waits, now or later, gets this error."""
        self._failure = error
        self._step(Event.FAIL)
        self._end_all(self._waiting, lambda: copy_of(error))
        self._end_all(self._running, lambda: copy_of(error))

    # -- what the wire to the worker reports ---------------------------------------------------------------------------

    def attach(self, port: WorkerPort, hello: Mapping[str, Any]) -> None:
        """A worker has connected; an earlier one that is still there is given up."""
        previous = self._port
        if previous is not None:
            self.detach(previous)
            previous.close()
        self._port = port
        self._step(Event.START)
        self.detail = {}
        if hello.get("start") == "restored" and self._next_start == "cold":
            self._next_start = "restored"

    def receive(self, port: WorkerPort, frame: Frame) -> None:
        """A frame of the worker.

        Raises:
            LinkError: The worker says something that makes no sense.
        """
        if port is not self._port:
            return
        if frame.kind == "phase":
            self._on_phase(frame.head)
        elif frame.kind == "ready":
            self._on_ready(frame.head)
        else:
            self._on_outcome(frame)

    def detach(self, port: WorkerPort) -> None:
        """A worker is gone: what it held ends as `WorkerDied`, what waits goes to the next worker."""
        if port is not self._port:
            return
        self._port = None
        self._init_started_s = time.monotonic()
        for timer in self._clogged.values():
            timer.cancel()
        self._clogged.clear()
        self._next_start = "cold"
        ending = self.phase is Phase.DRAINING
        self._step(Event.WORKER_LOST)
        self._metrics.worker_lost()
        self._end_all(self._running, worker_died)
        self._running.clear()
        if ending:
            self._end_all(self._waiting, draining)

    # -- the worker's frames -------------------------------------------------------------------------------------------

    def _on_phase(self, head: Mapping[str, Any]) -> None:
        detail = head.get("detail")
        self.detail = detail if isinstance(detail, Mapping) else {"detail": detail} if detail else {}
        if head.get("phase") in (Phase.IMPORTING, Phase.LOADING, Phase.WARMING):
            for event in _FORWARD[:-1]:  # ready has a frame of its own
                if self.phase == head["phase"]:
                    break
                self._step(event)
        self._on_change({"event": "phase", **head})

    def _on_ready(self, head: Mapping[str, Any]) -> None:
        concurrency = head.get("concurrency", 1)
        timeout_s = head.get("timeout_s")
        if not isinstance(concurrency, int) or concurrency < 1 or not isinstance(timeout_s, (int, float, type(None))):
            raise LinkError(f"ready with concurrency {concurrency!r} and timeout_s {timeout_s!r} makes no sense")
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        if self.phase not in (Phase.DRAINING, Phase.FAILED, Phase.STOPPED):
            for event in _FORWARD:
                self._step(event)
        if self._next_start != "warm":  # else a replaced front met a worker that serves already
            self._init_s = time.monotonic() - self._init_started_s
            self._metrics.started(self._init_s)
        self.detail = {}
        self._on_change({"event": "ready", **head})
        self._pump()

    def _on_outcome(self, frame: Frame) -> None:
        kind, request_id = frame.kind, frame.head.get("id")
        if kind not in ("progress", "item", "result", "end", "error") or not isinstance(request_id, str):
            raise LinkError(f"the worker sent a frame of kind {kind!r} with id {request_id!r}")
        if kind in ("progress", "item"):
            invocation = self._running.get(request_id)
            if invocation is not None and not invocation.finished:
                invocation.put(Outcome(kind, frame.body))  # type: ignore[arg-type]
                self._check_backlog(invocation)
            return
        invocation = self._running.pop(request_id, None)
        if invocation is None:
            return  # it was sent by another front's worker, or twice
        if not invocation.finished:
            seconds = frame.head.get("seconds")
            invocation.handler_s = float(seconds) if isinstance(seconds, (int, float)) else None
            if kind == "error":
                described = frame.head.get("error")
                error = AdapterError.from_dict(described if isinstance(described, Mapping) else {})
                self._finish(invocation, Outcome("error", error=error))
            else:
                self._finish(invocation, Outcome(kind, frame.body))  # type: ignore[arg-type]
        elif invocation.timer is not None:
            invocation.timer.cancel()  # it was cancelled, and the worker has stopped it in time
        self._pump()

    # -- the way of an invocation --------------------------------------------------------------------------------------

    @property
    def _free(self) -> bool:
        return (
            self._port is not None
            and len(self._running) < self._concurrency
            and self.phase in (Phase.READY, Phase.DRAINING)
        )

    def _pump(self) -> None:
        while self._waiting and self._free:
            self._dispatch(self._waiting.pop(next(iter(self._waiting))))

    def _dispatch(self, invocation: Invocation) -> None:
        assert self._port is not None
        now = self._loop.time()
        invocation.started_s = now
        invocation.start, self._next_start = self._next_start, "warm"
        if invocation.start != "warm":
            invocation.init_s = self._init_s
        ends = invocation.timer.when() if invocation.timer is not None else None
        if self._timeout_s is not None and (ends is None or now + self._timeout_s < ends):
            if invocation.timer is not None:
                invocation.timer.cancel()
            ends = now + self._timeout_s
            invocation.timer = self._loop.call_at(ends, self._cancel, invocation, "deadline")
        deadline = None if ends is None else time.time() + (ends - now)
        self._running[invocation.request_id] = invocation
        head = {"id": invocation.request_id, "deadline": deadline, "cold": invocation.start == "cold"}
        event, invocation.event = invocation.event, b""
        self._port.send(Frame("invoke", head, event))

    def _cancel(self, invocation: Invocation, reason: CancelReason) -> None:
        if invocation.finished:
            return
        waited = self._waiting.pop(invocation.request_id, None) is not None
        if reason == "client_gone":
            invocation.discard()
        self._finish(invocation, Outcome("error", error=cancelled(invocation, reason, self._loop.time())))
        if not waited and self._port is not None:
            self._port.send(Frame("cancel", {"id": invocation.request_id, "reason": reason}))
            invocation.timer = self._loop.call_later(
                self._limits.unresponsive_s, self._unresponsive, invocation.request_id
            )

    def _finish(self, invocation: Invocation, outcome: Outcome) -> None:
        invocation.finished = True
        invocation.ended_s = self._loop.time()
        if invocation.timer is not None:
            invocation.timer.cancel()
        invocation.put(outcome)
        self._unclog(invocation.request_id)
        self._metrics.finished(invocation, outcome)
        self._open -= 1
        self._settle()

    def _end_all(self, invocations: dict[str, Invocation], error: Callable[[], AdapterError]) -> None:
        for invocation in list(invocations.values()):
            if not invocation.finished:
                self._finish(invocation, Outcome("error", error=error()))
        if invocations is self._waiting:
            invocations.clear()

    def _settle(self) -> None:
        if self._open == 0 and self.phase is Phase.DRAINING:
            self._idle.set()

    def _unresponsive(self, request_id: str) -> None:
        if request_id in self._running:
            self._on_change({"event": "unresponsive", "id": request_id, "seconds": self._limits.unresponsive_s})

    def _new_id(self, wanted: str | None) -> str:
        request_id = wanted or os.urandom(16).hex()
        while request_id in self._running or request_id in self._waiting:
            request_id = f"{wanted}~{os.urandom(4).hex()}"
        return request_id

    # -- holding back a worker that is faster than a reader ------------------------------------------------------------

    def _check_backlog(self, invocation: Invocation) -> None:
        if invocation.backlog_bytes > BACKLOG_HIGH_BYTES and invocation.request_id not in self._clogged:
            self._clogged[invocation.request_id] = self._loop.call_later(
                self._limits.stall_s, invocation.cancel, "client_gone"
            )
            if self._port is not None:
                self._port.hold(True)

    def _on_read(self, invocation: Invocation) -> None:
        if self._clogged and invocation.backlog_bytes <= BACKLOG_LOW_BYTES:
            self._unclog(invocation.request_id)

    def _unclog(self, request_id: str) -> None:
        timer = self._clogged.pop(request_id, None)
        if timer is not None:
            timer.cancel()
            if not self._clogged and self._port is not None:
                self._port.hold(False)

    # -- the replica's state -------------------------------------------------------------------------------------------

    def _phase(self) -> Phase:
        return self.phase

    def _step(self, event: Event) -> None:
        with contextlib.suppress(ValueError):  # such as a lost worker of a replica that ends: nothing changes
            self.phase = advance(self.phase, event)
