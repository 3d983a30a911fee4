from __future__ import annotations

import json
import pickle

import pytest

from adapter import errors
from adapter.errors import AdapterError

EVERY = sorted(
    (value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, AdapterError)),
    key=lambda cls: cls.__name__,
)


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_travels_as_json_and_comes_back_as_itself(cls: type[AdapterError]) -> None:
    error = cls("what happened", key="a/b", attempts=3, ratio=0.5, seen=True, cause=None)
    back = AdapterError.from_dict(json.loads(json.dumps(error.to_dict())))
    assert type(back) is cls
    assert (back.message, back.fields) == (error.message, error.fields)


@pytest.mark.parametrize("cls", EVERY)
def test_every_error_survives_pickling(cls: type[AdapterError]) -> None:
    error = cls("what happened", key="a")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is cls
    assert (str(back), back.fields) == ("what happened", {"key": "a"})


def test_codes_are_unique_names() -> None:
    codes = [cls.code for cls in EVERY]
    assert len(set(codes)) == len(codes)


def test_exit_codes_are_unique_and_mean_nothing_else_to_a_shell() -> None:
    """A6: the exit code says the class. 1 and 2 are Python's and argparse's, 126 and more the shell's."""
    codes = [cls.exit_code for cls in EVERY]
    assert len(set(codes)) == len(codes)
    assert all(10 <= code < 126 for code in codes)


def test_an_unknown_code_keeps_the_message() -> None:
    back = AdapterError.from_dict({"code": "of.the.future", "message": "something new", "fields": {"a": 1, "b": [2]}})
    assert type(back) is AdapterError
    assert str(back) == "something new"
    assert back.fields == {"a": 1}, "only scalars are fields"


def test_a_subclass_is_found_by_its_parent() -> None:
    with pytest.raises(errors.StorageError):
        raise errors.Throttled("slow down", retry_after_s=1.5)


def test_only_what_another_try_can_cure_is_retryable() -> None:
    assert errors.Throttled.retryable
    assert not errors.ObjectNotFound.retryable
    assert not errors.ObjectChanged.retryable
    assert not errors.HeaderError.retryable
