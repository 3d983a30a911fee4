"""What every store gives: objects read by range, each answer checked against what was asked.

Source of the rules on answers: RFC 9110 sections 14 and 15.3.7, S-09 of the reported cases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object as the store named it when it was listed or first read."""

    key: str
    size_bytes: int
    version: str
    """The ETag, with its quotes removed; what later reads are pinned to."""


@dataclass(frozen=True, slots=True)
class RangeAnswer:
    """What one range read brought: how much was written into the caller's buffer, and of which object."""

    length_bytes: int
    info: ObjectInfo
    """Size and version of the whole object, from this very answer."""


class RangeSource(Protocol):
    """Objects under one address (`s3://bucket/prefix/`, a directory), read by range. Thread-safe."""

    @property
    def store(self) -> str:
        """The store's identity for cache keys: scheme, endpoint and bucket, without the prefix or any secret."""
        ...

    def list(self) -> Iterator[ObjectInfo]:
        """Every object under the address, all pages, markers of folders left out.

        Keys are relative to the address.

        Raises:
            ObjectNotFound: Nothing is there.
            AccessDenied: Listing is not permitted (reading may still be).
        """
        ...

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """Read `len(into)` bytes from `start` into the buffer; fewer only where the object ends.

        One attempt: whoever calls decides about retries.

        Args:
            key: Relative to the address.
            start: First byte.
            into: Writable buffer, filled from its beginning.
            version: When given, the read is refused unless the object still is that version.

        Raises:
            ObjectNotFound, AccessDenied, CredentialsError: Not to be had.
            ObjectChanged: The object is no longer `version`.
            WrongRange: The store answered with something other than the range asked for.
            TruncatedRead, ConnectionFailed, Throttled, StoreFailed: Another try may succeed.
        """
        ...

    def close(self) -> None:
        """Give back connections. Reads after this raise."""
        ...


class ClosingSource(RangeSource, Protocol):
    """A `RangeSource` that `with` owns."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None: ...
