"""Checksums: computed in pieces, put together, and compared again."""

from __future__ import annotations

import hashlib
import os
import random
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError
from adapter.streaming.integrity import (
    CRC32,
    CRC32C,
    CRC64NVME,
    PART_BYTES,
    Algorithm,
    Checksums,
    Piece,
    best_algorithm,
    checksums_of,
    damaged,
    parse_sha256,
    sha256_of,
)

CHECK = b"123456789"
MEBIBYTE = 1 << 20


def slow(algorithm: Algorithm, data: bytes) -> int:
    """The definition, bit by bit."""
    ones = (1 << algorithm.bits) - 1
    value = ones
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (algorithm.polynomial if value & 1 else 0)
    return value ^ ones


@pytest.mark.parametrize(
    ("algorithm", "value"), [(CRC64NVME, 0xAE8B14860A799888), (CRC32, 0xCBF43926), (CRC32C, 0xE3069283)]
)
def test_checksums_are_those_of_the_catalogue(algorithm: Algorithm, value: int) -> None:
    """D4. The check values are published with the algorithms."""
    assert slow(algorithm, CHECK) == value
    if algorithm.available:
        assert algorithm.of(CHECK) == value
        assert algorithm.of(memoryview(CHECK)[4:], algorithm.of(CHECK[:4])) == value


@given(data=st.binary(max_size=300), at=st.integers(0, 300))
@pytest.mark.parametrize("algorithm", [CRC64NVME, CRC32, CRC32C])
def test_checksums_of_two_pieces_make_that_of_both(algorithm: Algorithm, data: bytes, at: int) -> None:
    first, second = data[:at], data[at:]
    assert algorithm.combine(slow(algorithm, first), slow(algorithm, second), len(second)) == slow(algorithm, data)


def test_long_pieces_are_put_together_as_well() -> None:
    first, second = random.Random(1).randbytes(3 * MEBIBYTE + 5), random.Random(2).randbytes(20 * MEBIBYTE + 3)
    assert CRC32.combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(first + second)


@given(
    size=st.integers(1, 4000),
    cuts=st.lists(st.tuples(st.integers(0, 3999), st.integers(1, 2000)), max_size=12),
)
def test_pieces_that_overlap_or_leave_gaps_give_the_checksum_of_the_file(
    size: int, cuts: list[tuple[int, int]]
) -> None:
    """S-21: two processes may have brought the same bytes in other pieces."""
    content = random.Random(size).randbytes(size)
    algorithm = best_algorithm()
    ranges = [ByteRange(start, min(size, start + length)) for start, length in cuts if start < size]
    pieces = [Piece(each, algorithm, algorithm.of(content[each.start : each.stop])) for each in ranges]
    found = checksums_of(pieces, size, lambda wanted: content[wanted.start : wanted.stop])
    assert found.whole == algorithm.of(content)
    assert found.size_bytes == size


def test_parts_are_few_and_cover_the_file() -> None:
    size = 3 * PART_BYTES + 77
    content = bytes(size)
    algorithm = best_algorithm()
    pieces = [
        Piece(ByteRange(at, min(size, at + MEBIBYTE)), algorithm, algorithm.of(content[at : at + MEBIBYTE]))
        for at in range(0, size, MEBIBYTE)
    ]

    def unread(wanted: ByteRange) -> bytes:
        raise AssertionError(f"{wanted} was read again")

    found = checksums_of(pieces, size, unread)
    assert [stop for stop, _ in found.parts] == [PART_BYTES, 2 * PART_BYTES, 3 * PART_BYTES, size]
    assert Checksums.from_json(found.to_json()) == found


def test_of_an_empty_file_there_is_nothing_to_check() -> None:
    found = checksums_of([], 0, lambda wanted: b"")
    assert (found.size_bytes, found.whole) == (0, 0)
    assert Checksums.from_json(found.to_json()) == found


@pytest.mark.parametrize("change", [{"algorithm": "md5"}, {"whole": "00"}, {"parts": [[5, "0"], [5, "0"]]}])
def test_a_record_of_checksums_that_contradicts_itself_is_refused(change: dict[str, object]) -> None:
    good = checksums_of([], 100, lambda wanted: bytes(wanted.length)).to_json()
    with pytest.raises((ValueError, KeyError)):
        Checksums.from_json(good | change)


@pytest.mark.parametrize("kind", ["zeros", "bit", "short"])
def test_damage_is_found_and_where_it_is(tmp_path: Path, kind: str) -> None:
    """S-20"""
    content = bytearray(random.Random(3).randbytes(2 * PART_BYTES + 100))
    good = checksums_of([], len(content), lambda wanted: bytes(content[wanted.start : wanted.stop]))
    if kind == "zeros":
        content[PART_BYTES + 4096 : PART_BYTES + 8192] = bytes(4096)
    elif kind == "bit":
        content[PART_BYTES] ^= 1
    path = tmp_path / "file"
    path.write_bytes(content if kind != "short" else content[:-1])
    descriptor = os.open(path, os.O_RDONLY)
    try:
        expected = ByteRange(PART_BYTES, 2 * PART_BYTES) if kind != "short" else ByteRange(2 * PART_BYTES, len(content))
        assert damaged(descriptor, good) == [expected]
        assert sha256_of(descriptor, len(content)) == hashlib.sha256(path.read_bytes()).hexdigest()
    finally:
        os.close(descriptor)


def test_digests_are_read_as_sha256sum_writes_them() -> None:
    digest = hashlib.sha256(b"").hexdigest()
    text = f"{digest}  a b.safetensors\n{digest.upper()} *./x/y\n\n".encode()
    assert parse_sha256(text, file="SHA256SUMS") == {"a b.safetensors": digest, "x/y": digest}


@pytest.mark.parametrize("text", [b"<html>", b"abc  name\n", b"\xff\xfe", b"e3b0c442\n"])
def test_what_is_no_list_of_digests_is_refused(text: bytes) -> None:
    with pytest.raises(CacheError, match="SHA256SUMS"):
        parse_sha256(text, file="SHA256SUMS")
