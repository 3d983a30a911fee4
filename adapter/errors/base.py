"""The root of the tree, and how errors travel as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

Field = str | int | float | bool | None


class AdapterError(Exception):
    """The root: anything this package raises on purpose.

    Args:
        message: What happened, where, and what to do; one or two sentences, never a secret.
        fields: Facts for machines (key, range, attempts, cause …); JSON scalars only.
    """

    code: ClassVar[str] = "adapter.error"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Field) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Field] = dict(fields)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.fields))

    def to_dict(self) -> dict[str, object]:
        """The error as JSON values: code, type, message, retryable, exit_code, fields."""
        said: dict[str, object] = {"code": self.code, "type": type(self).__name__, "message": self.message}
        return said | {"retryable": self.retryable, "exit_code": self.exit_code, "fields": self.fields}

    @staticmethod
    def from_dict(value: Mapping[str, object]) -> AdapterError:
        """The error that `to_dict` described; an unknown code gives the root class with the message kept."""
        found = _by_code().get(str(value.get("code")), AdapterError)
        fields = value.get("fields")
        clean = {str(k): v for k, v in fields.items() if isinstance(v, Field)} if isinstance(fields, Mapping) else {}
        return _rebuild(found, str(value.get("message", "unknown error")), clean)


def _rebuild(cls: type[AdapterError], message: str, fields: Mapping[str, Field]) -> AdapterError:
    error = cls.__new__(cls)
    AdapterError.__init__(error, message, **fields)
    return error


def _tree(cls: type[AdapterError]) -> list[type[AdapterError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _tree(child))]


def _by_code() -> dict[str, type[AdapterError]]:
    """Asked anew each time: a class may have been defined since, and errors that travel are rare."""
    return {cls.code: cls for cls in _tree(AdapterError) if "code" in vars(cls)}  # a variant travels as its parent
