"""What an invocation brought, read to its end."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from adapter.errors import AdapterError
from adapter.testing.stream import Record, StreamReader, is_stream

Start = Literal["cold", "restored", "warm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The answer to one invocation."""

    status: int
    """Of HTTP: 200, or what the error is answered with."""
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    items: tuple[Any, ...] = ()
    """What a generator handler has yielded, in order; also what came before an error."""
    error: AdapterError | None = None
    """Why there is no result, or why the stream ended early."""
    error_code: str | None = None
    """The error's code as it was answered: `handler.failed`, `invalid_event` …"""

    @property
    def value(self) -> Any:
        """What the handler returned, from its JSON; the list of items of a generator handler.

        Raises:
            AdapterError: The invocation failed: its error, so that no test overlooks it.
        """
        if self.error is not None:
            raise self.error
        if not is_stream(self.headers):
            return json.loads(self.body)
        returned = [record.value for record in _records(self.headers, self.body) if record.kind == "result"]
        return returned[-1] if returned else list(self.items)  # one that told of its progress may yet have returned

    @property
    def start(self) -> Start | None:
        """What the invocation met; None where it did not reach a replica."""
        said = self.headers.get("x-coldstart")
        return cast("Start", said) if said in get_args(Start) else None

    @property
    def replica(self) -> str | None:
        """The id of the replica that answered."""
        return self.headers.get("x-coldstart-replica")

    @property
    def queued_s(self) -> float:
        """How long it waited for a replica, in seconds."""
        return float(self.headers.get("x-coldstart-queued-ms", 0)) / 1000


def read_result(status: int, headers: Mapping[str, str], body: bytes) -> Result:
    """The result that an answer carries."""
    items: list[Any] = []
    described: Mapping[str, Any] | None = None
    if is_stream(headers):
        try:
            for record in _records(headers, body):
                if described is not None:  # not the last line, so it was an item that looks like an error
                    items.append({"error": described})
                described = record.value if record.kind == "error" else None
                if record.kind == "item":
                    items.append(record.value)
        except AdapterError as error:  # a stream that cannot be read to its end is none that succeeded
            described = error.to_dict()
    elif status >= 400:
        described = _described(status, body)
    return Result(
        status=status,
        headers=headers,
        body=body,
        items=tuple(items),
        error=AdapterError.from_dict(described) if described is not None else None,
        error_code=str(described.get("code", AdapterError.code)) if described is not None else None,
    )


def _records(headers: Mapping[str, str], body: bytes) -> Iterator[Record]:
    """Every record of a whole stream.

    Raises:
        AdapterError: It broke off, or a record cannot be read.
    """
    reader = StreamReader(headers)
    yield from reader.feed(body)
    reader.close()


def _described(status: int, body: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(body)
        error = value["error"]
        return {"code": error["code"], "message": error["message"], "fields": error.get("fields")}
    except (ValueError, TypeError, KeyError):  # not an answer of ours: what came is the best that can be said
        return {"code": f"http.{status}", "message": body.decode(errors="replace") or f"HTTP status {status}"}
