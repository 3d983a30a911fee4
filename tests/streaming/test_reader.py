"""Readers know files alone, stay with one inode, and hand out whole pages that are complete."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError, ConnectionFailed, InitTimeout, NotSafetensors
from adapter.streaming.journal import JournalHeader, JournalWriter
from adapter.streaming.manifest import ObjectEntry
from adapter.streaming.reader import PAGE_BYTES, ObjectReader
from adapter.streaming.shard_file import PartFile
from adapter.streaming.waiting import Deadline
from tests.support.shard_bytes import shard

CONTENT = os.urandom(5 * PAGE_BYTES + 100)


@dataclass
class Filling:
    """The files of one object as a fetcher makes them, one step at a time."""

    entry: ObjectEntry
    part: PartFile
    journal: JournalWriter
    content: bytes = CONTENT

    def put(self, start: int, stop: int) -> None:
        """Bytes, then the record of them."""
        self.part.write(start, memoryview(self.content)[start:stop])
        self.journal.append(ByteRange(start, stop))

    def seal(self) -> None:
        """As a fetcher ends."""
        self.part.publish(self.entry.published)
        self.entry.partial.unlink()
        self.entry.journal.unlink()


def begin(directory: Path, content: bytes = CONTENT, identifier: str = "1") -> Filling:
    entry = ObjectEntry(
        "m.safetensors",
        "m.safetensors",
        "v1",
        len(content),
        "shard",
        directory / "m",
        directory / f"m.part-{identifier}",
        directory / f"m.journal-{identifier}",
    )
    journal = JournalWriter.create(entry.journal, JournalHeader(len(content), "v1", "boot"))
    return Filling(entry, PartFile.create(entry.partial, len(content)), journal, content)


def soon() -> Deadline:
    return Deadline.after(0.05)


def test_a_wait_is_rounded_out_to_pages(tmp_path: Path) -> None:
    """D7, A8"""
    filling = begin(tmp_path)
    filling.put(0, PAGE_BYTES + 10)
    reader = ObjectReader(filling.entry, deadline=soon())
    assert reader.wait(ByteRange(5, PAGE_BYTES)) == 0
    with pytest.raises(InitTimeout, match=r"m\.safetensors"):
        reader.wait(ByteRange(PAGE_BYTES, PAGE_BYTES + 10))
    filling.put(PAGE_BYTES + 10, 2 * PAGE_BYTES)
    reader.wait(ByteRange(PAGE_BYTES, PAGE_BYTES + 10))


def test_the_last_page_ends_with_the_file(tmp_path: Path) -> None:
    filling = begin(tmp_path)
    filling.put(5 * PAGE_BYTES, len(CONTENT))
    reader = ObjectReader(filling.entry, deadline=soon())
    assert reader.read(ByteRange(5 * PAGE_BYTES + 3, len(CONTENT))) == CONTENT[5 * PAGE_BYTES + 3 :]


def test_an_empty_range_and_an_empty_object_are_there_at_once(tmp_path: Path) -> None:
    """S-16"""
    filling = begin(tmp_path)
    assert ObjectReader(filling.entry, deadline=soon()).wait(ByteRange(7, 7)) == 0
    (tmp_path / "other").mkdir()
    empty = begin(tmp_path / "other", b"")
    reader = ObjectReader(empty.entry, deadline=soon())
    reader.wait()
    assert reader.complete
    assert reader.read(ByteRange(0, 0)) == b""


def test_a_waiting_thread_goes_on_when_the_bytes_come(tmp_path: Path) -> None:
    filling = begin(tmp_path)
    reader = ObjectReader(filling.entry, deadline=Deadline.after(20))
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(reader.read(ByteRange(0, len(CONTENT)))))
    thread.start()
    filling.put(PAGE_BYTES, len(CONTENT))
    assert not got
    filling.put(0, PAGE_BYTES)
    thread.join(20)
    assert got == [CONTENT]


def test_what_was_opened_while_filling_is_the_sealed_file(tmp_path: Path) -> None:
    """D5, D13"""
    filling = begin(tmp_path)
    filling.put(0, PAGE_BYTES)
    reader = ObjectReader(filling.entry, deadline=soon())
    descriptor = reader.open()
    filling.put(PAGE_BYTES, len(CONTENT))
    filling.seal()
    reader.wait()
    assert reader.complete
    assert os.pread(descriptor, len(CONTENT), 0) == CONTENT
    assert os.path.samestat(os.fstat(descriptor), os.stat(filling.entry.published))
    assert reader.file_path().read_bytes() == CONTENT
    os.close(descriptor)


def test_a_reader_that_comes_after_the_seal_takes_the_published_file(tmp_path: Path) -> None:
    filling = begin(tmp_path)
    filling.put(0, len(CONTENT))
    filling.seal()
    reader = ObjectReader(filling.entry, deadline=soon())
    assert reader.complete
    assert reader.done_bytes == len(CONTENT)
    assert reader.read(ByteRange(10, 20)) == CONTENT[10:20]


def test_another_inode_under_the_published_name_proves_nothing_about_a_mapped_one(tmp_path: Path) -> None:
    """S-21: the loser of a race is not complete because the winner is."""
    loser, winner = begin(tmp_path), begin(tmp_path, identifier="2")
    loser.put(0, PAGE_BYTES)
    reader = ObjectReader(loser.entry, deadline=soon())
    reader.wait(ByteRange(0, 10))
    winner.put(0, len(CONTENT))
    winner.seal()
    assert not reader.complete
    with pytest.raises(InitTimeout):
        reader.wait()
    loser.entry.partial.unlink()
    loser.entry.journal.unlink()
    loser.put(PAGE_BYTES, len(CONTENT))
    reader.wait()
    assert reader.read(ByteRange(0, len(CONTENT))) == CONTENT


def test_the_fetchers_failure_ends_a_wait_but_not_what_is_there(tmp_path: Path) -> None:
    """A6"""
    filling = begin(tmp_path)
    filling.put(0, PAGE_BYTES)
    reader = ObjectReader(filling.entry, lambda: ConnectionFailed("the store is gone"), Deadline.after(20))
    reader.wait(ByteRange(0, PAGE_BYTES))
    with pytest.raises(ConnectionFailed, match="the store is gone"):
        reader.wait()


def test_files_that_were_removed_are_told_by_name(tmp_path: Path) -> None:
    filling = begin(tmp_path)
    filling.entry.partial.unlink()
    filling.entry.journal.unlink()
    with pytest.raises(CacheError, match="removed"):
        ObjectReader(filling.entry, deadline=Deadline.after(20)).wait()


def test_a_file_that_is_shorter_than_the_manifest_says_is_refused(tmp_path: Path) -> None:
    """S-02"""
    filling = begin(tmp_path)
    filling.put(0, len(CONTENT))
    filling.seal()
    os.chmod(filling.entry.published, 0o600)
    os.truncate(filling.entry.published, 100)
    with pytest.raises(CacheError, match="incomplete download") as caught:
        ObjectReader(filling.entry, deadline=soon()).wait()
    assert caught.value.fields["expected_bytes"] == len(CONTENT)
    assert caught.value.fields["found_bytes"] == 100


def test_the_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    filling = begin(tmp_path)
    filling.entry.journal.unlink()
    JournalWriter.create(filling.entry.journal, JournalHeader(len(CONTENT), "v2", "boot"))
    with pytest.raises(CacheError):
        ObjectReader(filling.entry, deadline=soon()).wait()


def test_the_header_waits_for_its_own_bytes_alone(tmp_path: Path) -> None:
    content = shard(1, 20 * PAGE_BYTES)
    filling = begin(tmp_path, content)
    filling.put(0, PAGE_BYTES)
    header = ObjectReader(filling.entry, deadline=soon()).header()
    assert list(header.tensors) == ["t0", "t1", "t2", "t3"]
    assert header.total_bytes == len(content)


def test_the_header_of_something_else_is_refused(tmp_path: Path) -> None:
    """S-03"""
    filling = begin(tmp_path, b"<html><body>404</body></html>")
    filling.put(0, filling.entry.size_bytes)
    with pytest.raises(NotSafetensors):
        ObjectReader(filling.entry, deadline=soon()).header()


def test_a_fetcher_that_died_and_was_replaced_in_place_is_not_noticed(tmp_path: Path) -> None:
    """A5"""
    filling = begin(tmp_path)
    filling.put(0, PAGE_BYTES)
    reader = ObjectReader(filling.entry, deadline=Deadline.after(20))
    reader.wait(ByteRange(0, 10))
    filling.part.close()
    filling.journal.close()
    second = Filling(
        filling.entry,
        PartFile.adopt(filling.entry.partial, len(CONTENT)),
        JournalWriter.adopt(filling.entry.journal, JournalHeader(len(CONTENT), "v1", "boot")),
    )
    second.put(PAGE_BYTES, len(CONTENT))
    second.seal()
    assert reader.read(ByteRange(0, len(CONTENT))) == CONTENT
