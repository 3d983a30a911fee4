"""Which reads are too slow: broken off when they hardly move, doubled when they take much longer than others.

Values and decisions only. One connection in many is slow for no reason of ours, and a start is as late as its last
range (D3); so a range that takes much longer than they usually do is asked for once more on another connection,
sooner once no other work is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class SlownessRule:
    """What is too slow."""

    stall_s: float = 10.0
    """Bytes of a read are counted over this: longer than a lost packet's retransmissions (1 to 3 s) and a pause of
    the store, half of a socket's own time limit."""
    slowest_bytes_per_s: int = 1024
    """A read that brings less has stalled; 64 connections on a link of 1 Mb/s each bring more."""
    hedge_share: float = 0.03
    """How much of what is streamed may be read twice, as a share; 0 turns hedging off."""
    hedge_factor: float = 2.0
    """So many times longer than usual has to be what a read took and what it will still take."""
    midway_factor: float = 4.0
    """The same while other work is left: a slow read then costs a connection, not yet the end. Where one answer of 50
    is 20 times slower, not passing it would cost 1.38 times the time (49 + 20 for 50)."""
    midway_share: float = 0.5
    """What may be spent of `hedge_share` before the end, as a share of that."""
    hedge_after_s: float = 0.1
    """No read is doubled before: it costs a round trip and perhaps a new connection."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How far a read was at some time."""

    at_s: float
    received_bytes: int


def has_stalled(then: Moved, now: Moved, rule: SlownessRule) -> bool | None:
    """Whether a read hardly moved from `then` to `now`; None while that is too short to tell."""
    seconds = now.at_s - then.at_s
    if seconds < rule.stall_s:
        return None
    return now.received_bytes - then.received_bytes < rule.slowest_bytes_per_s * seconds


@dataclass(frozen=True, slots=True)
class Finished:
    """A read that went well."""

    length_bytes: int
    first_byte_s: float
    seconds: float
    """In all."""


@dataclass(frozen=True, slots=True)
class Usual:
    """How long reads usually take here."""

    first_byte_s: float
    bytes_per_s: float

    def seconds(self, length_bytes: int) -> float:
        """How long a read of so many bytes takes."""
        return self.first_byte_s + length_bytes / self.bytes_per_s


def usual(finished: Sequence[Finished]) -> Usual | None:
    """The medians of some reads; None of none."""
    rates = [each.length_bytes / max(each.seconds - each.first_byte_s, 1e-4) for each in finished if each.length_bytes]
    if not rates:
        return None
    # of small reads alone no rate can be told, and theirs does not matter
    return Usual(median(each.first_byte_s for each in finished), max(median(rates), 1.0))


@dataclass(frozen=True, slots=True)
class Running:
    """A read under way."""

    length_bytes: int
    received_bytes: int
    seconds: float
    """Since it was begun."""


def is_late(read: Running, ordinary: Usual, rule: SlownessRule, *, midway: bool = False) -> bool:
    """Whether another read would probably bring the rest much earlier.

    Args:
        read: The read.
        ordinary: How long reads take.
        rule: What is much.
        midway: Whether other work is left.
    """
    factor = rule.midway_factor if midway else rule.hedge_factor
    if read.seconds < max(rule.hedge_after_s, factor * ordinary.seconds(read.length_bytes)):
        return False
    left_bytes = read.length_bytes - read.received_bytes
    if left_bytes <= 0:
        return False
    if read.received_bytes == 0:
        return True
    left_s = left_bytes * read.seconds / read.received_bytes
    return left_s > factor * ordinary.seconds(left_bytes)
