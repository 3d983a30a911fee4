"""Streams read record by record, as they may be cut on the wire."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import AdapterError, HandlerFailed
from adapter.testing.result import read_result
from adapter.testing.stream import StreamReader

SSE = {"content-type": "Text/Event-Stream; charset=utf-8"}
NDJSON = {"content-type": "application/x-ndjson"}
ERROR = {"code": "handler.failed", "message": "no further", "retryable": False}
EVENTS = (
    b'data: {"a": 1}\n\n: a sign of life\n\nevent: progress\r\ndata: 0.5\r\n\r\n'
    b"event: later\ndata: {}\n\ndata:[2]\n\nevent: end\ndata: {}\n\n"
)


@given(st.lists(st.integers(0, len(EVENTS)), max_size=6))
def test_events_are_the_same_however_they_are_cut(cuts: list[int]) -> None:
    reader = StreamReader(SSE)
    edges = [0, *sorted(cuts), len(EVENTS)]
    found = [record for start, stop in itertools.pairwise(edges) for record in reader.feed(EVENTS[start:stop])]
    reader.close()
    expected = [("item", {"a": 1}), ("progress", 0.5), ("item", [2]), ("end", {})]
    assert [(record.kind, record.value) for record in found] == expected


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (SSE, b"data: 1\n\n"),
        (SSE, b"data: 1\n\nevent: end\ndata: {}\n"),
        (SSE, b"data: 1\n\n" + b"event: end\n"),
        (SSE, b"data: 1\n\ndata: {no\n\n"),
        (NDJSON, b"1\n2"),
        (NDJSON, b'1\n{"a": \n'),
    ],
)
def test_a_stream_without_its_end_has_not_succeeded(headers: dict[str, str], body: bytes) -> None:
    result = read_result(200, headers, body)
    assert result.items == (1,)
    assert result.error_code == "adapter.error"
    with pytest.raises(AdapterError, match="broke off|no JSON"):
        _ = result.value


def test_an_error_event_that_holds_something_else_is_still_an_error() -> None:
    result = read_result(200, SSE, b"event: error\ndata: [1]\n\n")
    with pytest.raises(AdapterError, match="cannot be read"):
        _ = result.value


def test_only_the_last_line_is_the_error_of_a_stream() -> None:
    line = json.dumps({"error": ERROR}).encode() + b"\n"
    result = read_result(200, NDJSON, line + b"1\n")
    assert (result.items, result.error) == (({"error": ERROR}, 1), None)
    failed = read_result(200, NDJSON, line + line)
    assert failed.items == ({"error": ERROR},)
    with pytest.raises(HandlerFailed, match="no further"):
        _ = failed.value
