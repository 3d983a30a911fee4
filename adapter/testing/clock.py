"""Time that a test moves."""

from __future__ import annotations

import math


class ManualClock:
    """A clock that stands still until it is moved: for code that is handed its clock.

    Called, it gives the time in seconds, as `time.monotonic` does; `sleep` moves it instead of waiting.

    Args:
        start_s: What it shows first.
    """

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = _length(start_s)

    def __call__(self) -> float:
        """The time, in seconds."""
        return self._now_s

    def advance(self, seconds: float) -> float:
        """Move it on; the new time.

        Raises:
            ValueError: The length is below zero or no number: monotonic clocks never go back.
        """
        self._now_s += _length(seconds)
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """As `time.sleep`, at once.

        Raises:
            ValueError: As `advance`.
        """
        self.advance(seconds)


def _length(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"a number of seconds from 0 is wanted, not {seconds!r}")
    return float(seconds)
