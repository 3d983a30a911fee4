"""What happens in an emulator, told to everyone who listens: events with numbers, kept for who comes back."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

KEPT = 1000
"""Events that a listener who lost its connection can still get."""
BEHIND_LIMIT = 2000
"""Events that a listener may be behind; then it is cut off, and comes back for a fresh snapshot."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event."""

    number: int
    kind: str
    value: Any
    """A JSON value."""


class Hub:
    """Tells events to listeners; used from one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._kept: deque[Happening] = deque(maxlen=KEPT)
        self._listeners: set[asyncio.Queue[Happening | None]] = set()
        self._closed = False
        self.last_number: int = 0
        self.instance: str = os.urandom(4).hex()
        """Tells numbers of this hub from those of one before it at the same address."""

    def publish(self, kind: str, value: Any) -> None:
        """Tell everyone."""
        happening = Happening(next(self._numbers), kind, value)
        self.last_number = happening.number
        self._kept.append(happening)
        for listener in list(self._listeners):
            if listener.qsize() < BEHIND_LIMIT:
                listener.put_nowait(happening)
            else:
                self._cut_off(listener)

    def missed(self, after: int) -> tuple[Happening, ...] | None:
        """What happened after that number; None where that is not known any more."""
        if not 0 < after <= self.last_number:
            return None
        if self._kept and self._kept[0].number > after + 1:
            return None
        return tuple(happening for happening in self._kept if happening.number > after)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Queue[Happening | None]]:
        """What happens from now on; None when the hub closes, or this listener is too far behind."""
        listener: asyncio.Queue[Happening | None] = asyncio.Queue()
        if self._closed:
            listener.put_nowait(None)
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)

    def close(self) -> None:
        """End every listener."""
        self._closed = True
        for listener in list(self._listeners):
            self._cut_off(listener)

    def _cut_off(self, listener: asyncio.Queue[Happening | None]) -> None:
        self._listeners.discard(listener)
        listener.put_nowait(None)
