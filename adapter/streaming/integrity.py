"""Checksums of the bytes that arrive: one a chunk, put together to one an object, and compared again later (D4).

A CRC finds what breaks by chance: a range of zeros, a flipped bit, a chunk at the wrong place. It is no defence against
who means harm; `verify=sha256` is, with digests that came another way.

CRC-64/NVME is taken where the extra `crc` (awscrt) is installed: 50 GiB/s a core as measured, so nothing beside the
copy that follows it. Without it zlib's CRC-32 is: 3.5 GiB/s as measured, 0.3 CPU seconds for each GiB, outside of the
GIL. Which one a file was checked with stands beside each checksum.
"""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import AdapterError, CacheError, ChecksumMismatch

DIGESTS_NAME = "SHA256SUMS"
"""File beside the weights with the SHA-256 digest of each, as sha256sum(1) writes it."""
PART_BYTES = 8 << 20
"""So much of a file shares one checksum in its record: a bad one costs as much to fetch again, and 70 GB make 9000."""
_READ_BYTES = 1 << 20
_THREADS = 4
"""A disk's queue is full with these, and a page cache gives more than one core reads."""

Read = Callable[[ByteRange], bytes]
Ended = Callable[[], AdapterError | None]
"""Tells whether work that takes long is to be given up; its error is raised."""


class Algorithm(NamedTuple):
    """A cyclic redundancy check, reflected, with all bits set before and after."""

    name: str
    """As S3 names it."""
    bits: int
    polynomial: int
    """Reflected. Source: the catalogue of parametrised CRC algorithms (reveng)."""

    def of(self, data: bytes | memoryview, before: int = 0) -> int:
        """The checksum of these bytes, or of what `before` is the checksum of followed by them.

        Raises:
            LookupError: It cannot be computed here: the extra `crc` is not installed.
        """
        call = _implementation(self.name)
        if call is None:
            raise LookupError(f"{self.name} needs the extra crc (awscrt)")
        return call(data, before)

    @property
    def available(self) -> bool:
        """Whether it can be computed here."""
        return _implementation(self.name) is not None

    def combine(self, first: int, second: int, second_bytes: int) -> int:
        """The checksum of two pieces put together, from the checksum of each. Source: zlib's crc32_combine."""
        power = 0
        while second_bytes:
            if second_bytes & 1:
                first = _times(_zeros(self, power), first)
            second_bytes >>= 1
            power += 1
        return first ^ second

    def text(self, value: int) -> str:
        """The checksum in hexadecimal digits."""
        return f"{value:0{self.bits // 4}x}"


CRC64NVME = Algorithm("crc64nvme", 64, 0x9A6C9329AC4BC9B5)
CRC32 = Algorithm("crc32", 32, 0xEDB88320)
CRC32C = Algorithm("crc32c", 32, 0x82F63B78)
ALGORITHMS: Mapping[str, Algorithm] = {each.name: each for each in (CRC64NVME, CRC32, CRC32C)}


@functools.cache
def best_algorithm() -> Algorithm:
    """What arriving bytes are checked with: CRC-64/NVME, or CRC-32 where the extra `crc` is not installed."""
    return CRC64NVME if CRC64NVME.available else CRC32


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive bytes and their checksum."""

    range: ByteRange
    algorithm: Algorithm
    value: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of a whole file, part by part without a gap from its first byte to its last."""

    algorithm: Algorithm
    parts: tuple[tuple[int, int], ...]
    """Byte after the last, and the checksum, of each."""

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self.parts[-1][0] if self.parts else 0

    @property
    def whole(self) -> int:
        """The checksum of the whole file."""
        value = position = 0
        for stop, part in self.parts:
            value = self.algorithm.combine(value, part, stop - position)
            position = stop
        return value

    def ranges(self) -> Iterable[tuple[ByteRange, int]]:
        """Each part and its checksum."""
        position = 0
        for stop, part in self.parts:
            yield ByteRange(position, stop), part
            position = stop

    def to_json(self) -> dict[str, object]:
        """Its fields as JSON values."""
        text = self.algorithm.text
        return {
            "algorithm": self.algorithm.name,
            "whole": text(self.whole),
            "parts": [[stop, text(value)] for stop, value in self.parts],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: It is no such thing.
        """
        algorithm = ALGORITHMS[value["algorithm"]]
        parts = tuple((int(stop), int(part, 16)) for stop, part in value["parts"])
        stops = [stop for stop, _ in parts]
        if stops != sorted(set(stops)) or (stops and stops[0] <= 0):
            raise ValueError("parts are not in order")
        found = cls(algorithm, parts)
        if found.whole != int(value["whole"], 16):
            raise ValueError("parts do not make the whole")
        return found


def checksums_of(pieces: Iterable[Piece], size_bytes: int, read: Read) -> Checksums:
    """Checksums of a file from those of the pieces it arrived in.

    Pieces may overlap, since two processes may have brought the same bytes. What no piece covers from where the one
    before it ends is read.

    Args:
        pieces: In any order.
        size_bytes: Size of the file.
        read: Gives bytes of it.
    """
    algorithm = best_algorithm()
    known: dict[int, Piece] = {}
    for piece in pieces:
        if piece.algorithm is not algorithm or piece.range.stop > size_bytes:
            continue
        there = known.get(piece.range.start)
        if there is None or there.range.stop < piece.range.stop:
            known[piece.range.start] = piece
    starts = sorted(known, reverse=True)
    parts: list[tuple[int, int]] = []
    begun = position = value = 0
    while position < size_bytes:
        while starts and starts[-1] < position:
            starts.pop()
        if starts and starts[-1] == position:
            stop, add = known[position].range.stop, known[position].value
        else:
            stop = min([size_bytes, position + _READ_BYTES, *starts[-1:]])
            add = algorithm.of(read(ByteRange(position, stop)))
        value = algorithm.combine(value, add, stop - position)
        position = stop
        if position - begun >= PART_BYTES or position == size_bytes:
            parts.append((position, value))
            begun, value = position, 0
    return Checksums(algorithm, tuple(parts))


def damaged(descriptor: int, checksums: Checksums, ended: Ended | None = None) -> list[ByteRange]:
    """The parts of a file that are not what their checksums say; reads all of it.

    Raises:
        LookupError: The checksums cannot be computed here.
        AdapterError: The one that `ended` returned meanwhile.
    """
    if not checksums.algorithm.available:
        raise LookupError(f"{checksums.algorithm.name} needs the extra crc (awscrt)")
    own = threading.local()

    def is_damaged(part: tuple[ByteRange, int]) -> bool:
        if not hasattr(own, "buffer"):
            own.buffer = memoryview(bytearray(_READ_BYTES))
        _go_on(ended)
        return crc_of(descriptor, part[0], checksums.algorithm, own.buffer) != part[1]

    parts = list(checksums.ranges())
    with ThreadPoolExecutor(min(_THREADS, len(parts) or 1)) as pool:
        return [part for (part, _), bad in zip(parts, pool.map(is_damaged, parts), strict=True) if bad]


def crc_of(descriptor: int, wanted: ByteRange, algorithm: Algorithm, buffer: memoryview) -> int | None:
    """The checksum of a range of a file; None when the file ends before it does."""
    value, position = 0, wanted.start
    while position < wanted.stop:
        count = os.preadv(descriptor, [buffer[: wanted.stop - position]], position)
        if count == 0:
            return None
        value = algorithm.of(buffer[:count], value)
        position += count
    return value


def checksum_of(descriptor: int, algorithm: str, known: Checksums) -> str | None:
    """A file's checksum of any kind, in hexadecimal digits; None where it cannot be computed here.

    Args:
        descriptor: The file.
        algorithm: `sha256`, or the name of one of `ALGORITHMS`.
        known: Its checksums of some kind; for any other the file is read.
    """
    if algorithm == "sha256":
        return sha256_of(descriptor, known.size_bytes)
    wanted = ALGORITHMS.get(algorithm)
    if wanted is None or not wanted.available:
        return None
    if wanted is known.algorithm:
        return wanted.text(known.whole)
    buffer = memoryview(bytearray(_READ_BYTES))
    found = crc_of(descriptor, ByteRange(0, known.size_bytes), wanted, buffer)
    return wanted.text(found) if found is not None else None


def sha256_of(descriptor: int, size_bytes: int, ended: Ended | None = None) -> str:
    """The SHA-256 digest of a file, in hexadecimal digits.

    Raises:
        AdapterError: The one that `ended` returned meanwhile.
    """
    found, position = hashlib.sha256(), 0
    buffer = memoryview(bytearray(_READ_BYTES))
    while position < size_bytes:
        _go_on(ended)
        count = os.preadv(descriptor, [buffer[: size_bytes - position]], position)
        if count == 0:
            break
        found.update(buffer[:count])
        position += count
    return found.hexdigest()


def parse_sha256(data: bytes, *, file: str) -> dict[str, str]:
    """Name to digest, from a file as sha256sum(1) writes it.

    Raises:
        CacheError: It is no such file.
    """
    found: dict[str, str] = {}
    try:
        for line in data.decode("utf-8").splitlines():
            if line.strip():
                digest, name = line.split(maxsplit=1)
                if len(bytes.fromhex(digest)) != 32:
                    raise ValueError(f"no SHA-256 digest: {digest[:80]}")
                found[name.strip().removeprefix("*").removeprefix("./")] = digest.lower()
    except ValueError as error:
        raise CacheError(f"{file} is no list of SHA-256 digests: {error}", file=file) from None
    return found


def mismatch(name: str, algorithm: str, expected: str, found: str) -> ChecksumMismatch:
    """The error for an object that arrived whole and is not the one that was meant."""
    return ChecksumMismatch(
        f"{name} is not what its {algorithm} checksum says: {found}, not {expected}",
        file=name,
        algorithm=algorithm,
        expected=expected,
        found=found,
    )


def _go_on(ended: Ended | None) -> None:
    error = ended() if ended is not None else None
    if error is not None:
        raise error


@functools.cache
def _implementation(name: str) -> Callable[[bytes | memoryview, int], int] | None:
    if name == CRC32.name:
        return zlib.crc32
    try:
        from awscrt import checksums  # 40 ms: imported by who computes one
    except ImportError:
        return None
    found = getattr(checksums, name, None)
    return found if callable(found) else None


@functools.cache
def _zeros(algorithm: Algorithm, power: int) -> tuple[int, ...]:
    """The linear map of a checksum's bits that 2 ** power bytes of zeros make of it, as its columns."""
    if power:
        half = _zeros(algorithm, power - 1)
        return tuple(_times(half, column) for column in half)
    columns = []
    for bit in range(algorithm.bits):
        value = 1 << bit
        for _ in range(8):
            value = (value >> 1) ^ (algorithm.polynomial if value & 1 else 0)
        columns.append(value)
    return tuple(columns)


def _times(columns: tuple[int, ...], value: int) -> int:
    total = 0
    while value:
        low = value & -value
        total ^= columns[low.bit_length() - 1]
        value ^= low
    return total
