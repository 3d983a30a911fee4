"""Running user code for one invocation: how it is interrupted, how what it gives or raises becomes frames."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from adapter.errors import AdapterError, HandlerFailed, InvocationCancelled, InvocationTimeout
from adapter.invocation import Cancelled, InvocationContext, error_text, user_frame, user_trace
from adapter.logs import Log
from adapter.runtime.codec import encode_result
from adapter.runtime.link import Frame

CANCEL_SIGNAL = signal.SIGUSR1
"""Sent to the worker's main thread to raise `Cancelled` in user code."""


@dataclass(slots=True)
class Call:
    """One invocation in the worker."""

    request_id: str
    event: bytes
    deadline: float | None
    """Seconds of the wall clock."""
    is_cold_start: bool
    started_s: float = field(default_factory=time.monotonic)
    cancel_reason: str | None = None
    ended: bool = False

    def context(self, send: Callable[[Frame], None]) -> InvocationContext:
        """What the handler is told of it."""
        return InvocationContext(
            request_id=self.request_id,
            deadline=self.deadline,
            is_cold_start=self.is_cold_start,
            report_progress=lambda value: send(Frame("progress", {"id": self.request_id}, encode_result(value))),
            cancel_reason=lambda: self.cancel_reason,
        )

    def frame(self, kind: str, body: bytes = b"", **head: Any) -> Frame:
        """A last frame about it, with the seconds it took."""
        return Frame(kind, {"id": self.request_id, "seconds": time.monotonic() - self.started_s, **head}, body)


class Interrupts:
    """Raises `Cancelled` in the main thread's user code, and nowhere else.

    A signal's handler runs between any two instructions of the main thread; outside `running` it must change nothing,
    or a frame would be cut in the middle of its sending.
    """

    def __init__(self) -> None:
        self._running: Call | None = None
        signal.signal(CANCEL_SIGNAL, self._interrupt)

    @contextlib.contextmanager
    def running(self, call: Call) -> Iterator[None]:
        """User code of this call runs in the `with` block, on the main thread."""
        self._running = call
        try:
            if call.cancel_reason is not None:
                raise Cancelled(call.cancel_reason)
            yield
        finally:
            self._running = None

    def cancel(self, call: Call, reason: str) -> None:
        """Stop this call; from any thread."""
        call.cancel_reason = reason
        if self._running is call:
            signal.pthread_kill(threading.main_thread().ident or 0, CANCEL_SIGNAL)

    def _interrupt(self, number: int, frame: object) -> None:
        call = self._running
        if call is not None and call.cancel_reason is not None:
            self._running = None  # once: the handler's own clean-up is not interrupted again
            raise Cancelled(call.cancel_reason)


def leave_if_forked(worker: int, error: BaseException | None = None) -> None:
    """End this process where it is a child that user code forked and let run back into ours: it is no second worker.

    Args:
        worker: The PID of the worker that the invocation was given to.
        error: What user code raised, if it did; `sys.exit` names the exit code.
    """
    if os.getpid() != worker:
        code = error.code if isinstance(error, SystemExit) else None if error is None else 1
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def failed(call: Call, error: BaseException, log: Log) -> Frame:
    """The last frame of a call whose user code raised, whatever it raised; the trace goes to the log only."""
    told = _as_ours(call, error)
    if isinstance(told, HandlerFailed):
        log.error("handler.failed", request_id=call.request_id, error=told.message, trace=user_trace(error))
    return call.frame("error", error=told.to_dict())


def _as_ours(call: Call, error: BaseException) -> AdapterError:
    if isinstance(error, AdapterError):
        return error
    if call.cancel_reason == "deadline":
        return InvocationTimeout("the invocation's deadline passed while the handler ran", request_id=call.request_id)
    if call.cancel_reason is not None:
        return InvocationCancelled(f"the invocation was cancelled: {call.cancel_reason}", request_id=call.request_id)
    file, line = user_frame(error) or ("", 0)
    return HandlerFailed(
        f"the handler raised {error_text(error)}",
        error_type=type(error).__name__,
        file=file,
        line=line,
    )
