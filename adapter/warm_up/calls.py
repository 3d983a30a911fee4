"""The calls a user recorded with `handler.warm_up(...)`, and running them before the replica is ready."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from adapter.errors import (
    AdapterError,
    EncodeError,
    HandlerFailed,
    InvalidEvent,
    InvocationTimeout,
    ResponseTooLarge,
    WarmUpError,
)
from adapter.invocation import Cancelled, error_text, user_frame, user_trace
from adapter.timeline import Timeline

_OF_THE_CALL = (HandlerFailed, EncodeError, InvalidEvent, InvocationTimeout, ResponseTooLarge)
"""Ours, but about this very call; others (the store, the checkpoint, the device) keep their own type and exit code."""


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A call to make before the replica is ready: its event, as it was when it was recorded, and where that was."""

    event: Any
    where: str
    """`file:line` of the `warm_up(...)`."""

    def fresh_event(self) -> Any:
        """A copy for one run: handlers may change their event, and the calls run again after a restore."""
        return copy.deepcopy(self.event)


def run_recorded(calls: Sequence[RecordedCall], invoke: Callable[[Any], object], timeline: Timeline) -> None:
    """Run each recorded call once, in order, in the calling thread; each is a span `warm_up[i]`.

    The mode (inference or not), the thread and the kind of call are the caller's: `invoke` does what it does for an
    invocation of the platform, to the end of the stream and with the result encoded, so that the same code is warmed.

    Args:
        calls: `handler.recorded`.
        invoke: Makes one call with this event to its end.
        timeline: Where the spans are recorded.

    Raises:
        WarmUpError: A call raised (or called `sys.exit`); names its index, where it was recorded, and the cause.
            Fields: index, where, error_type, file, line, trace.
        AdapterError: What a call ran into is not the call's own fault (the stream failed, the device is lost).
    """
    for index, call in enumerate(calls):
        with timeline.span(f"warm_up[{index}]", "warm", where=call.where):
            try:
                invoke(call.fresh_event())
            except (KeyboardInterrupt, Cancelled):
                raise
            except BaseException as error:
                if isinstance(error, AdapterError) and not isinstance(error, _OF_THE_CALL):
                    error.add_note(f"while warm_up[{index}] ({call.where}) ran")
                    raise
                raise _failed(index, call, error) from error


def _failed(index: int, call: RecordedCall, error: BaseException) -> WarmUpError:
    file, line = user_frame(error) or ("", 0)
    reason = str(error) if isinstance(error, AdapterError) else error_text(error)
    return WarmUpError(
        f"warm_up[{index}], recorded at {call.where}, failed: {reason}",
        index=index,
        where=call.where,
        error_type=type(error).__name__,
        file=file,
        line=line,
        trace=user_trace(error),
    )
