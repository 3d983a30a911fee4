"""Waiting for what another process does to files: polled, bounded by a deadline, ended by that process's failure."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeVar

from adapter.errors import AdapterError, InitTimeout

T = TypeVar("T")

Failure = Callable[[], AdapterError | None]
"""Tells whether who fills the files has failed; asked between two looks."""

_FIRST_PAUSE_S = 0.0005
_LONGEST_PAUSE_S = 0.005
"""200 looks a second cost under 1 % of a core, and 5 ms is lost in the time of one range read."""
_GROWTH = 1.3


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time on the monotonic clock, in seconds."""

    at_s: float

    @classmethod
    def after(cls, seconds: float) -> Self:
        """The point in time that is so far from now."""
        return cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Time left; never negative."""
        return max(0.0, self.at_s - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self.at_s


def wait_for(
    look: Callable[[], T | None],
    what: Callable[[], str],
    *,
    failure: Failure | None = None,
    deadline: Deadline | None = None,
) -> T:
    """What `look` gives as soon as that is not None.

    Args:
        look: Cheap; called every 0.5 to 5 ms.
        what: Says what is waited for and how far it is, for the error's message.
        failure: An error it returns ends the wait.
        deadline: None waits for ever.

    Raises:
        AdapterError: The one that `failure` returned.
        InitTimeout: The deadline passed.
    """
    pause_s = _FIRST_PAUSE_S
    while True:
        # asked before the look: what was there when the other side failed still counts
        failed = failure() if failure is not None else None
        late = deadline is not None and deadline.passed
        found = look()
        if found is not None:
            return found
        if failed is not None:
            raise failed
        if late:
            raise InitTimeout(f"time is up while waiting for {what()}", stage="weights")
        time.sleep(pause_s if deadline is None else min(pause_s, deadline.remaining_s()))
        pause_s = min(pause_s * _GROWTH, _LONGEST_PAUSE_S)
