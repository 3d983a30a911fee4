"""Rates: how they are written and how they are kept."""

from __future__ import annotations

import asyncio
import time

import pytest

from adapter.emulator.shaping import RequestLimit, Shaping, TokenBucket, parse_rate
from adapter.errors import ConfigurationError


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("1Gbps", 125e6),
        ("100Mbps", 12.5e6),
        ("2.5 gbit/s", 312.5e6),
        ("125MB/s", 125e6),
        ("8bps", 1.0),
        ("1kB/s", 1e3),
        ("125MBps", 125e6),
        ("125MB/S", 125e6),
        ("125 mB/s", 125e6),
        ("1000mbps", 125e6),
        ("1KBps", 1e3),
    ],
)
def test_rates_are_read_in_bits_and_bytes(text: str, bytes_per_s: float) -> None:
    assert parse_rate(text) == pytest.approx(bytes_per_s)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fast",
        "0Mbps",
        "-1Gbps",
        "1",
        "1GB",
        "nanMbps",
        "1e3Mbps",
        "1Gbps please",
        "1Gb/s",
        "125 mb/s",
        "1GBPS",
        "1Gbps\u00a0x",
        "\u0661Gbps",
    ],
)
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="no rate"):
        parse_rate(text)


def test_a_bucket_is_never_faster_than_its_rate() -> None:
    async def pass_through(count: int, times: int) -> float:
        bucket = TokenBucket(10e6)
        began = time.monotonic()
        await asyncio.gather(*(bucket.take(count) for _ in range(times)))
        return time.monotonic() - began

    assert asyncio.run(pass_through(100_000, 20)) >= 0.2 - 0.03


def test_a_bucket_without_a_rate_never_waits() -> None:
    asyncio.run(asyncio.wait_for(TokenBucket(None).take(1 << 60), 1))


def test_requests_beyond_the_rate_are_refused_as_long_as_the_limit_lasts() -> None:
    """S-11"""
    now_s = [50.0]
    limit = RequestLimit(Shaping(requests_per_s=5, throttle_s=10), lambda: now_s[0])
    assert [limit.refuses() for _ in range(7)] == [False] * 5 + [True] * 2
    now_s[0] += 0.5
    assert [limit.refuses() for _ in range(4)] == [False] * 2 + [True] * 2
    now_s[0] += 100
    assert not any(limit.refuses() for _ in range(100))


def test_without_a_rate_no_request_is_too_many() -> None:
    limit = RequestLimit(Shaping())
    assert not any(limit.refuses() for _ in range(100))
