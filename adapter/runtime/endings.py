"""How an invocation ends without the worker's word: the errors its caller gets."""

from __future__ import annotations

from adapter.errors import AdapterError, Draining, InvocationCancelled, InvocationTimeout, WorkerDied
from adapter.runtime.invocation import CancelReason, Invocation


def copy_of(error: AdapterError) -> AdapterError:
    """An equal error without the traces of where this one was raised before."""
    return AdapterError.from_dict(error.to_dict())


def draining() -> AdapterError:
    """The replica takes no new work."""
    return Draining("the replica is ending and takes no new work: send it to another replica")


def worker_died() -> AdapterError:
    """The worker went away with the invocation."""
    return WorkerDied(
        "the worker ended while it held this invocation; whether it took effect is unknown. A new worker is being "
        "started: try again if running twice does no harm.",
        role="worker",
    )


def cancelled(invocation: Invocation, reason: CancelReason, now: float) -> AdapterError:
    """It was given up for this reason, at this time of the event loop's clock."""
    after_s = round(now - invocation.submitted_s, 3)
    if reason == "deadline":
        where = "while it waited for the worker" if invocation.started_s is None else "in the handler"
        return InvocationTimeout(f"the deadline passed {where}, {after_s:g} s after it came in", seconds=after_s)
    if reason == "drain":
        return Draining(
            f"the replica is ending and interrupted this invocation after {after_s:g} s: send it to another replica",
            seconds=after_s,
        )
    return InvocationCancelled(f"the caller went away after {after_s:g} s", seconds=after_s)
