"""What every store gives: objects read by range, each answer checked against what was asked.

Source of the rules on answers: RFC 9110 sections 14 and 15.3.7, S-09 of the reported cases.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from adapter.storage.watch import ReadWatch


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


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """Bytes `start` to `start + length_bytes` of an object, of one version of it when `version` is given."""

    key: str
    """Relative to the address of the source."""
    start: int
    length_bytes: int
    version: str | None = None
    watch: ReadWatch | None = field(default=None, compare=False, repr=False)
    """Told by sources how far the read is, and may end it; a source that can block says to it how (`answered`)."""


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

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """One range read, received piece by piece through one reused buffer.

        Each answer says how many bytes now lie at the beginning of `buffer`; together they are the range, in order,
        shorter only where the object ends. Take them before asking for the next. What had arrived when a read broke
        is given out before the error is raised. Closing the iterator early drops the connection it used. One attempt.

        Args:
            request: The range.
            buffer: Writable, any length above zero.

        Raises:
            ObjectNotFound, AccessDenied, CredentialsError: Not to be had.
            ObjectChanged: The object is no longer `request.version`.
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


def drain(chunks: Generator[RangeAnswer]) -> RangeAnswer:
    """The answer of `read_chunks` when the buffer is as long as the range: `read_into` in terms of it.

    Raises:
        StorageError: As `read_chunks` raises; the field `received_bytes` says how much lies in the buffer.
    """
    with closing(chunks):
        answer = next(chunks)
        for further in chunks:
            answer = RangeAnswer(answer.length_bytes + further.length_bytes, further.info)
        return answer
