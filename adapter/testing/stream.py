"""Streams as the platform answers with them, record by record: JSON lines, or server-sent events.

Source of the event format: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from adapter.errors import AdapterError

NDJSON = "application/x-ndjson"
SSE = "text/event-stream"

RecordKind = Literal["item", "result", "progress", "end", "error"]
_OF_EVENT: Mapping[str, RecordKind] = {
    "message": "item",
    "result": "result",
    "progress": "progress",
    "end": "end",
    "error": "error",
}
_LAST = ("result", "end", "error")


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a stream; of an error the value is what describes it."""

    kind: RecordKind
    value: Any


class StreamReader:
    """Takes the bytes of a stream as they come, and gives its records.

    Args:
        headers: Of the answer, names in lower case.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._events = _media_type(headers) == SSE
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []
        self._ended = False

    def feed(self, data: bytes) -> Iterator[Record]:
        """The records that are whole with these bytes.

        Raises:
            AdapterError: A record cannot be read.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            record = self._event_line(line.removesuffix(b"\r")) if self._events else _json_line(line)
            if record is not None:
                self._ended = self._ended or record.kind in _LAST
                yield record

    def close(self) -> None:
        """Say that no more bytes come.

        Raises:
            AdapterError: The stream broke off: what ends it has not come.
        """
        if self._rest.strip() or (self._events and not self._ended):
            raise AdapterError("the stream broke off: it has no end")

    def _event_line(self, line: bytes) -> Record | None:
        """What a line completes: an empty one completes the event before it."""
        if line:
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"event":
                self._name = value.decode(errors="replace")
            elif field == b"data":
                self._data.append(value)
            return None
        kind, text = _OF_EVENT.get(self._name or "message"), b"\n".join(self._data)
        seen, self._name, self._data = bool(self._data), "", []
        if kind is None or not seen:  # of a later version, or a sign of life
            return None
        value = _value(text)
        return Record(kind, _described(value) if kind == "error" else value)


def is_stream(headers: Mapping[str, str]) -> bool:
    """Whether the answer is a stream of records."""
    return _media_type(headers) in (NDJSON, SSE)


def in_band_error(item: object) -> Mapping[str, Any] | None:
    """What a line of a stream says of the stream's failure; None where it is an item."""
    if isinstance(item, dict) and item.keys() == {"error"} and isinstance(item["error"], dict):
        return item["error"] if {"code", "message", "retryable"} <= item["error"].keys() else None
    return None


def _json_line(line: bytes) -> Record | None:
    if not line.strip():
        return None
    value = _value(line)
    described = in_band_error(value)
    return Record("item", value) if described is None else Record("error", described)


def _described(value: object) -> Mapping[str, Any]:
    """The description in an event that is an error whatever it holds."""
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        return cast("Mapping[str, Any]", value["error"])
    return {"message": f"the stream ended with an error that cannot be read: {value!r}"}


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise AdapterError(f"the stream has a record that is no JSON: {text[:200]!r}") from None


def _media_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
