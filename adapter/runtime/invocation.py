"""One invocation as the front sees it: an event on its way in, outcomes on their way out, exactly one the last."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Literal, NamedTuple

from adapter.errors import AdapterError

OutcomeKind = Literal["progress", "item", "result", "end", "error"]
StartKind = Literal["cold", "restored", "warm"]
CancelReason = Literal["client_gone", "deadline", "drain"]


class Outcome(NamedTuple):
    """Something that came of an invocation; `result`, `end` and `error` are the last."""

    kind: OutcomeKind
    body: bytes = b""
    """JSON, as the worker encoded it; empty for `end` and `error`."""
    error: AdapterError | None = None

    @property
    def last(self) -> bool:
        """Whether nothing follows."""
        return self.kind not in ("progress", "item")


class Invocation:
    """An accepted invocation; made by `Dispatcher.submit`, read by whoever submitted it.

    Args:
        request_id: Its id on the wire, unique among those in flight.
        event: The encoded event, passed on unread.
        submitted_s: When it was accepted (event loop's clock).
        cancel: Called with this invocation and a reason.
        on_backlog: Called with this invocation when outcomes were read.
    """

    __slots__ = (
        "_cancel",
        "_on_read",
        "_outcomes",
        "_waiter",
        "backlog_bytes",
        "ended_s",
        "event",
        "finished",
        "handler_s",
        "init_s",
        "request_id",
        "start",
        "started_s",
        "submitted_s",
        "timer",
    )

    def __init__(
        self,
        request_id: str,
        event: bytes,
        submitted_s: float,
        cancel: Callable[[Invocation, CancelReason], None],
        on_read: Callable[[Invocation], None],
    ) -> None:
        self.request_id: str = request_id
        self.event: bytes = event
        self.submitted_s: float = submitted_s
        self.started_s: float | None = None
        self.ended_s: float | None = None
        self.handler_s: float | None = None
        self.init_s: float | None = None
        self.start: StartKind | None = None
        self.finished: bool = False
        self.backlog_bytes: int = 0
        self.timer: asyncio.TimerHandle | None = None
        self._cancel = cancel
        self._on_read = on_read
        self._outcomes: deque[Outcome] = deque()
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Outcome:
        """The next outcome, as soon as it is there. One reader at a time; none after the last."""
        if not self._outcomes:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def next_nowait(self) -> Outcome | None:
        """The next outcome if it is there already."""
        return self._take() if self._outcomes else None

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        """All outcomes, the last included."""
        while True:
            outcome = await self.next()
            yield outcome
            if outcome.last:
                return

    def cancel(self, reason: CancelReason) -> None:
        """Give it up: the reader gets an error at once, the worker is told, its slot is free when it has stopped."""
        self._cancel(self, reason)

    @property
    def queue_s(self) -> float:
        """How long it waited before the worker got it (or until it ended without the worker)."""
        until = self.started_s if self.started_s is not None else self.ended_s
        return 0.0 if until is None else until - self.submitted_s

    # -- for the dispatcher --------------------------------------------------------------------------------------------

    def put(self, outcome: Outcome) -> None:
        """Add an outcome; the dispatcher sees to it that nothing follows the last."""
        self._outcomes.append(outcome)
        self.backlog_bytes += len(outcome.body)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def discard(self) -> None:
        """Forget outcomes that nobody will read."""
        self._outcomes.clear()
        self.backlog_bytes = 0

    def _take(self) -> Outcome:
        outcome = self._outcomes.popleft()
        if outcome.body:
            self.backlog_bytes -= len(outcome.body)
            self._on_read(self)
        return outcome
