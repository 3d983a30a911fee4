"""Filling files: the final size first, room known before anything is written, published by link."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError, NoSpace
from adapter.streaming.shard_file import PartFile, free_bytes, rename_to_new

SHARED_MEMORY = Path("/dev/shm")


def test_a_new_file_has_its_size_and_its_room_at_once(tmp_path: Path) -> None:
    """D2"""
    part = PartFile.create(tmp_path / "m.part-1", 8 << 20)
    status = (tmp_path / "m.part-1").stat()
    assert status.st_size == 8 << 20
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert part.allocated_bytes >= 8 << 20
    assert [found.name for found in tmp_path.iterdir()] == ["m.part-1"]


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="no tmpfs at /dev/shm")
def test_on_tmpfs_the_room_is_not_cleared_beforehand() -> None:
    """D2"""
    directory = SHARED_MEMORY / f"coldstart-test-{os.getpid()}"
    directory.mkdir()
    try:
        part = PartFile.create(directory / "m.part-1", 8 << 20)
        assert (directory / "m.part-1").stat().st_size == 8 << 20
        assert part.allocated_bytes == 0
    finally:
        shutil.rmtree(directory)


def test_more_than_the_disk_has_is_refused_before_anything_is_there(tmp_path: Path) -> None:
    """S-19"""
    wanted = free_bytes(tmp_path) + (1 << 40)
    with pytest.raises(NoSpace) as caught:
        PartFile.create(tmp_path / "m.part-1", wanted)
    assert caught.value.fields["needed_bytes"] == wanted
    assert caught.value.fields["path"] == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bytes_written_out_of_order_are_read_back(tmp_path: Path) -> None:
    part = PartFile.create(tmp_path / "m.part-1", 10)
    part.write(5, memoryview(b"fghij"))
    part.write(0, memoryview(b"abcde"))
    assert part.read(ByteRange(3, 7)) == b"defg"


def test_publishing_gives_the_same_inode_a_read_only_name(tmp_path: Path) -> None:
    """D5"""
    part = PartFile.create(tmp_path / "m.part-1", 3)
    part.write(0, memoryview(b"abc"))
    assert part.publish(tmp_path / "m")
    assert part.is_at(tmp_path / "m")
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == 0o444
    assert part.publish(tmp_path / "m"), "twice by the same holder is no loss"


def test_publishing_never_replaces(tmp_path: Path) -> None:
    """D5"""
    first, second = (PartFile.create(tmp_path / f"m.part-{number}", 3) for number in (1, 2))
    assert first.publish(tmp_path / "m")
    inode = (tmp_path / "m").stat().st_ino
    assert not second.publish(tmp_path / "m")
    assert (tmp_path / "m").stat().st_ino == inode


def test_without_hard_links_a_rename_publishes_and_never_replaces(tmp_path: Path) -> None:
    """D5"""
    for number in (1, 2):
        (tmp_path / f"m.part-{number}").write_text(str(number))
    assert rename_to_new(tmp_path / "m.part-1", tmp_path / "m")
    assert not rename_to_new(tmp_path / "m.part-2", tmp_path / "m")
    assert (tmp_path / "m").read_text() == "1"
    with pytest.raises(FileNotFoundError):
        rename_to_new(tmp_path / "gone", tmp_path / "n")


def test_a_file_of_another_size_or_kind_is_not_adopted(tmp_path: Path) -> None:
    PartFile.create(tmp_path / "m.part-1", 3)
    with pytest.raises(CacheError):
        PartFile.adopt(tmp_path / "m.part-1", 4)
    (tmp_path / "link").symlink_to(tmp_path / "m.part-1")
    with pytest.raises(OSError):
        PartFile.adopt(tmp_path / "link", 3)
