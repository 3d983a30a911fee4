"""JSON from outside, read as strictly as the reference reader does: the standard library alone is too kind.

The standard decoder takes NaN, lone surrogates, repeated keys and numbers beyond a double, reads `-0` as the integer 0,
and has no limit of its own on depth. Here each has its own fault.

Source: RFC 8259; serde_json 1 as the reference reader uses it (recursion limit 128, numbers at most a double).
"""

from __future__ import annotations

import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NoReturn

DEPTH_LIMIT = 127
"""Deepest nesting that serde_json takes."""

_MINUS_ZERO = re.compile(r"[\[:,\s]-0(?![0-9])")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonFault(StrEnum):
    """What is wrong with a text that is not strict JSON."""

    SYNTAX = "not_json"
    DEPTH = "nested_too_deep"
    NUMBER = "number_out_of_range"
    SURROGATE = "lone_surrogate"


class JsonFaultError(ValueError):
    """The text is not strict JSON; `fault` says in which way."""

    def __init__(self, fault: JsonFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class RepeatedKeys(dict[str, object]):
    """An object that names a key more than once: as a dict the last value counts, `pairs` has them all."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs

    @property
    def repeated(self) -> tuple[str, ...]:
        """The keys that are there more than once, in order of their first place."""
        return tuple(key for key, count in Counter(key for key, _ in self.pairs).items() if count > 1)


def pairs_of(value: dict[str, object]) -> Iterable[tuple[str, object]]:
    """Every pair of the object as it stood in the text, the repeated ones too."""
    return value.pairs if isinstance(value, RepeatedKeys) else value.items()


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 120

    def repr_RepeatedKeys(self, value: RepeatedKeys, level: int) -> str:  # noqa: N802  # reprlib asks by class name
        return self.repr_dict(value, level)


_SHORT = _Short()


def shown(value: object) -> str:
    """A value from outside for a message: its representation, cut short however long it is."""
    return _SHORT.repr(value)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedKeys(pairs)


def _constant(name: str) -> NoReturn:
    raise JsonFaultError(JsonFault.SYNTAX, f"{name} is not JSON")


def _integer(digits: str) -> int | float:
    return -0.0 if digits == "-0" else int(digits)


_PLAIN = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_WITH_MINUS_ZERO = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer)


def load_json(text: str) -> object:
    """The value of a strict JSON text.

    Objects that repeat a key come as `RepeatedKeys`; what that means is for the caller. Faults that hide deep inside
    values (depth, numbers, surrogates) are found by `check_value` and, for surrogates, here.

    Raises:
        JsonFaultError: It is not strict JSON.
    """
    decoder = _WITH_MINUS_ZERO if _MINUS_ZERO.search(text) else _PLAIN  # the hook costs a call for each number
    try:
        value: object = decoder.decode(text)
    except JsonFaultError:
        raise
    except RecursionError:
        raise JsonFaultError(JsonFault.DEPTH, f"nested deeper than {DEPTH_LIMIT} levels") from None
    except json.JSONDecodeError as error:
        raise JsonFaultError(JsonFault.SYNTAX, f"{error.msg} at character {error.pos}") from None
    except ValueError:  # an integer of more digits than Python converts: far beyond a double
        raise JsonFaultError(JsonFault.NUMBER, "an integer of thousands of digits") from None
    if _SURROGATE_ESCAPE.search(text):  # else no string of the value can hold one
        check_value(value)
    return value


def check_value(value: object, *, depth: int = 0) -> None:
    """Refuse what strict JSON cannot hold anywhere in `value`, which sits below `depth` levels of nesting.

    Raises:
        JsonFaultError: Nested too deep, a number beyond a double, or a lone surrogate.
    """
    todo: list[tuple[object, int]] = [(value, depth)]
    while todo:
        each, level = todo.pop()
        if isinstance(each, (dict, list)):
            if level == DEPTH_LIMIT:
                raise JsonFaultError(JsonFault.DEPTH, f"nested deeper than {DEPTH_LIMIT} levels")
            if isinstance(each, dict):
                for key, inner in pairs_of(each):
                    todo.append((key, level))
                    todo.append((inner, level + 1))
            else:
                todo.extend((inner, level + 1) for inner in each)
        elif isinstance(each, str):
            if _LONE_SURROGATE.search(each):
                raise JsonFaultError(JsonFault.SURROGATE, "a string holds half of a surrogate pair")
        elif isinstance(each, int | float):
            _check_number(each)


def _check_number(value: float) -> None:
    try:
        beyond = float(value) in (float("inf"), float("-inf"))
    except OverflowError:
        beyond = True
    if beyond:
        raise JsonFaultError(JsonFault.NUMBER, "a number is beyond the range of a double")
