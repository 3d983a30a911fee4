"""What user code knows of the invocation it serves, how it is told to stop, and which part of a trace is the user's."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import time
import traceback
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

_OURS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_IMPORTLIB = os.path.join(os.path.dirname(os.path.abspath(importlib.__file__)), "")
_STDLIB = os.path.join(os.path.dirname(os.path.abspath(os.__file__)), "")
_INSTALLED = re.compile("/(site|dist)-packages/")
_TRACE_FRAMES = 20
"""Deep recursion gives hundreds of equal frames; the last ones say where."""
_TEXT_CHARACTERS = 2000
"""Some libraries put a whole tensor or document into a message."""
_TRACE_CHARACTERS = 8192
"""A trace travels in a line of JSON and into logs that cut long lines."""


class Cancelled(BaseException):
    """Raised in user code whose invocation was cancelled or ran out of time.

    A `BaseException`, so that `except Exception` does not swallow it; let it pass, clean up in `finally`.

    Args:
        reason: `client_gone`, `deadline` or `drain`.
    """

    def __init__(self, reason: str = "client_gone") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the invocation was cancelled: {self.reason}"


class InvocationLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry the attribute `request_id`, besides the `extra` of each call."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """The call's arguments with the request's id among the extra attributes."""
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationContext:
    """One invocation as its handler sees it; given to handlers that declare a parameter `context`.

    Made without arguments it is good for calling a handler in a test or a notebook: no deadline, never cancelled.
    May be used from any thread of the handler.
    """

    request_id: str = "local"
    """The platform's id of this invocation, else one of ours."""
    deadline: float | None = None
    """When the answer must be there, in seconds of the wall clock (`time.time()`); None without a limit."""
    is_cold_start: bool = False
    """Whether this invocation met a cold start: it is the first of its worker."""
    report_progress: Callable[[object], None] | None = None
    """Where `progress` goes; set by the runtime."""
    cancel_reason: Callable[[], str | None] | None = None
    """Why the invocation was cancelled, None as long as it was not; set by the runtime."""

    def remaining_ms(self) -> float:
        """Milliseconds until the deadline: never below 0, `math.inf` without a deadline.

        Expiry goes by the wall clock, which goes on while a process is frozen in a snapshot.
        """
        return math.inf if self.deadline is None else max(0.0, (self.deadline - time.time()) * 1000)

    @property
    def cancelled(self) -> bool:
        """Whether the work is for nothing: the caller is gone, the replica ends, or the deadline has passed."""
        return self._reason() is not None

    def raise_if_cancelled(self) -> None:
        """Leave the handler here if the work is for nothing; cheap enough for an inner loop.

        Raises:
            Cancelled: The invocation was cancelled, or its deadline has passed.
        """
        reason = self._reason()
        if reason is not None:
            raise Cancelled(reason)

    def progress(self, value: object) -> None:
        """Tell the caller how far it is: any value that JSON carries. Without a runtime it goes nowhere."""
        if self.report_progress is not None:
            self.report_progress(value)

    @property
    def log(self) -> InvocationLog:
        """A standard logger (`coldstart.handler`) whose records carry this invocation's `request_id`."""
        return InvocationLog(logging.getLogger("coldstart.handler"), {"request_id": self.request_id})

    def _reason(self) -> str | None:
        reason = self.cancel_reason() if self.cancel_reason is not None else None
        return "deadline" if reason is None and self.remaining_ms() <= 0 else reason


def error_text(error: BaseException) -> str:
    """`ValueError: what it says`, of any length at most 2000 characters, also where `str(error)` itself raises."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - user code again, and the error that is being told matters more
        said = "(its message cannot be read)"
    said = said if len(said) <= _TEXT_CHARACTERS else said[:_TEXT_CHARACTERS] + "…"
    return f"{name}: {said}" if said else name


def user_trace(error: BaseException) -> str:
    """The error as Python prints it, with its causes, less the frames of this package and of the import system.

    At most 20 frames and 8192 characters, the last ones: where it was raised.
    """
    told = traceback.TracebackException.from_exception(error)
    _trim(told)
    text = "".join(told.format()).rstrip()
    return text if len(text) <= _TRACE_CHARACTERS else "…" + text[-_TRACE_CHARACTERS:]


def user_frame(error: BaseException) -> tuple[str, int] | None:
    """File and line of the user's code where the error came from.

    The innermost frame of the user's own files; of a library they installed where there is none; None where all frames
    are ours or Python's import system.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno or 1
    own = library = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if _is_users(file):
            library = file, trace.tb_lineno
            own = own if file.startswith(_STDLIB) or _INSTALLED.search(file) else library
        trace = trace.tb_next
    return own or library


def _is_users(file: str) -> bool:
    return not file.startswith((_OURS, _IMPORTLIB, "<frozen "))


def _trim(told: traceback.TracebackException) -> None:
    frames = [frame for frame in told.stack if _is_users(frame.filename)]
    told.stack = traceback.StackSummary.from_list(frames[-_TRACE_FRAMES:])
    for other in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if other is not None:
            _trim(other)
