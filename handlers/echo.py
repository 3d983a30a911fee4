"""Handlers without a model, one of each kind: to try a platform, a client or the adapter itself.

coldstart serve handlers.echo:echo
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from adapter import InvocationContext, coldstart_handler
from adapter.errors import InvalidEvent

SLEEP_LIMIT_S = 60.0
COUNT_LIMIT = 1_000_000


@coldstart_handler
def echo(event: Any, context: InvocationContext) -> dict[str, Any]:
    """The event again, and what is known of the invocation.

    `{"sleep_s": seconds}` blocks for that long first, as a busy model does.
    """
    time.sleep(_number(event, "sleep_s", SLEEP_LIMIT_S))
    return _answer(event, context)


@coldstart_handler(concurrency=16)
async def echo_async(event: Any, context: InvocationContext) -> dict[str, Any]:
    """As `echo`, for 16 invocations at a time: each sleeps without blocking the others."""
    await asyncio.sleep(_number(event, "sleep_s", SLEEP_LIMIT_S))
    return _answer(event, context)


@coldstart_handler
def count(event: Any, context: InvocationContext) -> Iterator[dict[str, int]]:
    """`{"n": 1}`, `{"n": 2}`, … as a stream: `{"to": how many, "sleep_s": seconds before each}`."""
    to, sleep_s = int(_number(event, "to", COUNT_LIMIT)), _number(event, "sleep_s", SLEEP_LIMIT_S)
    for n in range(1, to + 1):
        time.sleep(sleep_s)
        context.raise_if_cancelled()
        yield {"n": n}


@coldstart_handler(concurrency=16)
async def count_async(event: Any) -> AsyncIterator[dict[str, int]]:
    """As `count`, for 16 streams at a time."""
    to, sleep_s = int(_number(event, "to", COUNT_LIMIT)), _number(event, "sleep_s", SLEEP_LIMIT_S)
    for n in range(1, to + 1):
        await asyncio.sleep(sleep_s)
        yield {"n": n}


def _answer(event: Any, context: InvocationContext) -> dict[str, Any]:
    return {"event": event, "request_id": context.request_id, "is_cold_start": context.is_cold_start}


def _number(event: Any, name: str, limit: float) -> float:
    """A number that an event may hold, from 0 to the limit; 0 where it has none."""
    value = event.get(name, 0) if isinstance(event, Mapping) else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
        raise InvalidEvent(f'"{name}" must be a number from 0 to {limit:g}', field=name)
    return value
