"""Everything at once: stalls, cuts, failures and hedges in random order, and the bytes are right all the same."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest

from adapter.errors import ConnectionFailed, StoreFailed, Throttled
from adapter.storage.base import RangeRequest
from adapter.storage.memory import CutRead, FailRead, Fault, MemorySource, StallRead
from adapter.storage.retry import RetryPolicy
from adapter.streaming.hedging import SlownessRule
from tests.support.shard_bytes import sharded
from tests.support.streams import MEBIBYTE, contents, left_names, stream

OBJECTS = sharded(2, 3 * MEBIBYTE + 123)
POLICY = RetryPolicy(attempts=40, throttled_attempts=40, first_backoff_s=0.001, longest_backoff_s=0.01)
RULE = SlownessRule(stall_s=0.15, hedge_share=0.5, hedge_after_s=0.01, hedge_factor=1.5)
"""Nervous: many reads are doubled that are hardly slow."""


def faults(draw: random.Random) -> list[Fault]:
    chosen: list[Fault] = []
    for key in OBJECTS:
        for number in range(1, 40):
            kind = draw.choice(("none", "none", "none", "stall", "cut", "shortened", "fail", "throttle"))
            after_bytes = draw.choice((0, 1, 1000, 70_000, 300_000))
            if kind == "stall":
                chosen.append(StallRead(key, after_bytes, first=number))
            elif kind in ("cut", "shortened"):
                chosen.append(CutRead(key, max(1, after_bytes), first=number, shortened=kind == "shortened"))
            elif kind == "fail":
                chosen.append(FailRead(key, draw.choice((ConnectionFailed("reset"), StoreFailed("500"))), first=number))
            elif kind == "throttle" and draw.random() < 0.1:
                chosen.append(FailRead(key, Throttled("slow down"), first=number))
    return chosen


@pytest.mark.parametrize("seed", range(8))
def test_whatever_the_store_does_the_bytes_are_right(tmp_path: Path, seed: int) -> None:
    """D3, S-08, S-11"""
    draw = random.Random(seed)
    lock = threading.Lock()

    def dawdle(request: RangeRequest) -> None:
        with lock:
            seconds = draw.choice((0, 0, 0, 0.005, 0.05))
        threading.Event().wait(seconds)

    source = MemorySource(OBJECTS, faults(draw), before_read=dawdle)
    more = {"slowness": RULE, "retry": POLICY, "part_bytes": MEBIBYTE // 2, "chunk_bytes": 64 << 10}
    manifest, progress = stream(source, tmp_path, **more, connections=6)
    assert contents(manifest) == OBJECTS
    assert progress.done_bytes == progress.total_bytes
    assert progress.twice_bytes <= 0.5 * progress.total_bytes + progress.hedges * (64 << 10)
    assert progress.fetched_bytes - progress.twice_bytes <= progress.total_bytes
    assert not [name for name in left_names(tmp_path) if ".part-" in name or ".journal-" in name]
    # what was written twice and in pieces has one checksum all the same
    again = MemorySource(OBJECTS)
    _, cached = stream(again, tmp_path, verify="crc")
    assert (cached.fetched_bytes, again.received_bytes) == (0, 0)
