"""Reads seen and ended from outside."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from adapter.errors import StorageError, TruncatedRead
from adapter.storage.base import RangeRequest
from adapter.storage.memory import MemorySource, StallRead
from adapter.storage.watch import ReadWatch
from tests.support.scripted_s3 import CONTENT, KIB, opened
from tests.support.scripted_store import Answer, Asked, part
from tests.support.stores import CREDENTIALS


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def until(condition: Callable[[], bool]) -> None:
    for _ in range(5000):
        if condition():
            return
        threading.Event().wait(0.002)
    raise AssertionError("it did not come about")


def stalling(asked: Asked) -> Answer:
    answer = part(CONTENT, asked)
    return replace(
        answer, body=answer.body[: 3 * KIB], then="stall", headers={**answer.headers, "Content-Length": "8192"}
    )


@pytest.mark.parametrize("give_up", [False, True])
def test_a_body_that_is_silent_ends_when_it_is_broken_off(give_up: bool) -> None:
    """S-08: long before the socket's own timeout, with what had arrived."""
    watch = ReadWatch()
    with opened(stalling, timeout_s=60.0) as (_, source), ThreadPoolExecutor(1) as pool:
        buffer = memoryview(bytearray(8 * KIB))

        def read() -> list[int]:
            answers = source.read_chunks(RangeRequest("a", 8 * KIB, 8 * KIB, watch=watch), buffer)
            got = [next(answers).length_bytes]
            with pytest.raises(TruncatedRead):
                next(answers)
            return got

        reading = pool.submit(read)
        until(lambda: watch.received_bytes == 3 * KIB)
        assert watch.answered_s is not None
        watch.give_up() if give_up else watch.interrupt("too slow")
        assert reading.result(timeout=10) == [3 * KIB]
        assert buffer[: 3 * KIB] == CONTENT[8 * KIB : 11 * KIB]
        assert watch.given_up is give_up


def test_a_read_given_up_before_its_answer_ends_with_the_answer() -> None:
    watch = ReadWatch()
    watch.give_up()
    with MemorySource({"a": bytes(100)}, [StallRead("a", 10)]) as source:
        chunks = source.read_chunks(RangeRequest("a", 0, 100, watch=watch), memoryview(bytearray(100)))
        assert next(chunks).length_bytes == 10
        with pytest.raises(StorageError):
            next(chunks)


def test_a_connection_that_serves_the_next_read_is_not_broken_off() -> None:
    first = ReadWatch()
    with opened(lambda asked: part(CONTENT, asked)) as (store, source):
        for watch in (first, ReadWatch()):
            buffer = memoryview(bytearray(KIB))
            answers = source.read_chunks(RangeRequest("a", 0, KIB, watch=watch), buffer)
            assert sum(answer.length_bytes for answer in answers) == KIB
            first.interrupt("too late")
        assert store.connections == 1


def test_an_interruption_counts_for_one_request_and_giving_up_for_all() -> None:
    watch = ReadWatch()
    broken: list[str] = []
    watch.asked()
    watch.interrupt("slow")
    watch.answered(lambda: broken.append("first"))
    watch.asked()
    watch.answered(lambda: broken.append("second"))
    assert broken == ["first"]
    watch.give_up()
    watch.asked()
    watch.answered(lambda: broken.append("third"))
    assert broken == ["first", "second", "third"]
    assert watch.given_up
