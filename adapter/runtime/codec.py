"""JSON of events and results: strict both ways, with one table of what else may be returned. Every platform uses it.

| returned | becomes |
|---|---|
| None, bool, int, str, list, tuple, dict | itself; keys that are int, float, bool or None are texts |
| float | a number; NaN and infinities are refused |
| numpy array, torch tensor (any device; bf16 and float8 too) | nested arrays of numbers |
| numpy scalar | number, bool or text; `datetime64` as ISO 8601, `timedelta64` as seconds |
| bytes, bytearray, memoryview | base64 |
| datetime, date, time | ISO 8601 as `isoformat` gives it |
| timedelta | seconds |
| Decimal | text, so that no digit is lost |
| set, frozenset | sorted array |
| Enum | its value |
| UUID, path | text |
| pydantic model | `model_dump(mode="json")` |
| dataclass | object of its fields |
| other Mapping, Sequence | object, array |

Keys may also be numpy scalars, dates, UUIDs, enums and paths: they become texts by the same rules. Anything else is
refused with its path (`output.scores[3]`), as are texts that no UTF-8 carries, values that contain themselves, and
coroutines. Of equal names in an event's object the last one counts, as in most readers of JSON.

torch, numpy and pydantic are found among the loaded modules, never imported: who returns their values has loaded them.
Source of what is strict: RFC 8259 sections 6 and 8.1.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import json
import math
import re
import sys
import types
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from typing import Any, NoReturn
from uuid import UUID

from adapter.errors import EncodeError, InvalidEvent

_PATH_CHARACTERS = 200
_MAYBE_INFINITE = re.compile(r"\d[eE]\+?\d{3}|\d{309}")
"""Numbers that can be beyond a double (1.8e308), which Python reads as infinity: only they need the slow reader."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""The one way in for half a surrogate pair."""
_LINE_BREAKS = (("\x85", "\\u0085"), ("\u2028", "\\u2028"), ("\u2029", "\\u2029"))
"""Characters that JSON need not escape, but at which readers of lines and of events split what must be one record."""


# -- events -----------------------------------------------------------------------------------------------------------


def decode_event(data: bytes) -> Any:
    """The value of an encoded event.

    Raises:
        InvalidEvent: It is not strict JSON in UTF-8.
    """
    if not data or data.isspace():
        raise InvalidEvent("the event is empty: send JSON, at least `null`")
    try:
        text = data.decode("utf-8")
        finite = _finite if _MAYBE_INFINITE.search(text) else None
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=finite)
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidEvent(f"the event is not UTF-8 at byte {error.start}", position=error.start) from None
    except UnicodeEncodeError:
        raise InvalidEvent("the event has half of a surrogate pair, which is no character") from None
    except json.JSONDecodeError as error:
        raise InvalidEvent(f"the event is not JSON: {error}", position=error.pos) from None
    except RecursionError:
        raise InvalidEvent("the event is nested too deeply") from None
    except ValueError as error:
        raise InvalidEvent(f"the event is not JSON: {error}") from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError("a number is too large for a double")
    return value


# -- results ----------------------------------------------------------------------------------------------------------


def encode_result(value: object, *, name: str = "output") -> bytes:
    """A result as strict JSON in UTF-8, on one line, without needless escapes.

    Args:
        value: What the handler returned or yielded.
        name: What paths in errors begin with.

    Raises:
        EncodeError: A part of it has no JSON form; the field `path` names it.
    """
    try:
        return _utf8(_encode(value))
    except Exception:  # noqa: BLE001 (whatever it was, the walk below meets it again and says where)
        plain = _Walk().plain(value, name)
    try:
        return _utf8(_encode(plain))
    except RecursionError:
        raise _too_deep(name) from None


def _utf8(text: str) -> bytes:
    if text.isascii():
        return text.encode("ascii")
    for character, escape in _LINE_BREAKS:
        text = text.replace(character, escape)
    return text.encode("utf-8")


def _convert(value: Any) -> Any:
    """One step from a value that JSON does not know towards one that it does.

    Raises:
        TypeError: The table has no row for it.
        Exception: What a foreign type raised.
    """
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise TypeError("it is not finite, and JSON has no NaN or Infinity")
        return str(value)
    if isinstance(value, (UUID, PurePath)):
        return str(value)
    for module, marker, convert in _FOREIGN:
        loaded = sys.modules.get(module)
        if hasattr(loaded, marker):  # it is not while the module is still being imported
            converted = convert(loaded, value)
            if converted is not _NOT_MINE:
                return converted
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return _sorted(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(_advice(value))


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_convert).encode
_NOT_MINE = object()


def _from_numpy(numpy: Any, value: Any) -> Any:
    if isinstance(value, numpy.ndarray):
        # iterating keeps elements that `tolist` would turn into something else: nanoseconds into plain integers
        return list(value) if value.dtype.kind in "mM" and value.ndim else value.tolist()
    if not isinstance(value, numpy.generic):
        return _NOT_MINE
    if isinstance(value, numpy.datetime64):
        if numpy.isnat(value):
            raise TypeError("it is not a time (NaT), and JSON has no form for that")
        return str(value)
    if isinstance(value, numpy.timedelta64):
        return float(value / numpy.timedelta64(1, "s"))
    item = value.item()
    return float(value) if isinstance(item, numpy.floating) else item  # longdouble gives itself


def _from_torch(torch: Any, value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else _NOT_MINE


def _from_pydantic(pydantic: Any, value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, pydantic.BaseModel) else _NOT_MINE


_FOREIGN = (
    ("numpy", "timedelta64", _from_numpy),
    ("torch", "Tensor", _from_torch),
    ("pydantic.main", "BaseModel", _from_pydantic),
)


def _sorted(values: AbstractSet[Any]) -> list[Any]:
    if all(isinstance(value, (int, float)) for value in values) or all(isinstance(value, str) for value in values):
        return sorted(values)
    return sorted(values, key=_encode)  # by their JSON text, so that equal sets look equal


# -- the careful way --------------------------------------------------------------------------------------------------


class _Walk:
    """Converts value by value: finds the path of what is wrong, and copes with keys that the fast encoder refuses."""

    def __init__(self) -> None:
        self._around: set[int] = set()

    def plain(self, value: Any, path: str) -> Any:
        try:
            return self._plain(value, path)
        except RecursionError:
            raise _too_deep(path) from None

    def _plain(self, value: Any, path: str) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return self._scalar(value, path)
        if id(value) in self._around:
            raise _refused(value, path, "contains itself")
        self._around.add(id(value))
        try:
            if isinstance(value, dict):
                return self._object(value, path)
            if isinstance(value, (list, tuple)):
                return [self._plain(element, f"{path}[{index}]") for index, element in enumerate(value)]
            return self._plain(_converted(value, path), path)
        finally:
            self._around.discard(id(value))

    def _scalar(self, value: Any, path: str) -> Any:
        try:
            _encode(value).encode("utf-8")
        except UnicodeEncodeError:
            raise _refused(value, path, "has half of a surrogate pair, which is no character") from None
        except ValueError:
            if isinstance(value, float):
                raise _refused(value, path, f"is {value}, and JSON has no NaN or Infinity") from None
            raise _refused(value, path, "has more digits than Python writes") from None
        return value

    def _object(self, value: dict[Any, Any], path: str) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for key, element in value.items():
            name = self._key(key, path)
            if name in plain:
                raise _refused(value, path, f"has two keys that become {name!r}")
            plain[name] = self._plain(element, f"{path}.{name}" if name.isidentifier() else f"{path}[{name!r}]")
        return plain

    def _key(self, key: Any, path: str) -> str:
        where = f"{path}, a key,"
        if isinstance(key, (tuple, bytes)):
            raise _refused(key, where, "cannot be the name of a value")
        plain = key if key is None or isinstance(key, (bool, int, float, str)) else _converted(key, where)
        if isinstance(plain, str):
            return str(self._scalar(plain, where))
        if plain is None or isinstance(plain, (bool, int, float)):
            return _encode(self._scalar(plain, where))
        raise _refused(key, where, "cannot be the name of a value")


def _converted(value: Any, path: str) -> Any:
    try:
        return _convert(value)
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 (`model_dump` and its like run user code)
        raise _refused(value, path, f"cannot be carried as JSON: {error}") from None


def _refused(value: object, path: str, why: str) -> EncodeError:
    short = path if len(path) <= _PATH_CHARACTERS else f"…{path[-_PATH_CHARACTERS:]}"
    return EncodeError(f"{short} ({_type_name(value)}) {why}", path=short, type=_type_name(value))


def _too_deep(path: str) -> EncodeError:
    return EncodeError(f"{path} is nested too deeply, or contains itself", path=path)


def _type_name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _advice(value: object) -> str:
    if isinstance(value, types.CoroutineType):
        value.close()  # it will never run; without this Python warns where nobody sees it
        return "it is a coroutine that was not awaited"
    if isinstance(value, (types.GeneratorType, types.AsyncGeneratorType)):
        return "it is a generator: yield from the handler itself to stream, or return a list"
    return "there is no rule for its type; return plain values, arrays, dataclasses or pydantic models"
