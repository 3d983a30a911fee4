"""A slow link on a fast machine: bytes per second in all and per connection, and a wait before the first byte."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from adapter.errors import ConfigurationError

BURST_S = 0.02
"""How much of unused time a bucket lends: enough to make up for timers that fire a tick late, too little to see."""

_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
_RATE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kKmMgG]?)(bps|[bB]it/s|B/[sS]|Bps)\s*", re.ASCII)
"""A lone `b/s` may be meant as either, and so may all capitals: neither is guessed at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """How slow the link is; None is as fast as the machine."""

    bytes_per_s_total: float | None = None
    """Of all connections together."""
    bytes_per_s_connection: float | None = None
    """Of one answer; object stores give a single connection some 50–100 MB/s."""
    first_byte_s: float = 0.0
    """From the request to the first byte of its answer."""
    slow_one_in: int | None = None
    """Every so-many-th body is sent slowly, as some connections are for no reason that a client can see (D3)."""
    slow_factor: float = 20.0
    """So many times slower than a connection's rate, which has to be given."""
    requests_per_s: float | None = None
    """More requests than this are answered with 503 SlowDown (S-11)."""
    throttle_s: float = float("inf")
    """For so long, from the first request on."""
    retry_after_s: int | None = None
    """What those answers say of when to come again; None: nothing."""

    @property
    def shaped(self) -> bool:
        """Whether there is any limit on bytes per second."""
        return self.bytes_per_s_total is not None or self.bytes_per_s_connection is not None


class TokenBucket:
    """Spreads bytes over time. The schedule is absolute: a wait that ends late is made up for by the next.

    Args:
        bytes_per_s: The rate; None never waits.
    """

    def __init__(self, bytes_per_s: float | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_s = 0.0

    async def take(self, count: int) -> None:
        """Wait until `count` bytes would have passed the link; in the order of the calls."""
        if self._bytes_per_s is None:
            return
        now_s = time.monotonic()
        self._free_at_s = max(self._free_at_s, now_s - BURST_S) + count / self._bytes_per_s
        if self._free_at_s > now_s:
            await asyncio.sleep(self._free_at_s - now_s)


class RequestLimit:
    """Says which requests are too many: as many as come in one second are let through at once, then the rate holds.

    Args:
        shaping: The rate, and for how long there is one.
        clock: Seconds that only grow.
    """

    def __init__(self, shaping: Shaping, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = shaping.requests_per_s
        self._for_s = shaping.throttle_s
        self._clock = clock
        self._begun_s: float | None = None
        self._at_s = 0.0
        self._left = 0.0

    def refuses(self) -> bool:
        """Whether this request is one too many."""
        if self._per_s is None:
            return False
        now_s = self._clock()
        if self._begun_s is None:
            self._begun_s = self._at_s = now_s
            self._left = self._per_s
        if now_s - self._begun_s >= self._for_s:
            return False
        self._left = min(self._per_s, self._left + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
        if self._left < 1:
            return True
        self._left -= 1
        return False


def parse_rate(text: str) -> float:
    """Bytes per second from `1Gbps`, `100 Mbit/s` (bits), `125MB/s` or `125MBps` (bytes, capital B); units are decimal.

    Raises:
        ConfigurationError: It is no such text, or not above zero.
    """
    match = _RATE.fullmatch(text)
    value = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if match is None or value <= 0:
        raise ConfigurationError(f"{text!r} is no rate; write 1Gbps or 100Mbit/s (bits), 125MB/s (bytes)", value=text)
    return value if match[3] in ("B/s", "B/S", "Bps") else value / 8
