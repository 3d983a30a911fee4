"""Objects into S3 and stores that speak its protocol: in parts, each with a checksum that the store compares.

Parts lie on the grid of the reader's ranges, so that a range read later is served from one part. What is there already
with the same content is not sent again; what fails is aborted, since unfinished parts cost room and are seen by nobody.

Source: Amazon S3 User Guide, "Uploading and copying objects using multipart upload" and "Checking object integrity".
"""

from __future__ import annotations

import base64
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import tenacity

from adapter.errors import (
    ChecksumMismatch,
    ConfigurationError,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
)
from adapter.storage.s3 import S3Options, S3Source

LEAST_PART_BYTES = 5 << 20
MOST_PARTS = 10_000
"""Limits of a multipart upload; the last part may be shorter."""
MOST_SINGLE_BYTES = 8 << 20
"""Objects up to this are sent by one request."""
_DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch"})
"""What arrived is not what was sent: sent again, that goes well."""
_NO_SUCH_CHECKSUM = (400, 501)


class Checksum(Protocol):
    """A cyclic redundancy check that S3 knows."""

    @property
    def name(self) -> str:
        """As S3 names it, in lower case: `crc32`, `crc64nvme`."""
        ...

    @property
    def bits(self) -> int:
        """Its width."""
        ...

    def of(self, data: memoryview, before: int = 0) -> int:
        """The checksum of these bytes."""
        ...

    def combine(self, first: int, second: int, second_bytes: int) -> int:
        """The checksum of two pieces put together, from the checksum of each."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadOptions:
    """How objects are sent."""

    checksum: Checksum | None
    """What each part and the whole are checked with; None sends an MD5 with each part, which every store knows, and
    leaves the whole to its size."""
    read_bytes: int = 8 << 20
    """Length of the ranges that readers will ask for; parts are multiples of it."""
    connections: int = 16
    """Parts in flight at a time; each is held in memory while it is sent."""
    attempts: int = 6
    """Tries for one part."""
    first_backoff_s: float = 0.2
    """The first wait is drawn from zero to this, each later one from zero to twice the bound before."""
    always: bool = False
    """Also send what is there already."""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What became of one file."""

    key: str
    size_bytes: int
    sent_bytes: int
    """0 where the same content was there."""
    parts: int


@dataclass(frozen=True, slots=True)
class _Part:
    number: int
    start: int
    length_bytes: int


def upload_part_bytes(size_bytes: int, read_bytes: int) -> int:
    """Length of the parts of an object: the least multiple of the reader's ranges that the limits allow.

    Raises:
        ValueError: `read_bytes` is not positive.
    """
    if read_bytes <= 0:
        raise ValueError(f"read_bytes must be positive, not {read_bytes}")
    least = max(LEAST_PART_BYTES, -(-size_bytes // MOST_PARTS))
    return -(-least // read_bytes) * read_bytes


class S3Target(S3Source):
    """A place in a store that can also be written. Arguments and errors are those of `S3Source`.

    Raises:
        ConfigurationError: The address names one object, not a place for several.
    """

    def __init__(self, address: str, options: S3Options | None = None) -> None:
        super().__init__(address, options)
        if self._parts.single is not None:
            self.close()
            raise ConfigurationError(f"{self._address(self._parts.single)} is one object; use s3://bucket/prefix/")

    def upload(
        self, path: Path, key: str, options: UploadOptions, sent: Callable[[int], None] = lambda _: None
    ) -> Uploaded:
        """Send a file, unless the same content is there; what is there afterwards was compared with what was sent.

        Args:
            path: The file.
            key: Relative to the address.
            options: How.
            sent: Hears how many bytes more are there, from several threads.

        Raises:
            StorageError: It could not be sent; nothing of it is left in the store.
            ObjectChanged: The file was changed while it was sent.
            ChecksumMismatch: The store holds something else than what was sent.
        """
        with _opened(path) as descriptor:
            size_bytes = os.fstat(descriptor).st_size
            sending = _Sending(self, key, descriptor, options)
            if not options.always and self._holds(sending, size_bytes):
                sent(size_bytes)
                return Uploaded(key, size_bytes, 0, 0)
            if size_bytes <= min(MOST_SINGLE_BYTES, max(options.read_bytes, LEAST_PART_BYTES)):
                whole, parts = sending.put_single(size_bytes), 1
                sent(size_bytes)
            else:
                part_bytes = upload_part_bytes(size_bytes, options.read_bytes)
                whole, parts = sending.put_in_parts(_cut(size_bytes, part_bytes), sent)
            sending.check_unchanged()
            self._check_stored(key, size_bytes, options.checksum, whole)
            return Uploaded(key, size_bytes, size_bytes, parts)

    def request(self, operation: str, key: str, **arguments: Any) -> dict[str, Any]:
        """One request about an object of this place.

        Raises:
            StorageError: The store refused it, or did not answer.
        """
        action = "s3:PutObject" if operation != "head_object" else "s3:GetObject"
        # aborting takes no key of a customer; a version is what a write makes, not what it asks for
        terms = self._every if operation == "abort_multipart_upload" else self._reading
        return self._call(operation, action, key, Key=f"{self._prefix}{key}", **terms, **arguments)

    def _stored(self, key: str) -> dict[str, Any] | None:
        try:
            return self.request("head_object", key, ChecksumMode="ENABLED")
        except ObjectNotFound:
            return None

    def _holds(self, sending: _Sending, size_bytes: int) -> bool:
        """Whether the store's own checksum of the whole object says that the same content is there."""
        checksum = sending.options.checksum
        if checksum is None:
            return False
        stored = self._stored(sending.key)
        if stored is None or stored.get("ContentLength") != size_bytes:
            return False
        theirs = _whole_checksum(stored, checksum)
        return theirs is not None and theirs == _text(checksum, sending.whole_checksum(size_bytes))

    def _check_stored(self, key: str, size_bytes: int, checksum: Checksum | None, whole: int | None) -> None:
        stored = self._stored(key)
        found_bytes = stored.get("ContentLength") if stored is not None else None
        expected, found = f"{size_bytes} bytes", f"{found_bytes} bytes"
        if found_bytes == size_bytes and stored is not None and checksum is not None and whole is not None:
            theirs = _whole_checksum(stored, checksum)
            # a store that keeps no checksums has none to compare: it compared those of the parts, or knows none
            expected, found = _text(checksum, whole), theirs or _text(checksum, whole)
        if expected != found:
            raise ChecksumMismatch(
                f"{self._address(key)}: the store holds {found} where {expected} were sent: another writer may have "
                "replaced it",
                file=key,
                expected=expected,
                found=found,
            )


class _Sending:
    """One file on its way."""

    def __init__(self, target: S3Target, key: str, descriptor: int, options: UploadOptions) -> None:
        self.key = key
        self.options = options
        self._target = target
        self._descriptor = descriptor
        self._before = os.fstat(descriptor)
        self._stop = threading.Event()

    def put_single(self, size_bytes: int) -> int | None:
        data = self._read(_Part(1, 0, size_bytes))
        check, value = self._check(data)
        self._try("put_object", Body=data, **check)
        return value

    def put_in_parts(self, parts: Sequence[_Part], sent: Callable[[int], None]) -> tuple[int | None, int]:
        """Checksum of the whole, and how many parts it took."""
        checksum = self.options.checksum
        kind: dict[str, Any] = {}
        if checksum is not None:
            kind = {"ChecksumAlgorithm": checksum.name.upper(), "ChecksumType": "FULL_OBJECT"}
        upload_id = self._try("create_multipart_upload", **kind)["UploadId"]
        try:
            with ThreadPoolExecutor(max(1, min(self.options.connections, len(parts)))) as pool:
                futures = [pool.submit(self._put_part, upload_id, part, sent) for part in parts]
                try:
                    done = [future.result() for future in futures]
                except BaseException:
                    self._stop.set()
                    pool.shutdown(wait=True, cancel_futures=True)
                    raise
            whole = None
            if checksum is not None:
                whole = _combined(checksum, [value for _, value in done], parts)
                kind = {_argument(checksum): _text(checksum, whole), "ChecksumType": "FULL_OBJECT"}
            self._complete(upload_id, [each for each, _ in done], kind)
            return whole, len(parts)
        except BaseException:
            with suppress(StorageError):
                self._target.request("abort_multipart_upload", self.key, UploadId=upload_id)
            raise

    def whole_checksum(self, size_bytes: int) -> int:
        """The checksum of the local file."""
        checksum = self.options.checksum
        assert checksum is not None
        value = 0
        for part in _cut(size_bytes, MOST_SINGLE_BYTES):
            value = checksum.of(memoryview(self._read(part)), value)
        return value

    def check_unchanged(self) -> None:
        now = os.fstat(self._descriptor)
        if (now.st_size, now.st_mtime_ns) != (self._before.st_size, self._before.st_mtime_ns):
            raise ObjectChanged(f"the file of {self.key} was changed while it was sent", key=self.key)

    def _complete(self, upload_id: str, parts: list[dict[str, Any]], kind: dict[str, Any]) -> None:
        self.check_unchanged()
        try:
            self._try("complete_multipart_upload", UploadId=upload_id, MultipartUpload={"Parts": parts}, **kind)
        except ObjectNotFound:
            # an answer was lost and the repeat finds no upload any more; whether all is well is looked at next
            return

    def _put_part(self, upload_id: str, part: _Part, sent: Callable[[int], None]) -> tuple[dict[str, Any], int]:
        if self._stop.is_set():
            raise StorageError(f"{self.key}: the upload was ended", key=self.key)
        data = self._read(part)
        check, value = self._check(data)
        answer = self._try("upload_part", UploadId=upload_id, PartNumber=part.number, Body=data, **check)
        sent(part.length_bytes)
        entry = {"PartNumber": part.number, "ETag": answer["ETag"]}
        return entry | (check if self.options.checksum is not None else {}), value or 0

    def _check(self, data: bytearray) -> tuple[dict[str, Any], int | None]:
        """What the store is to compare these bytes with."""
        checksum = self.options.checksum
        if checksum is None:
            digest = hashlib.md5(data, usedforsecurity=False).digest()
            return {"ContentMD5": base64.b64encode(digest).decode()}, None
        value = checksum.of(memoryview(data))
        return {_argument(checksum): _text(checksum, value)}, value

    def _read(self, part: _Part) -> bytearray:
        data = bytearray(part.length_bytes)
        view, at = memoryview(data), part.start
        while view:
            count = os.preadv(self._descriptor, [view], at)
            if count == 0:
                raise ObjectChanged(f"the file of {self.key} became shorter while it was sent", key=self.key)
            view, at = view[count:], at + count
        return data

    def _try(self, operation: str, **arguments: Any) -> dict[str, Any]:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_goes_well_later),
            stop=self._is_over,
            wait=tenacity.wait_random_exponential(multiplier=self.options.first_backoff_s, max=10),
            sleep=self._sleep,
            reraise=True,
        )
        try:
            return retrying(self._target.request, operation, self.key, **arguments)
        except StorageError as error:
            if self.options.checksum is None or error.fields.get("status") not in _NO_SUCH_CHECKSUM:
                raise
            hint = "; if this store knows no such checksums, send MD5 with --checksum md5"
            raise type(error)(f"{error.message}{hint}", **error.fields) from error

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        return state.attempt_number >= self.options.attempts or self._stop.is_set()

    def _sleep(self, seconds: float) -> None:
        self._stop.wait(seconds)


def _goes_well_later(error: BaseException) -> bool:
    return isinstance(error, StorageError) and (error.retryable or error.fields.get("cause") in _DAMAGED)


def _cut(size_bytes: int, part_bytes: int) -> list[_Part]:
    starts = range(0, size_bytes, part_bytes)
    return [_Part(number, start, min(part_bytes, size_bytes - start)) for number, start in enumerate(starts, 1)]


def _combined(checksum: Checksum, values: Sequence[int], parts: Sequence[_Part]) -> int:
    whole = values[0]
    for value, part in zip(values[1:], parts[1:], strict=True):
        whole = checksum.combine(whole, value, part.length_bytes)
    return whole


def _argument(checksum: Checksum) -> str:
    return f"Checksum{checksum.name.upper()}"


def _text(checksum: Checksum, value: int) -> str:
    """As the protocol writes it: big-endian bytes in base64."""
    return base64.b64encode(value.to_bytes(checksum.bits // 8, "big")).decode()


def _whole_checksum(stored: dict[str, Any], checksum: Checksum) -> str | None:
    """The store's checksum of the whole object, where it has one of this kind."""
    if stored.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return None
    value = stored.get(_argument(checksum))
    # one of parts put together is written with their number behind it
    return value if isinstance(value, str) and "-" not in value else None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", path=str(path)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)
