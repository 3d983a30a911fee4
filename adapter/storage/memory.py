"""Objects in memory: the public fake of a store, with faults given as data."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from adapter.errors import ConfigurationError, ObjectChanged, ObjectNotFound, StorageError, TruncatedRead
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, drain
from adapter.storage.checksums import StoredChecksum
from adapter.storage.watch import ReadWatch

_LOOK_S = 0.01
"""How often a read that stalls looks whether the source was closed."""


@dataclass(frozen=True, slots=True)
class FailRead:
    """The reads of `key` numbered `first` (from 1) to `first + times - 1` raise a copy of `error` before any byte."""

    key: str
    error: StorageError
    first: int = 1
    times: int = 1


@dataclass(frozen=True, slots=True)
class CutRead:
    """Those reads of `key` end after `after_bytes`; `shortened`: as a rightly labelled shorter answer."""

    key: str
    after_bytes: int
    first: int = 1
    times: int = 1
    shortened: bool = False


@dataclass(frozen=True, slots=True)
class StallRead:
    """Those reads of `key` bring `after_bytes` and then nothing more, until they are broken off by their watch."""

    key: str
    after_bytes: int = 0
    first: int = 1
    times: int = 1


@dataclass(frozen=True, slots=True)
class ChangeObject:
    """Before the read of `key` numbered `first`, the object is replaced by `content` under a new version."""

    key: str
    content: bytes
    first: int = 1


@dataclass(frozen=True, slots=True)
class DenyListing:
    """Listing raises `error`."""

    error: StorageError


Fault = FailRead | CutRead | StallRead | ChangeObject | DenyListing


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One range read as it was asked and answered."""

    key: str
    start: int
    length_bytes: int
    received_bytes: int


class MemorySource:
    """Objects of a mapping, read by range. Thread-safe.

    Args:
        objects: Key to content; keys are relative to the address.
        faults: What goes wrong, and when.
        name: Part of the store's identity.
        before_read: Called in the reading thread before each range read with what is asked: a place to wait or count.
        checksums: What the store says of whole objects, by key; true or not.
    """

    def __init__(
        self,
        objects: Mapping[str, bytes],
        faults: Sequence[Fault] = (),
        *,
        name: str = "memory",
        before_read: Callable[[RangeRequest], None] | None = None,
        checksums: Mapping[str, StoredChecksum] | None = None,
    ) -> None:
        self._objects = {key: (bytes(content), 1) for key, content in objects.items()}
        self._checksums = dict(checksums or {})
        self._faults = tuple(faults)
        self._name = name
        self._before_read = before_read
        self._lock = threading.Lock()
        self._reads: dict[str, int] = {}
        self._log: list[ReadRecord] = []
        self._closed = False

    @property
    def store(self) -> str:
        """The identity for cache keys."""
        return f"memory://{self._name}"

    @property
    def reads(self) -> tuple[ReadRecord, ...]:
        """Every range read so far, in the order of their ends."""
        with self._lock:
            return tuple(self._log)

    @property
    def received_bytes(self) -> int:
        """Bytes given out so far."""
        return sum(read.received_bytes for read in self.reads)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def put(self, key: str, content: bytes) -> None:
        """Add or replace an object; a replaced one has a new version."""
        with self._lock:
            self._objects[key] = (bytes(content), self._objects.get(key, (b"", 0))[1] + 1)

    def list(self) -> Iterator[ObjectInfo]:
        """Every object, as `RangeSource.list`.

        Raises:
            ObjectNotFound: It holds nothing.
            StorageError: A fault says so, or it is closed.
        """
        self._refuse_closed()
        for fault in self._faults:
            if isinstance(fault, DenyListing):
                raise _copy(fault.error)
        with self._lock:
            found = [_info(key, content, number) for key, (content, number) in sorted(self._objects.items())]
        if not found:
            raise ObjectNotFound(f"{self.store} holds no objects", store=self.store)
        yield from found

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """As `RangeSource.read_into`.

        Raises:
            StorageError: As the protocol says, and as the faults say.
        """
        return drain(self.read_chunks(RangeRequest(key, start, len(into), version), into))

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`.

        Raises:
            StorageError: As the protocol says, and as the faults say.
        """
        self._refuse_closed()
        if self._before_read is not None:
            self._before_read(request)
        content, info, cut = self._open(request)
        wanted = content[request.start : request.start + request.length_bytes]
        given = wanted if cut is None else wanted[: cut.after_bytes]
        watch, broken_off, sent = request.watch or ReadWatch(), threading.Event(), 0
        watch.answered(broken_off.set)
        try:
            while True:
                piece = given[sent : sent + len(buffer)]
                if sent and not piece:
                    break
                buffer[: len(piece)] = piece
                sent += len(piece)
                watch.received(len(piece))
                if piece or cut is None or not wanted:
                    yield RangeAnswer(len(piece), info)
                if sent == len(given):
                    break
            while isinstance(cut, StallRead) and not self._closed and not broken_off.wait(_LOOK_S):
                pass
        finally:
            watch.ended()
            with self._lock:
                self._log.append(ReadRecord(request.key, request.start, request.length_bytes, sent))
        if len(given) < len(wanted):
            raise TruncatedRead(
                f"{self.store}/{request.key} ended after {sent} of {len(wanted)} bytes",
                store=self.store,
                key=request.key,
                received_bytes=sent,
                shortened=isinstance(cut, CutRead) and cut.shortened,
            )

    def stored_checksum(self, key: str, *, version: str | None = None) -> StoredChecksum | None:
        """What `checksums` says of the object."""
        return self._checksums.get(key)

    def close(self) -> None:
        """Reads after this raise."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, request: RangeRequest) -> tuple[bytes, ObjectInfo, CutRead | StallRead | None]:
        key = request.key
        cut = None
        with self._lock:
            number = self._reads[key] = self._reads.get(key, 0) + 1
            for fault in self._faults:
                if isinstance(fault, DenyListing) or fault.key != key:
                    continue
                if isinstance(fault, ChangeObject):
                    if fault.first == number:
                        self._objects[key] = (bytes(fault.content), self._objects[key][1] + 1)
                elif fault.first <= number < fault.first + fault.times:
                    if isinstance(fault, FailRead):
                        self._log.append(ReadRecord(key, request.start, request.length_bytes, 0))
                        raise _copy(fault.error)
                    cut = fault
            if key not in self._objects:
                raise ObjectNotFound(f"{self.store} has no object {key!r}", store=self.store, key=key)
            content, version = self._objects[key]
        info = _info(key, content, version)
        if request.version is not None and request.version != info.version:
            raise ObjectChanged(f"{self.store}/{key} is no longer version {request.version}", store=self.store, key=key)
        return content, info, cut

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError(f"{self.store} is closed", store=self.store)


_registered: dict[str, MemorySource] = {}


def register_memory(name: str, source: MemorySource) -> str:
    """Make a source reachable in this process as `memory://name`; the address."""
    _registered[name] = source
    return f"memory://{name}"


def registered_memory(name: str) -> MemorySource:
    """The source registered under this name.

    Raises:
        ConfigurationError: There is none.
    """
    try:
        return _registered[name]
    except KeyError:
        raise ConfigurationError(f"memory://{name} was not registered in this process", address=name) from None


def _info(key: str, content: bytes, number: int) -> ObjectInfo:
    return ObjectInfo(key, len(content), f"v{number}")


def _copy(error: StorageError) -> StorageError:
    return type(error)(error.message, **error.fields)
