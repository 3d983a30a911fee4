"""How many requests may be under way and how fast they may follow each other, learnt from what the store answers.

More while that brings more bytes, half as many when the store asks to slow down; then also a rate, since a store
that counts requests is not helped by few connections that each ask often. Sources: additive increase, multiplicative
decrease as in TCP; the way back to the full rate is the cubic one of RFC 9438, as in the "adaptive" mode of the AWS
SDKs: quick far from the rate that was refused, slow around it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

_LOOK_S = 0.05
"""How often a request that has to wait looks whether it is still wanted."""
_KEPT = 0.7
"""What is left of a rate after it was refused. Source: RFC 9438 section 4.6."""
_GROWTH = 1.0
"""Requests per second gained in the first second beyond the refused rate, in seconds cubed afterwards. RFC 9438 has
0.4 for links that stay as they are; here the crowd goes away, and a start waits: 50 more are reached in 3.7 s."""
_SLOWEST_PER_S = 1.0
"""A crowd of a thousand cold starts then asks less than a bucket's prefix gives (5500 a second in S3)."""
_FREE_PER_S = 1000.0
"""No stream asks faster (8 GB/s in parts of 8 MiB): a rate that has grown to this is none any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyRule:
    """Between which bounds the number of requests under way is looked for, and how."""

    first: int
    """Where it begins."""
    most: int
    """Where it ends."""
    window_s: float = 0.25
    """Bytes are counted over this: some tens of parts on a link that can take more connections."""
    gain: float = 1.05
    """More connections stay only if they bring this much more: less is noise."""
    rest_windows: int = 8
    """Windows for which the number stays after more did not help."""

    @property
    def step(self) -> int:
        """How many more are tried at a time: twice the first number is reached in a second."""
        return max(1, self.first // 4)


@dataclass(frozen=True, slots=True)
class Level:
    """How many requests may be under way, and what is known about that number."""

    limit: int
    before: int = 0
    """The number from which this one is being tried; 0 when none is."""
    goodput_per_s: float = 0.0
    """What that number brought."""
    rest_windows: int = 0
    """Windows left before more are tried."""


def after_window(level: Level, goodput_per_s: float, *, full: bool, rule: ConcurrencyRule) -> Level:
    """The level after a window in which so many bytes came each second.

    Args:
        level: The level of that window.
        goodput_per_s: Bytes per second over all requests.
        full: Whether as many requests were under way as were allowed: otherwise nothing was learnt.
        rule: The bounds.
    """
    if not full:
        return level
    if level.before and goodput_per_s < level.goodput_per_s * rule.gain:
        return Level(level.before, rest_windows=rule.rest_windows)
    if level.rest_windows > 0:
        return replace(level, rest_windows=level.rest_windows - 1)
    limit = min(level.limit + rule.step, rule.most)
    return Level(limit, level.limit if limit > level.limit else 0, goodput_per_s)


def after_throttle(level: Level, running: int, rule: ConcurrencyRule) -> Level:
    """The level after the store asked to slow down while so many requests were under way."""
    return Level(max(1, min(level.limit, running) // 2), rest_windows=rule.rest_windows)


@dataclass(frozen=True, slots=True)
class Rate:
    """How many requests a second may be sent, after that many were too many at some time."""

    refused_per_s: float
    at_s: float

    def per_s(self, now_s: float) -> float:
        """The rate at a later time."""
        back_s = (self.refused_per_s * (1 - _KEPT) / _GROWTH) ** (1 / 3)
        return self.refused_per_s + float(_GROWTH * (now_s - self.at_s - back_s) ** 3)


def refused(rate: Rate | None, accepted_per_s: float, now_s: float) -> Rate:
    """The rate after the store asked to slow down.

    Args:
        rate: The rate that was kept to; None where there was no bound.
        accepted_per_s: Answers without such a request in the last second: what the store really gives.
        now_s: The time.
    """
    used = accepted_per_s if rate is None else min(rate.per_s(now_s), max(rate.refused_per_s, accepted_per_s + 1))
    return Rate(max(used, _SLOWEST_PER_S / _KEPT), now_s)


class Gate:
    """Lets requests of all threads through, one by one. Thread-safe; one for each stream.

    Args:
        rule: Bounds of the number under way; None lets all through that the rate lets through.
        clock: Seconds that only grow.
    """

    def __init__(self, rule: ConcurrencyRule | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rule: ConcurrencyRule = rule or ConcurrencyRule(first=1 << 20, most=1 << 20)
        self.throttles: int = 0
        """Answers that asked to slow down."""
        self._clock = clock
        self._changed = threading.Condition()
        self._level = Level(self.rule.first)
        self._rate: Rate | None = None
        self._running = self._most_running = 0
        self._window_s = clock()
        self._window_bytes = 0
        self._hold_until_s = self._next_s = self._slowed_s = float("-inf")
        self._accepted: deque[float] = deque()
        self._streak = 0

    @property
    def limit(self) -> int:
        """How many requests may be under way now."""
        return self._level.limit

    @property
    def slowed(self) -> bool:
        """Whether it still keeps back because the store asked to slow down."""
        return self._rate is not None or self._hold_until_s > self._clock()

    def pause_s(self, *, beyond: bool = False) -> float:
        """How long the next request has to wait at least; 0 if it may go now.

        Args:
            beyond: Let it go also when as many are under way as may be.
        """
        now_s = self._clock()
        if not beyond and self._running >= self._level.limit:
            return max(_LOOK_S, self._hold_until_s - now_s)
        return max(0.0, self._hold_until_s - now_s, self._next_s - now_s)

    def enter(self, over: Callable[[], bool], *, beyond: bool = False) -> float | None:
        """Wait until a request may be sent; the time, or None when there is no point in it any more.

        Whoever got a time calls `leave` when the request has ended.

        Args:
            over: Whether it need not be sent any more; asked while waiting.
            beyond: Do not wait for others to end: for a read that takes the place of one which hangs.
        """
        with self._changed:
            while not over():
                pause_s = self.pause_s(beyond=beyond)
                if pause_s <= 0:
                    now_s = self._clock()
                    self._running += 1
                    self._most_running = max(self._most_running, self._running)
                    self._space_out(now_s)
                    return now_s
                self._changed.wait(min(pause_s, _LOOK_S))
        return None

    def leave(self) -> None:
        """A request has ended, however it did."""
        with self._changed:
            self._running -= 1
            self._changed.notify()

    def accepted(self) -> None:
        """The store answers a request."""
        with self._changed:
            now_s = self._clock()
            self._streak = 0
            self._accepted.append(now_s)
            self._forget(now_s)

    def received(self, count: int) -> None:
        """So many more bytes have come."""
        with self._changed:
            now_s = self._clock()
            self._window_bytes += count
            seconds = now_s - self._window_s
            if seconds < self.rule.window_s:
                return
            if seconds < 4 * self.rule.window_s:  # a longer one was a pause
                full = self._most_running >= self._level.limit
                self._level = after_window(self._level, self._window_bytes / seconds, full=full, rule=self.rule)
            self._begin_window(now_s)

    def throttled(self, sent_s: float) -> int:
        """The store asks to slow down: how often in a row it did so; 0 if this answer is of a burst already counted.

        Args:
            sent_s: When the request was sent.
        """
        with self._changed:
            now_s = self._clock()
            self.throttles += 1
            if sent_s <= self._slowed_s:
                return 0
            self._slowed_s = now_s
            self._streak += 1
            self._forget(now_s)
            self._level = after_throttle(self._level, max(self._most_running, 1), self.rule)
            self._rate = refused(self._rate, len(self._accepted), now_s)
            self._begin_window(now_s)
            return self._streak

    def hold(self, seconds: float) -> None:
        """Send nothing for so long."""
        with self._changed:
            self._hold_until_s = max(self._hold_until_s, self._clock() + seconds)

    def _space_out(self, now_s: float) -> None:
        if self._rate is None:
            return
        per_s = self._rate.per_s(now_s)
        if per_s >= _FREE_PER_S:
            self._rate = None
        else:
            self._next_s = now_s + 1 / per_s

    def _begin_window(self, now_s: float) -> None:
        self._window_s, self._window_bytes, self._most_running = now_s, 0, self._running

    def _forget(self, now_s: float) -> None:
        while self._accepted and self._accepted[0] < now_s - 1:
            self._accepted.popleft()
