"""Reads that are tried again: how often, how long between, and by whom."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConnectionFailed,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
    Throttled,
    TruncatedRead,
)
from adapter.storage.base import RangeRequest
from adapter.storage.memory import ChangeObject, CutRead, DenyListing, FailRead, Fault, MemorySource
from adapter.storage.retry import RetryingSource, RetryPolicy, may_be_tried_again

CONTENT = bytes(range(256)) * 8
QUICK = RetryPolicy(attempts=4, first_backoff_s=0.001, longest_backoff_s=0.002)


def retrying(*faults: Fault, policy: RetryPolicy = QUICK) -> tuple[MemorySource, RetryingSource]:
    source = MemorySource({"a": CONTENT}, faults)
    return source, RetryingSource(source, policy)


def read(source: RetryingSource, start: int = 0, length: int = len(CONTENT)) -> bytes:
    buffer = bytearray(length)
    answer = source.read_into("a", start, memoryview(buffer))
    return bytes(buffer[: answer.length_bytes])


def test_a_read_that_breaks_goes_on_where_it_ended() -> None:
    """S-08."""
    source, again = retrying(CutRead("a", 300, first=1, times=2))
    assert read(again, 10, 1000) == CONTENT[10:1010]
    assert [(record.start, record.received_bytes) for record in source.reads] == [(10, 300), (310, 300), (610, 400)]
    assert source.received_bytes == 1000
    assert (again.requests, again.retries) == (3, 2)


@given(st.lists(st.integers(0, 500), max_size=3), st.integers(1, 700), st.integers(0, 2047), st.integers(1, 2047))
def test_however_it_is_cut_the_bytes_are_right(cuts: list[int], buffer_bytes: int, start: int, length: int) -> None:
    faults = [CutRead("a", after, first=number) for number, after in enumerate(cuts, 1)]
    source = MemorySource({"a": CONTENT}, faults)
    again = RetryingSource(source, RetryPolicy(attempts=4, first_backoff_s=0.0))
    buffer = memoryview(bytearray(buffer_bytes))
    chunks = again.read_chunks(RangeRequest("a", start, length), buffer)
    assert b"".join(bytes(buffer[: chunk.length_bytes]) for chunk in chunks) == CONTENT[start : start + length]
    assert source.received_bytes == len(CONTENT[start : start + length]), "no byte is fetched twice"


def test_attempts_are_counted_for_the_range_not_for_each_step_forward() -> None:
    source, again = retrying(CutRead("a", 1, times=100))
    with pytest.raises(TruncatedRead) as failed:
        read(again)
    assert len(source.reads) == 4
    assert failed.value.fields["attempts"] == 4


@pytest.mark.parametrize("kind", [AccessDenied, ObjectNotFound, ObjectChanged])
def test_what_cannot_get_better_is_not_tried_again(kind: type[StorageError]) -> None:
    source, again = retrying(FailRead("a", kind("no"), times=9))
    with pytest.raises(kind) as failed:
        read(again)
    assert len(source.reads) == 1
    assert failed.value.fields["attempts"] == 1


def test_the_last_error_keeps_its_type_fields_and_cause() -> None:
    cause = ConnectionFailed("reset", key="a", range="0-9", cause="ConnectionResetError")
    _, again = retrying(FailRead("a", cause, times=9))
    with pytest.raises(ConnectionFailed, match="reset; gave up after 4 attempts") as failed:
        read(again)
    assert failed.value.fields == {"key": "a", "range": "0-9", "cause": "ConnectionResetError", "attempts": 4}
    assert isinstance(failed.value.__cause__, ConnectionFailed)


def test_a_replaced_object_is_never_mixed_into_a_broken_read() -> None:
    """S-10."""
    _, again = retrying(CutRead("a", 100), ChangeObject("a", CONTENT[::-1], first=2))
    with pytest.raises(ObjectChanged):
        read(again)


def test_a_listing_is_tried_again() -> None:
    class Flaky(MemorySource):
        calls = 0

        def list(self):  # type: ignore[no-untyped-def]
            self.calls += 1
            yield from super().list()
            if self.calls == 1:
                raise ConnectionFailed("broke after the first page")

    assert [info.key for info in RetryingSource(Flaky({"a": b""}), QUICK).list()] == ["a"]
    denied = RetryingSource(MemorySource({"a": b""}, [DenyListing(AccessDenied("no"))]), QUICK)
    with pytest.raises(AccessDenied):
        list(denied.list())


def test_all_threads_hold_back_after_one_was_throttled() -> None:
    """S-11: one back-off for the pool."""
    times: list[float] = []
    lock = threading.Lock()

    def note(request: RangeRequest) -> None:
        with lock:
            times.append(time.monotonic())

    fault = FailRead("a", Throttled("slow down", retry_after_s=0.4))
    source = MemorySource({"a": CONTENT, "b": CONTENT}, [fault], before_read=note)
    again = RetryingSource(source, QUICK)
    with ThreadPoolExecutor(2) as pool:
        throttled = pool.submit(read, again)
        while again.retries == 0:
            threading.Event().wait(0.001)
        assert again.read_into("b", 0, memoryview(bytearray(10))).length_bytes == 10
        assert throttled.result(timeout=10) == CONTENT
    assert min(times[1:]) - times[0] >= 0.4


def test_a_wait_ends_when_the_stream_is_cancelled() -> None:
    cancel = threading.Event()
    source = MemorySource({"a": CONTENT}, [FailRead("a", Throttled("slow down", retry_after_s=50.0), times=99)])
    again = RetryingSource(source, QUICK, cancel=cancel)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, again)
        while again.retries == 0:
            threading.Event().wait(0.001)
        began = time.monotonic()
        cancel.set()
        with pytest.raises(Throttled):
            reading.result(timeout=10)
    assert time.monotonic() - began < 5
    assert len(source.reads) == 1, "nothing is sent after the end"


def test_the_deadline_ends_tries_and_waits() -> None:
    """S-11: the deadline caps the total."""
    source = MemorySource({"a": CONTENT}, [FailRead("a", Throttled("slow down", retry_after_s=30.0), times=99)])
    began = time.monotonic()
    with pytest.raises(Throttled):
        read(RetryingSource(source, QUICK, deadline_s=began + 0.2))
    assert 0.2 <= time.monotonic() - began < 5
    assert len(source.reads) == 1


def test_what_may_be_tried_again_is_what_the_error_says() -> None:
    assert may_be_tried_again(ConnectionFailed("x"))
    assert not may_be_tried_again(ConnectionFailed("x", ignores_range=True))
    assert not may_be_tried_again(AdapterError("x"))
    assert not may_be_tried_again(ValueError("x"))


def test_an_error_of_the_consumer_is_not_taken_for_one_of_the_store() -> None:
    source, again = retrying()

    def consume() -> None:
        for _ in again.read_chunks(RangeRequest("a", 0, 100), memoryview(bytearray(10))):
            raise ConnectionFailed("mine")

    with pytest.raises(ConnectionFailed, match="mine"):
        consume()
    assert len(source.reads) == 1


def test_a_closed_source_waits_no_more() -> None:
    source, again = retrying()
    with again:
        assert again.store == source.store
    assert source.closed
