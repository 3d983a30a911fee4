"""How many requests at a time: decisions as values, and the gate under a clock that a test moves."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import InvocationCancelled, StoreFailed, Throttled
from adapter.storage.base import RangeRequest
from adapter.storage.concurrency import (
    ConcurrencyRule,
    Gate,
    Level,
    Rate,
    after_throttle,
    after_window,
    refused,
)
from adapter.storage.memory import FailRead, MemorySource, StallRead
from adapter.storage.retry import RetryingSource, RetryPolicy
from adapter.storage.watch import ReadWatch

RULE = ConcurrencyRule(first=16, most=64)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def climbed(cap: float = 1e12, per_connection: float = 50e6) -> list[int]:
    """The limits of 40 windows of a link that gives each connection so much, and no more than the cap in all."""
    level, limits = Level(RULE.first), []
    for _ in range(40):
        level = after_window(level, min(level.limit * per_connection, cap), full=True, rule=RULE)
        limits.append(level.limit)
    return limits


def test_more_connections_are_taken_while_they_bring_more() -> None:
    """D3"""
    limits = climbed()
    assert limits[:3] == [20, 24, 28], "additive"
    assert limits[-1] == RULE.most


def test_no_more_are_kept_than_bring_more() -> None:
    """D3"""
    limits = climbed(cap=1e9)  # full with 20 connections
    assert max(limits) <= 24
    assert sum(limit == 20 for limit in limits) > 30, "it rests there, with a look upwards from time to time"
    assert limits.count(24) >= 2


def test_what_was_not_used_up_teaches_nothing() -> None:
    assert after_window(Level(16), 1e9, full=False, rule=RULE) == Level(16)


def test_half_as_many_after_the_store_asked_to_slow_down_and_up_again_later() -> None:
    """S-11"""
    level = after_throttle(Level(40), 30, RULE)
    assert level.limit == 15
    assert after_throttle(Level(1), 1, RULE).limit == 1
    for _ in range(RULE.rest_windows):
        level = after_window(level, 1e9, full=True, rule=RULE)
        assert level.limit == 15
    assert after_window(level, 1e9, full=True, rule=RULE).limit == 19


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0, 1e10)), max_size=60))
def test_whatever_happens_the_bounds_hold(events: list[tuple[bool, bool, float]]) -> None:
    level = Level(RULE.first)
    for throttled, full, goodput in events:
        level = (
            after_throttle(level, level.limit, RULE)
            if throttled
            else after_window(level, goodput, full=full, rule=RULE)
        )
        assert 1 <= level.limit <= RULE.most


def test_the_rate_comes_back_slowly_where_it_was_refused_and_quickly_beyond() -> None:
    """S-11"""
    rate = refused(None, 5.0, 10.0)
    assert rate.per_s(10.0) == pytest.approx(3.5)
    assert rate.per_s(11.5) == pytest.approx(5.0, abs=0.05)
    assert rate.per_s(20.0) > 100
    assert refused(None, 0.0, 0.0).per_s(0.0) >= 0.99, "it never stands still"


def test_a_rate_refused_again_is_lowered_from_what_was_really_used() -> None:
    unused = Rate(5.0, 0.0)
    assert refused(unused, 4.0, 60.0).refused_per_s == 5.0, "it had grown far beyond, but nobody asked so fast"
    assert refused(unused, 2.0, 1.0).refused_per_s == pytest.approx(unused.per_s(1.0))


def test_a_burst_of_refusals_counts_once() -> None:
    """S-11"""
    clock = Clock()
    gate = Gate(RULE, clock)
    sent = [gate.enter(lambda: False) for _ in range(16)]
    clock.now_s += 0.05
    streaks = [gate.throttled(each) for each in sent if each is not None]
    assert streaks == [1] + [0] * 15
    assert (gate.limit, gate.throttles) == (8, 16)


def test_requests_after_a_refusal_are_spaced_out() -> None:
    """S-11: fewer connections alone do not help a store that counts requests."""
    clock = Clock()
    gate = Gate(ConcurrencyRule(first=4, most=4), clock)
    sent_s = gate.enter(lambda: False)
    assert sent_s is not None
    for _ in range(5):
        gate.accepted()
    clock.now_s += 0.1
    gate.throttled(sent_s)
    gate.leave()
    times: list[float] = []
    while len(times) < 40:
        pause_s = gate.pause_s()
        clock.now_s += pause_s
        if pause_s == 0:
            assert gate.enter(lambda: False) == clock.now_s
            times.append(clock.now_s)
            gate.leave()
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] == pytest.approx(1 / 3.5)
    assert len([at for at in times if at < times[0] + 2]) <= 10
    assert gaps[-1] < 0.1, "and soon not any more"


def test_no_more_requests_are_under_way_than_the_gate_lets_through() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def count(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)

    class Counting(MemorySource):
        def read_chunks(self, request, buffer):  # type: ignore[no-untyped-def]
            count(1)
            try:
                threading.Event().wait(0.002)
                yield from super().read_chunks(request, buffer)
            finally:
                count(-1)

    source = RetryingSource(Counting({"a": bytes(100)}), gate=Gate(ConcurrencyRule(first=3, most=3)))
    with ThreadPoolExecutor(12) as pool:
        reads = [pool.submit(source.read_into, "a", 0, memoryview(bytearray(100))) for _ in range(60)]
        assert {read.result(timeout=20).length_bytes for read in reads} == {100}
    assert most == 3


def test_a_request_that_failed_frees_its_place() -> None:
    faults = [FailRead("a", StoreFailed("500"), times=2), FailRead("a", Throttled("slow"), first=3)]
    policy = RetryPolicy(first_backoff_s=0.001, longest_backoff_s=0.001)
    source = RetryingSource(MemorySource({"a": bytes(9)}, faults), policy, gate=Gate(ConcurrencyRule(first=1, most=1)))
    for _ in range(3):
        assert source.read_into("a", 0, memoryview(bytearray(9))).length_bytes == 9
    assert source.gate.enter(lambda: False) is not None


def test_a_read_beyond_the_limit_goes_at_once_and_one_given_up_does_not_wait() -> None:
    gate = Gate(ConcurrencyRule(first=1, most=1))
    source = RetryingSource(MemorySource({"a": bytes(9)}, [StallRead("a", 3)]), gate=gate)
    buffer = memoryview(bytearray(9))
    stalled = ReadWatch()
    first = source.read_chunks(RangeRequest("a", 0, 9, watch=stalled), buffer)
    assert next(first).length_bytes == 3
    beyond = source.read_chunks(RangeRequest("a", 0, 9, watch=ReadWatch(beyond=True)), memoryview(bytearray(9)))
    assert [answer.length_bytes for answer in beyond] == [9]
    waiting = ReadWatch()
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(lambda: next(source.read_chunks(RangeRequest("a", 0, 9, watch=waiting), buffer)))
        waiting.give_up()
        with pytest.raises(InvocationCancelled):
            third.result(timeout=10)
    stalled.interrupt("test")
    assert next(first).length_bytes == 6, "the broken read goes on where it ended"
