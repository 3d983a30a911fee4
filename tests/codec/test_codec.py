"""S-30: what a handler returns is carried by one table, or refused with its path; JSON is strict both ways."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import math
import subprocess
import sys
import warnings
from collections import OrderedDict, UserDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import numpy as np
import pydantic
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.errors import EncodeError, InvalidEvent
from adapter.runtime.codec import decode_event, encode_result


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"
    BOX = (1, 2)


class Level(IntEnum):
    HIGH = 3


class Mode(StrEnum):
    FAST = "fast"


@dataclass
class Inner:
    scores: Any
    when: dt.date = dt.date(2026, 1, 2)


@dataclass
class Outer:
    inner: Inner
    tags: set[str] = field(default_factory=lambda: {"b", "a"})


class Model(pydantic.BaseModel):
    name: str
    at: dt.datetime


class Brittle(pydantic.BaseModel):
    data: bytes = b"\xff"


def strict(text: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text.decode("utf-8"), parse_constant=refuse)


@pytest.mark.parametrize(
    ("value", "carried"),
    [
        (None, None),
        ({"a": [1, 2.5, True, None, "ä"]}, {"a": [1, 2.5, True, None, "ä"]}),
        ({2: "a", 2.5: "b", True: "c", None: "d"}, {"2": "a", "2.5": "b", "true": "c", "null": "d"}),
        ((1, 2), [1, 2]),
        (Point(1, 2), [1, 2]),
        (OrderedDict(a=1), {"a": 1}),
        (UserDict(a=1), {"a": 1}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (np.float32(0.5), 0.5),
        (np.float64(0.1), 0.1),
        (np.float16(0.5), 0.5),
        (np.longdouble(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.str_("s"), "s"),
        (np.bytes_(b"\x00"), "AA=="),
        (np.array([[1.5, 2.0], [3.0, 4.0]]), [[1.5, 2.0], [3.0, 4.0]]),
        (np.array(5), 5),
        (np.array([0.5], dtype=np.longdouble), [0.5]),
        (np.array([np.float32(1), "x", None], dtype=object), [1.0, "x", None]),
        (np.datetime64("2026-01-02T03:04:05.123456789"), "2026-01-02T03:04:05.123456789"),
        (np.array(["2026-01-02T03:04:05.000000001"], "M8[ns]"), ["2026-01-02T03:04:05.000000001"]),
        (np.timedelta64(1500, "ms"), 1.5),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.tensor(2.5), 2.5),
        (torch.tensor([[0.5]], dtype=torch.bfloat16), [[0.5]]),
        (torch.tensor([0.5]).to(torch.float8_e4m3fn), [0.5]),
        (torch.tensor([0.5], requires_grad=True), [0.5]),
        (torch.tensor([True]), [True]),
        (torch.Size([1, 2]), [1, 2]),
        (b"\x00\xff", "AP8="),
        (bytearray(b"\x00"), "AA=="),
        (memoryview(b"abcd")[::2], "YWM="),
        (dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), "2026-01-02T03:04:05+00:00"),
        (dt.datetime.fromisoformat("2026-01-02T03:04:05"), "2026-01-02T03:04:05"),
        (dt.date(2026, 1, 2), "2026-01-02"),
        (dt.time(3, 4), "03:04:00"),
        (dt.timedelta(minutes=1, milliseconds=500), 60.5),
        (Decimal("0.10000000000000000001"), "0.10000000000000000001"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a"}), ["a", "b"]),
        ({"b", 1, None}, ["b", 1, None]),
        ({frozenset({2, 1}), frozenset({3})}, [[1, 2], [3]]),
        (Colour.RED, "red"),
        (Colour.BOX, [1, 2]),
        (Level.HIGH, 3),
        (Mode.FAST, "fast"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("a/b"), "a/b"),
        (Outer(Inner(np.array([1.0]))), {"inner": {"scores": [1.0], "when": "2026-01-02"}, "tags": ["a", "b"]}),
        (
            [Model(name="n", at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC))],
            [{"name": "n", "at": "2026-01-02T00:00:00Z"}],
        ),
        (
            {np.int64(1): 1, UUID(int=2): 2, dt.date(2026, 1, 2): 3, Colour.RED: 4, np.str_("s"): 5},
            {"1": 1, "00000000-0000-0000-0000-000000000002": 2, "2026-01-02": 3, "red": 4, "s": 5},
        ),
        ({"x": 10**400}, {"x": 10**400}),
    ],
)
def test_the_table_carries(value: object, carried: object) -> None:
    """S-30: a documented conversion table."""
    assert strict(encode_result(value)) == carried


def endless() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def self_containing_dataclass() -> Inner:
    value = Inner(None)
    value.scores = [value]
    return value


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"scores": [1.0, 2.0, 3.0, math.nan]}, "output.scores[3]", "NaN"),
        ({"scores": np.array([[1.0, math.inf]])}, "output.scores[0][1]", "inf"),
        (torch.tensor([0.0, -math.inf]), "output[1]", "inf"),
        (np.float32("nan"), "output", "NaN"),
        ({math.nan: 1}, "output, a key,", "NaN"),
        ({"a b": object()}, "output['a b']", "no rule for its type"),
        ({"deep": Outer(Inner({"z": 1 + 2j}))}, "output.deep.inner.scores.z", "complex"),
        (np.array([1j]), "output[0]", "complex"),
        (np.array(["NaT"], "M8[s]"), "output[0]", "NaT"),
        (Decimal("NaN"), "output", "not finite"),
        (Fraction(1, 3), "output", "Fraction"),
        ({"text": "half \ud83d"}, "output.text", "surrogate"),
        ({"half \ud83d": 1}, "output, a key,", "surrogate"),
        (Path("/tmp/\udcff"), "output", "surrogate"),
        (endless(), "output[1].again", "contains itself"),
        (self_containing_dataclass(), "output.scores[0]", "contains itself"),
        ({"g": generator()}, "output.g", "yield from the handler"),
        ({b"key": 1}, "output, a key,", "cannot be the name"),
        ({(1, 2): 1}, "output, a key,", "cannot be the name"),
        ({Colour.BOX: 1}, "output, a key,", "cannot be the name"),
        ({1: "a", "1": "b", UUID(int=1): "c"}, "output", "two keys"),
        ([10**5000], "output[0]", "digits"),
        (torch.empty(2, device="meta"), "output", "meta"),
        (torch.zeros(2, 2).to_sparse(), "output", "Tensor"),
        ({"m": Brittle()}, "output.m", "utf-8"),
        (Model, "output", "no rule"),
        (Outer, "output", "no rule"),
        (ValueError("x"), "output", "no rule"),
        (print, "output", "no rule"),
    ],
)
def test_what_has_no_form_is_refused_with_its_path(value: object, path: str, says: str) -> None:
    """S-30: otherwise the job ends as failed with the path of the offending value."""
    with pytest.raises(EncodeError) as caught:
        encode_result(value)
    assert caught.value.fields["path"] == path
    assert says in str(caught.value)


def test_a_coroutine_is_refused_without_a_warning_about_it() -> None:
    """S-30: a coroutine that was not awaited."""

    async def answer() -> int:
        return 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EncodeError, match=r"output\.x .* not awaited"):
            encode_result({"x": answer()})


def test_deep_nesting_is_an_error_and_no_crash() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(EncodeError, match="nested too deeply"):
        encode_result(value)
    with pytest.raises(InvalidEvent, match="nested too deeply"):
        decode_event(b"[" * 100_000 + b"]" * 100_000)


def test_paths_of_deep_values_stay_short() -> None:
    value: Any = math.nan
    for _ in range(200):
        value = {"level": value}
    with pytest.raises(EncodeError) as caught:
        encode_result(value)
    assert len(str(caught.value.fields["path"])) <= 201


def test_one_failing_conversion_does_not_spoil_the_next() -> None:
    """S-30: the worker goes on."""
    with pytest.raises(EncodeError):
        encode_result([object()])
    assert encode_result([1]) == b"[1]"


def test_text_is_not_escaped_needlessly_but_stays_one_line() -> None:
    """S-31: non-ASCII letters keep their size; a reader of lines must not split a record."""
    text = "ä" * 400
    assert len(encode_result(text)) == 802
    line = encode_result({"t": "a\nb\u2028c\u2029d\x85e"})
    assert len(line.decode().splitlines()) == 1
    assert strict(line) == {"t": "a\nb\u2028c\u2029d\x85e"}


def test_user_code_that_raises_in_a_conversion_is_named() -> None:
    class Angry(pydantic.BaseModel):
        @pydantic.model_serializer
        def refuse(self) -> dict[str, Any]:
            raise RuntimeError("not today")

    with pytest.raises(EncodeError, match=r"output\[0\].*not today"):
        encode_result([Angry()])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
)


@given(json_values)
@settings(deadline=None)
def test_plain_values_survive_the_way_there_and_back(value: object) -> None:
    assert decode_event(encode_result(value)) == value


@given(st.recursive(st.floats() | st.text() | st.binary(), lambda inner: st.lists(inner) | st.tuples(inner, inner)))
@settings(deadline=None)
def test_anything_else_is_strict_json_or_an_error_of_ours(value: object) -> None:
    with contextlib.suppress(EncodeError):
        strict(encode_result(value))


@given(st.binary())
@settings(deadline=None)
def test_any_bytes_are_an_event_or_an_error_of_ours(data: bytes) -> None:
    with contextlib.suppress(InvalidEvent):
        encode_result(decode_event(data))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"{", "not JSON"),
        (b'{"a":1} x', "not JSON"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b"[1e999]", "too large"),
        (b"[-1.5E+0400]", "too large"),
        (b"9" * 400 + b".0", "too large"),
        (b"9" * 5000, "not JSON"),
        (b"\xff", "UTF-8"),
        (b"\xef\xbb\xbf{}", "BOM"),
        ('"ä"'.encode("latin-1"), "UTF-8"),
        (b'"\\ud83d"', "surrogate"),
        (b'{"\\uDC00": 1}', "surrogate"),
        (b"{'a': 1}", "not JSON"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_event_that_is_not_strict_json_is_refused(data: bytes, says: str) -> None:
    with pytest.raises(InvalidEvent, match=says):
        decode_event(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b"1e308", 1e308),
        (b'"id 1e999"', "id 1e999"),
        (b"1e-999", 0.0),
        (b"1" + b"0" * 400, 10**400),
        (b" null ", None),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_unusual_events_are_read(data: bytes, value: object) -> None:
    assert decode_event(data) == value


def test_encoding_imports_neither_torch_nor_numpy_nor_pydantic() -> None:
    """The codec finds them among the loaded modules."""
    code = (
        "import sys; from adapter.runtime.codec import encode_result; from adapter.errors import EncodeError\n"
        "try: encode_result({'a': {1, 2}, 'b': object()})\n"
        "except EncodeError: pass\n"
        "print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_result_can_be_encoded_on_an_event_loop() -> None:
    async def answer() -> bytes:
        return encode_result(torch.ones(2))

    assert asyncio.run(answer()) == b"[1.0,1.0]"
