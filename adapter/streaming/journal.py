"""Which bytes of a filling file are there: a file beside it, appended after the data, read by any process.

The first line is JSON that says which object is filled; padded with blanks to a multiple of the record size. Then
records of 32 bytes follow: a mark, first byte, byte after the last, the checksum of these bytes (the mark says which
kind, `DONE` that there is none), and a checksum over all this that is seeded with the first line, so that a record of
another journal does not count. Since 32 divides the page size, a record lies in one
page and a process killed while it writes leaves either all of it or nothing; what else may tear is told by the
checksum. A journal says what the page cache holds, not what the disk holds: after a reboot (`boot_id`) it is no proof.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from adapter.checkpoint.ranges import ByteRange, IntervalSet
from adapter.errors import CacheError, NoSpace
from adapter.streaming.integrity import CRC32, CRC32C, CRC64NVME, Algorithm, Piece

_RECORD = struct.Struct("<4sQQQI")
_MARKS: Mapping[bytes, Algorithm | None] = {b"DONE": None, b"NVME": CRC64NVME, b"CR32": CRC32, b"C32C": CRC32C}
_MARK_OF = {algorithm: mark for mark, algorithm in _MARKS.items()}
_FIRST_LINE_LIMIT_BYTES = 64 << 10
_READ_BYTES = 256 << 10
_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """What a journal is about."""

    size_bytes: int
    version: str
    boot_id: str

    def encode(self) -> bytes:
        """The first line, its length a multiple of the record size."""
        line = json.dumps(
            {
                "journal": _SCHEMA,
                "size_bytes": self.size_bytes,
                "version": self.version,
                "boot_id": self.boot_id,
            },
            separators=(",", ":"),
        ).encode()
        return line + b" " * (-(len(line) + 1) % _RECORD.size) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """The header that `encode` wrote.

        Raises:
            ValueError: It is no such line.
        """
        try:
            value = json.loads(line)
            if value["journal"] != _SCHEMA or type(value["size_bytes"]) is not int or len(line) % _RECORD.size:
                raise ValueError("not a journal of this version")
            return cls(value["size_bytes"], str(value["version"]), str(value["boot_id"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a journal: {error}") from None


class JournalReader:
    """Follows a journal as it grows; keeps reading it after its name is gone. Not thread-safe.

    Args:
        path: The journal's file.
        keep_pieces: Also remember each record's checksum, which only who fills or checks a file wants.

    Raises:
        FileNotFoundError: There is none.
        CacheError: It is no journal.
    """

    def __init__(self, path: Path, *, keep_pieces: bool = False) -> None:
        self.path = path
        self.pieces: list[Piece] = []
        """What the records said that carry a checksum, as of the last `poll`; empty unless `keep_pieces`."""
        self._keep_pieces = keep_pieces
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            line = os.pread(self._descriptor, _FIRST_LINE_LIMIT_BYTES, 0).partition(b"\n")
            if not line[1]:
                raise ValueError("its first line is not whole")
            first = line[0] + line[1]
            self.header: JournalHeader = JournalHeader.decode(first)
        except ValueError as error:
            os.close(self._descriptor)
            raise CacheError(f"{path} is no journal: {error}", path=str(path)) from None
        except BaseException:
            os.close(self._descriptor)
            raise
        self._seed = zlib.crc32(first)
        self._offset = len(first)
        self.done: IntervalSet = IntervalSet()
        """The bytes that are there, as of the last `poll`."""

    def poll(self) -> bool:
        """Read what was appended since; True when that told of more bytes."""
        grew = False
        while True:
            data = os.pread(self._descriptor, _READ_BYTES, self._offset)
            count = len(data) // _RECORD.size
            for at in range(0, count * _RECORD.size, _RECORD.size):
                found = _decode(data, at, self._seed, self.header.size_bytes)
                if found is not None:
                    self.done.add(found.range)
                    grew = True
                    if self._keep_pieces and found.algorithm is not None:
                        self.pieces.append(Piece(found.range, found.algorithm, found.value))
                elif at + 2 * _RECORD.size > len(data):
                    # the last one there may be half visible: looked at again next time
                    return grew
                self._offset += _RECORD.size
            if len(data) < _READ_BYTES:
                return grew

    @property
    def complete(self) -> bool:
        """Whether every byte is there, as of the last `poll`."""
        return self.done.total == self.header.size_bytes

    @property
    def changed_s(self) -> float:
        """When a record was last appended, in seconds of the wall clock."""
        return os.fstat(self._descriptor).st_mtime

    def is_at(self, path: Path) -> bool:
        """Whether that name still leads to the file that is read here."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Give back the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class JournalWriter:
    """Appends to a journal. Several processes may; threads of one process share it under a lock of their own."""

    def __init__(self, path: Path, descriptor: int, first: bytes) -> None:
        self.path = path
        self._descriptor = descriptor
        self._seed = zlib.crc32(first)
        self._aligned = False

    @classmethod
    def create(cls, path: Path, header: JournalHeader) -> Self:
        """A new journal that says: nothing is there yet.

        Raises:
            FileExistsError: The name is taken.
            NoSpace: The disk is full.
        """
        descriptor = os.open(path, _WRITING | os.O_CREAT | os.O_EXCL, 0o600)
        first = header.encode()
        try:
            _write(descriptor, first, path)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return cls(path, descriptor, first)

    @classmethod
    def adopt(cls, path: Path, header: JournalHeader) -> Self:
        """Go on with a journal that another process began.

        Raises:
            FileNotFoundError: It is gone.
            CacheError: It is about something else.
        """
        descriptor = os.open(path, _WRITING)
        first = header.encode()
        try:
            if os.pread(descriptor, len(first), 0) != first:
                raise CacheError(f"{path} is the journal of another object or boot", path=str(path))
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor, first)

    def append(self, done: ByteRange, algorithm: Algorithm | None = None, checksum: int = 0) -> None:
        """Say that these bytes are there. Call it after they were written.

        Args:
            done: Which bytes.
            algorithm: What they were checked with.
            checksum: Their checksum, computed before they were written.

        Raises:
            NoSpace: The disk is full.
        """
        if not self._aligned:
            # a torn record at the end: later ones have to start where readers look for them
            torn = os.fstat(self._descriptor).st_size % _RECORD.size
            if torn:
                _write(self._descriptor, bytes(_RECORD.size - torn), self.path)
            self._aligned = True
        body = _RECORD.pack(_MARK_OF[algorithm], done.start, done.stop, checksum, 0)[:-4]
        _write(self._descriptor, body + zlib.crc32(body, self._seed).to_bytes(4, "little"), self.path)

    def sync(self) -> None:
        """Make it survive a power cut."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Give back the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_WRITING = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class _Found(NamedTuple):
    range: ByteRange
    algorithm: Algorithm | None
    value: int


def _decode(data: bytes, at: int, seed: int, size_bytes: int) -> _Found | None:
    mark, start, stop, value, checksum = _RECORD.unpack_from(data, at)
    body = data[at : at + _RECORD.size - 4]
    if mark not in _MARKS or checksum != zlib.crc32(body, seed) or not start < stop <= size_bytes:
        return None
    return _Found(ByteRange(start, stop), _MARKS[mark], value)


def _write(descriptor: int, data: bytes, path: Path) -> None:
    try:
        written = os.write(descriptor, data)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        written = 0
    if written != len(data):
        raise NoSpace(
            f"the disk is full: {path} could not be written", path=str(path), needed_bytes=len(data), free_bytes=0
        )
