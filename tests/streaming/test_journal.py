"""The journal: what a process says is there is there, whatever happens to its tail."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapter.checkpoint.ranges import ByteRange, IntervalSet
from adapter.errors import CacheError
from adapter.streaming.integrity import CRC32, CRC64NVME, Piece
from adapter.streaming.journal import JournalHeader, JournalReader, JournalWriter

HEADER = JournalHeader(size_bytes=10_000, version='W/"é-1"', boot_id="boot")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def ranges(reader: JournalReader) -> list[ByteRange]:
    reader.poll()
    return list(reader.done)


def test_reader_follows_what_is_appended(path: Path) -> None:
    """D5"""
    writer = JournalWriter.create(path, HEADER)
    reader = JournalReader(path)
    assert reader.header == HEADER
    assert not reader.poll()
    writer.append(ByteRange(0, 4096))
    assert reader.poll()
    assert not reader.poll()
    writer.append(ByteRange(8192, 10_000))
    assert ranges(reader) == [ByteRange(0, 4096), ByteRange(8192, 10_000)]
    assert not reader.complete
    writer.append(ByteRange(4096, 8192))
    assert reader.poll()
    assert reader.complete


def test_reader_goes_on_when_the_name_is_gone(path: Path) -> None:
    writer = JournalWriter.create(path, HEADER)
    reader = JournalReader(path)
    path.unlink()
    writer.append(ByteRange(0, 10_000))
    assert reader.poll()
    assert reader.complete
    assert not reader.is_at(path)


def test_a_name_that_is_taken_is_refused(path: Path) -> None:
    JournalWriter.create(path, HEADER)
    with pytest.raises(FileExistsError):
        JournalWriter.create(path, HEADER)


@pytest.mark.parametrize("cut_bytes", [1, 16, 31])
def test_torn_tail_is_ignored_and_later_records_count(path: Path, cut_bytes: int) -> None:
    """S-20"""
    writer = JournalWriter.create(path, HEADER)
    writer.append(ByteRange(0, 100))
    writer.append(ByteRange(100, 200))
    os.truncate(path, path.stat().st_size - cut_bytes)
    assert ranges(JournalReader(path)) == [ByteRange(0, 100)]
    following = JournalReader(path)
    following.poll()
    adopted = JournalWriter.adopt(path, HEADER)
    adopted.append(ByteRange(300, 400))
    assert ranges(JournalReader(path)) == [ByteRange(0, 100), ByteRange(300, 400)]
    assert ranges(following) == [ByteRange(0, 100), ByteRange(300, 400)]


def test_a_record_that_becomes_visible_in_two_steps_is_read(path: Path) -> None:
    writer = JournalWriter.create(path, HEADER)
    before = path.stat().st_size
    writer.append(ByteRange(0, 100))
    record = path.read_bytes()[before:]
    os.truncate(path, before)
    with path.open("r+b") as file:
        file.seek(before)
        file.write(bytes(32))
        file.flush()
        reader = JournalReader(path)
        assert not reader.poll()
        file.seek(before)
        file.write(record)
        file.flush()
    assert ranges(reader) == [ByteRange(0, 100)]


def test_records_of_another_journal_do_not_count(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    foreign = JournalWriter.create(other, JournalHeader(10_000, "another version", "boot"))
    empty_bytes = other.stat().st_size
    foreign.append(ByteRange(0, 10_000))
    JournalWriter.create(path, HEADER)
    with path.open("ab") as file:
        file.write(other.read_bytes()[empty_bytes:])
    assert ranges(JournalReader(path)) == []


def test_adopting_the_journal_of_another_object_is_refused(path: Path) -> None:
    JournalWriter.create(path, HEADER)
    for other in (
        JournalHeader(10_001, HEADER.version, "boot"),
        JournalHeader(10_000, "v2", "boot"),
        JournalHeader(10_000, HEADER.version, "another boot"),
    ):
        with pytest.raises(CacheError):
            JournalWriter.adopt(path, other)


@pytest.mark.parametrize("content", [b"", b"{", b"not json\n", b"{}\n", b"[1]\n" + bytes(64), b"null\n", b"\xff\n"])
def test_what_is_no_journal_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CacheError):
        JournalReader(path)


def test_a_link_in_the_journals_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    """S-05"""
    JournalWriter.create(tmp_path / "real", HEADER)
    path.symlink_to(tmp_path / "real")
    with pytest.raises(OSError):
        JournalReader(path)


@settings(max_examples=150, deadline=None)
@given(
    appended=st.lists(st.tuples(st.integers(0, 9_999), st.integers(1, 500)), max_size=12),
    damage=st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=40)), max_size=3),
    cut=st.integers(0, 100),
)
def test_damage_never_makes_bytes_count_that_were_not_written(
    tmp_path_factory: pytest.TempPathFactory,
    appended: list[tuple[int, int]],
    damage: list[tuple[int, bytes]],
    cut: int,
) -> None:
    """S-20"""
    path = tmp_path_factory.mktemp("journal") / "journal"
    writer = JournalWriter.create(path, HEADER)
    written = IntervalSet()
    for start, length in appended:
        done = ByteRange(start, min(10_000, start + length))
        writer.append(done)
        written.add(done)
    content = bytearray(path.read_bytes())
    for at, data in damage:
        place = at % len(content)
        content[place : place + len(data)] = data
    path.write_bytes(bytes(content[: max(0, len(content) - cut)]))
    try:
        reader = JournalReader(path)
    except CacheError:
        return
    reader.poll()
    if reader.header == HEADER:
        assert all(written.contains(found) for found in reader.done)
    reader.close()
    writer.close()


def test_records_carry_the_checksum_of_their_bytes_and_its_kind(path: Path) -> None:
    """D4, D5"""
    writer = JournalWriter.create(path, HEADER)
    writer.append(ByteRange(0, 10), CRC64NVME, 0xFFFF_FFFF_FFFF_FFFF)
    writer.append(ByteRange(10, 20), CRC32, 7)
    writer.append(ByteRange(20, 30))
    reader = JournalReader(path, keep_pieces=True)
    reader.poll()
    assert reader.pieces == [
        Piece(ByteRange(0, 10), CRC64NVME, 0xFFFF_FFFF_FFFF_FFFF),
        Piece(ByteRange(10, 20), CRC32, 7),
    ]
    assert list(reader.done) == [ByteRange(0, 30)]
