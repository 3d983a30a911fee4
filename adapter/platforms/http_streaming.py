"""Streams over HTTP: the items of a generator handler as they come, as JSON lines or as server-sent events.

An error after the first item travels in the stream, as its last record; what came before stays valid.
Source of the event format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Send

from adapter.runtime.invocation import Invocation, Outcome, OutcomeKind

Headers = list[tuple[bytes, bytes]]
Encode = Callable[[bytes], bytes]


@dataclass(frozen=True, slots=True)
class StreamFormat:
    """How the records of a stream look."""

    content_type: bytes
    records: dict[OutcomeKind, Encode]
    """The bytes of a record from its JSON; kinds that are not here leave no trace."""


NDJSON = StreamFormat(
    b"application/x-ndjson",
    {"item": lambda body: body + b"\n", "result": lambda body: body + b"\n", "error": lambda body: body + b"\n"},
)
"""One JSON text a line; an error is the line `{"error": {"code": …}}` at the end."""

SSE = StreamFormat(
    b"text/event-stream",
    {
        "item": lambda body: b"data: " + body + b"\n\n",
        "progress": lambda body: b"event: progress\ndata: " + body + b"\n\n",
        "result": lambda body: b"event: result\ndata: " + body + b"\n\n",
        "error": lambda body: b"event: error\ndata: " + body + b"\n\n",
        "end": lambda body: b"event: end\ndata: {}\n\n",
    },
)
"""Items are plain messages; `progress`, `result`, `error` and `end` are events of that name."""

_HEADERS: Headers = [
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect items before it passes them on
]


async def send_stream(
    send: Send,
    headers: Headers,
    invocation: Invocation,
    first: Outcome,
    style: tuple[StreamFormat, Callable[[Outcome], bytes]],
) -> None:
    """Answer with a stream that begins with this outcome and ends with the invocation.

    Outcomes that are there at the same time leave in one write; a caller that reads slowly holds the worker back.

    Args:
        send: The ASGI channel.
        headers: What the response says besides its type.
        invocation: Where further outcomes come from.
        first: The outcome that showed that it is a stream.
        style: The format, and how an error's JSON is made.
    """
    form, error_body = style
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", form.content_type), *_HEADERS, *headers],
        }
    )
    outcome: Outcome | None = first
    while True:
        records = []
        while outcome is not None:
            encode = form.records.get(outcome.kind)
            if encode is not None:
                records.append(encode(error_body(outcome) if outcome.error is not None else outcome.body))
            if outcome.last:
                await send({"type": "http.response.body", "body": b"".join(records), "more_body": False})
                return
            outcome = invocation.next_nowait()
        if records:
            await send({"type": "http.response.body", "body": b"".join(records), "more_body": True})
        outcome = await invocation.next()
