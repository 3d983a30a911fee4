"""The handlers without a model, called in place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapter import Cancelled, InvocationContext
from adapter.errors import InvalidEvent
from handlers.echo import count, count_async, echo, echo_async


def test_echo_gives_the_event_and_what_is_known_of_the_invocation() -> None:
    context = InvocationContext(request_id="r1", is_cold_start=True)
    assert echo.bind(None, context)([1, {"a": None}]) == {
        "event": [1, {"a": None}],
        "request_id": "r1",
        "is_cold_start": True,
    }


def test_count_streams_numbers_from_one() -> None:
    assert list(count({"to": 3})) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_count_stops_when_its_caller_is_gone() -> None:
    reason: list[str] = []
    stream = count.bind(None, InvocationContext(cancel_reason=lambda: reason[0] if reason else None))({"to": 1000})
    assert next(iter(stream)) == {"n": 1}
    reason.append("client_gone")
    with pytest.raises(Cancelled):
        list(stream)


def test_the_async_ones_do_the_same_without_blocking_each_other() -> None:
    async def both() -> tuple[dict[str, Any], list[int]]:
        async def numbers() -> list[int]:
            return [item["n"] async for item in count_async({"to": 3, "sleep_s": 0.001})]

        answer, counted = await asyncio.gather(echo_async({"sleep_s": 0.001}), numbers())
        return answer, counted

    answer, counted = asyncio.run(both())
    assert answer["event"] == {"sleep_s": 0.001}
    assert counted == [1, 2, 3]
    assert echo_async.spec.concurrency == count_async.spec.concurrency == 16


@pytest.mark.parametrize("value", ["1", -1, 61, True, float("nan")])
def test_a_sleep_that_is_no_number_in_bounds_is_refused(value: object) -> None:
    with pytest.raises(InvalidEvent, match='"sleep_s" must be a number from 0 to 60'):
        echo({"sleep_s": value})
