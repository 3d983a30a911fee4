"""A replica's life as one table: phases, the events that move between them, and nothing else."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Where a replica is in its life."""

    COLD = "cold"
    """Nothing has happened yet."""
    IMPORTING = "importing"
    """The framework and the handler's module are being imported (weights may already stream)."""
    LOADING = "loading"
    """The user's `load` runs, waiting per tensor for the stream."""
    WARMING = "warming"
    """The recorded calls run."""
    READY = "ready"
    """Invocations are served."""
    RECOVERING = "recovering"
    """A ready replica lost its worker; a new one starts."""
    DRAINING = "draining"
    """No new work is taken; what runs may finish within the grace."""
    FAILED = "failed"
    """The start failed; the replica ends with the error's exit code."""
    STOPPED = "stopped"
    """Every role has ended."""


class Event(StrEnum):
    """What can happen to a replica."""

    START = "start"
    IMPORTED = "imported"
    LOADED = "loaded"
    WARMED = "warmed"
    FAIL = "fail"
    WORKER_LOST = "worker_lost"
    DRAIN = "drain"
    ENDED = "ended"


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.COLD, Event.START): Phase.IMPORTING,
    (Phase.IMPORTING, Event.IMPORTED): Phase.LOADING,
    (Phase.LOADING, Event.LOADED): Phase.WARMING,
    (Phase.WARMING, Event.WARMED): Phase.READY,
    (Phase.RECOVERING, Event.START): Phase.IMPORTING,
    # a worker lost at any point is started again; a failure or a drain may come at any point before the end
    **{
        (phase, Event.WORKER_LOST): Phase.RECOVERING
        for phase in (Phase.COLD, Phase.IMPORTING, Phase.LOADING, Phase.WARMING, Phase.READY, Phase.RECOVERING)
    },
    **{
        (phase, Event.FAIL): Phase.FAILED
        for phase in Phase
        if phase not in (Phase.FAILED, Phase.STOPPED, Phase.DRAINING)
    },
    **{(phase, Event.DRAIN): Phase.DRAINING for phase in Phase if phase not in (Phase.FAILED, Phase.STOPPED)},
    (Phase.DRAINING, Event.ENDED): Phase.STOPPED,
    (Phase.FAILED, Event.ENDED): Phase.STOPPED,
}


def advance(phase: Phase, event: Event) -> Phase:
    """The phase that follows.

    Raises:
        ValueError: The event cannot happen in this phase.
    """
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ValueError(f"a replica that is {phase} cannot take the event {event}") from None
