"""What became of each invocation: records for people, the newest kept."""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

KEPT = 500

State = Literal["waiting", "running", "done"]


@dataclass(slots=True)
class Invocation:
    """One invocation as its caller sees it; times in seconds."""

    id: str
    arrived: float
    """Unix time."""
    begun_s: float
    """Monotonic."""
    event_bytes: int
    state: State = "waiting"
    replica: str | None = None
    queued_s: float | None = None
    """From its arrival to the replica that took it."""
    seconds: float | None = None
    """From its arrival to the end of its answer."""
    status: int | None = None
    """The HTTP status of its answer."""
    start: str | None = None
    """What it met, as the replica says: cold, restored or warm."""
    error: str | None = None
    """The code of the error that ended it."""

    def to_json(self) -> dict[str, Any]:
        """Its fields as JSON values."""
        return {
            "id": self.id,
            "arrived": round(self.arrived, 3),
            "event_bytes": self.event_bytes,
            "state": self.state,
            "replica": self.replica,
            "queued_s": _rounded(self.queued_s),
            "seconds": _rounded(self.seconds),
            "status": self.status,
            "start": self.start,
            "error": self.error,
        }


class Invocations:
    """The newest invocations, the newest last."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: deque[Invocation] = deque(maxlen=KEPT)

    def open(self, event_bytes: int) -> Invocation:
        """An invocation came in."""
        invocation = Invocation(f"i{next(self._numbers)}", time.time(), time.monotonic(), event_bytes)
        self._kept.append(invocation)
        return invocation

    def to_json(self) -> list[dict[str, Any]]:
        """All that are kept, the newest first."""
        return [invocation.to_json() for invocation in reversed(self._kept)]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
