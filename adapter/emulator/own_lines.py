"""Which lines of a replica's log are its own, and which are user code's: whatever is not surely ours is theirs."""

from __future__ import annotations

import json
from typing import Any

from adapter.logs import LEVELS

_HEAD = ["at", "level", "role", "event"]
_ROLES = ("supervisor", "front", "fetcher", "worker")
EVENTS: frozenset[str] = frozenset(
    {
        "cache.fallback",
        "front.drain.complete",
        "front.drain.started",
        "front.library",
        "front.status.failed",
        "handler.failed",
        "link.read.failed",
        "link.worker.refused",
        "replica.start.complete",
        "replica.start.failed",
        "report.write.failed",
        "role.end",
        "role.kill",
        "role.spawn.complete",
        "stream.complete",
        "stream.failed",
        "stream.started",
        "supervisor.listen.complete",
        "supervisor.signal",
        "supervisor.stop.complete",
        "weights.address.changed",
        "worker.failed",
        "worker.unresponsive",
    }
)
"""What a replica says."""


def own_line(line: str) -> dict[str, Any] | None:
    """The fields of a line that a role wrote; None for any other line, JSON or not.

    User code may write whatever it likes to the same stream. A line that looks like ours to the letter is taken for
    one: what a start or an invocation came to is never read from it.
    """
    if not line.startswith('{"at":'):
        return None
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if list(value)[:4] != _HEAD or not isinstance(value["at"], (int, float)):
        return None
    known = value["level"] in LEVELS and value["role"] in _ROLES and str(value["event"]) in EVENTS
    return value if known else None
