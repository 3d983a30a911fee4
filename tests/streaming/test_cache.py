"""What a cache may be trusted with, and whose it is."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError, CacheNotWritable
from adapter.streaming.cache import Cache
from adapter.streaming.journal import JournalWriter
from adapter.streaming.record import Identity
from adapter.streaming.shard_file import PartFile
from adapter.streaming.slot import STRANGER_S, Slot

IDENTITY = Identity("s3://b", "s3://b/p/m.safetensors", "v1", 100)


def slot(root: Path, boot_id: str = "boot", identity: Identity = IDENTITY) -> Slot:
    cache = Cache(root / "cache", boot_id=boot_id)
    cache.make()
    found = cache.slot(identity)
    found.make()
    return found


def begin(place: Slot, done_bytes: int = 0) -> PartFile:
    names = place.new_names()
    journal = JournalWriter.create(names.journal, place.journal_header())
    part = PartFile.create(names.partial, place.identity.size_bytes)
    part.write(0, memoryview(b"x" * done_bytes))
    if done_bytes:
        journal.append(ByteRange(0, done_bytes))
    journal.close()
    return part


def publish(place: Slot, *, synced: bool = False) -> None:
    part = begin(place, 100)
    place.write_record(synced=synced)
    part.publish(place.published)
    place.clean()


def test_a_published_file_with_its_record_is_trusted(tmp_path: Path) -> None:
    publish(slot(tmp_path))
    assert slot(tmp_path).trusted()


def test_a_file_of_the_right_size_without_a_record_is_not_trusted(tmp_path: Path) -> None:
    """S-20"""
    place = slot(tmp_path)
    place.published.write_bytes(bytes(100))
    assert not place.trusted()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"record": 2}', "null"])
def test_a_damaged_record_is_none(tmp_path: Path, content: str) -> None:
    """S-20"""
    place = slot(tmp_path)
    publish(place)
    (place.directory / "record.json").write_text(content)
    assert not place.trusted()


def test_a_record_without_its_file_or_with_a_shorter_one_is_not_trusted(tmp_path: Path) -> None:
    """S-02"""
    place = slot(tmp_path)
    publish(place)
    os.chmod(place.published, 0o600)
    os.truncate(place.published, 99)
    assert not place.trusted()
    place.published.unlink()
    assert not place.trusted()


def test_what_another_boot_left_unsynced_is_not_trusted(tmp_path: Path) -> None:
    """D8"""
    publish(slot(tmp_path, "before"))
    assert not slot(tmp_path, "after").trusted()
    assert slot(tmp_path, "before").trusted()
    slot(tmp_path, "before").sync()
    assert slot(tmp_path, "after").trusted()


def test_a_filling_file_of_another_boot_is_not_gone_on_with_and_removed_once_it_is_old(tmp_path: Path) -> None:
    """D8"""
    begin(slot(tmp_path, "before"), 50)
    place = slot(tmp_path, "after")
    assert place.parts() == []
    place.clean()
    assert len(list(place.directory.iterdir())) == 2, "a young one may have a live holder elsewhere"
    past_s = time.time() - STRANGER_S - 5
    for found in place.directory.iterdir():
        os.utime(found, (past_s, past_s))
    place.clean()
    assert list(place.directory.iterdir()) == []


def test_the_fullest_filling_file_comes_first(tmp_path: Path) -> None:
    place = slot(tmp_path)
    begin(place, 10)
    fuller = begin(place, 60)
    assert next(names.partial for names in place.parts()) == fuller.path


def test_one_lease_at_a_time_and_free_again_when_released(tmp_path: Path) -> None:
    """S-22"""
    place = slot(tmp_path)
    lease = place.lease()
    assert lease is not None
    assert slot(tmp_path).lease() is None
    lease.release()
    assert slot(tmp_path).lease() is not None


def test_a_lock_file_that_somebody_left_is_no_obstacle(tmp_path: Path) -> None:
    """S-22: files that merely lie there mean nothing."""
    place = slot(tmp_path)
    (place.directory / "lease").write_bytes(b"")
    os.utime(place.directory / "lease", (0, 0))
    assert place.lease() is not None


def test_versions_keys_and_stores_have_places_of_their_own() -> None:
    """S-10, S-12"""
    names = ["a b", "a+b", "a%2Bb", "100%", "한글", "\u00e9", "e\u0301", "x/a b"]
    identities = [Identity("s3://b", f"s3://b/{name}", "v1", 1) for name in names]
    identities += [Identity("s3://b", "s3://b/a b", "v2", 1), Identity("s3://c", "s3://b/a b", "v1", 1)]
    assert len({identity.digest for identity in identities}) == len(identities)


@pytest.mark.parametrize("name", ["record.json", "lease", "x" * 255, "é" * 127 + ".safetensors", ".hidden"])
def test_any_name_of_an_object_gives_a_file_name_that_collides_with_none_of_ours(tmp_path: Path, name: str) -> None:
    """S-12"""
    place = slot(tmp_path, identity=Identity("s3://b", f"s3://b/{name}", "v1", 100))
    publish(place)
    assert place.trusted()
    assert place.published.name not in ("record.json", "lease")
    assert place.published.suffix == Path(name).suffix


def test_directories_and_files_are_for_this_user_alone(tmp_path: Path) -> None:
    place = slot(tmp_path)
    publish(place)
    for directory in (place.directory, place.directory.parent, place.directory.parent.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.published.stat().st_mode) == 0o444
    assert stat.S_IMODE((place.directory / "record.json").stat().st_mode) == 0o600


def test_a_link_in_the_place_of_a_directory_or_file_is_refused(tmp_path: Path) -> None:
    """S-05"""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cache = Cache(tmp_path / "cache")
    cache.make()
    place = cache.slot(IDENTITY)
    place.directory.symlink_to(elsewhere)
    with pytest.raises(CacheError):
        place.make()
    place.directory.unlink()
    place.make()
    (elsewhere / "m").write_bytes(bytes(100))
    place.write_record(synced=True)
    place.published.symlink_to(elsewhere / "m")
    assert not place.trusted()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_cache_of_another_user_is_refused_with_advice(tmp_path: Path) -> None:
    """S-23"""
    cache = Cache(tmp_path / "cache")
    cache.make()
    os.chown(tmp_path / "cache" / "v1", 12345, 12345)
    with pytest.raises(CacheError, match="COLDSTART_CACHE_DIR") as caught:
        Cache(tmp_path / "cache").make()
    assert caught.value.fields["owner"] == 12345


def test_a_file_in_the_place_of_the_cache_is_refused_with_advice(tmp_path: Path) -> None:
    """S-23"""
    (tmp_path / "cache").write_text("")
    with pytest.raises(CacheNotWritable):
        Cache(tmp_path / "cache").make()
    with pytest.raises(CacheNotWritable, match="COLDSTART_CACHE_DIR"):
        Cache(tmp_path / "cache" / "below").make()


def test_names_that_a_holder_left_when_it_died_after_publishing_are_swept(tmp_path: Path) -> None:
    place = slot(tmp_path)
    part = begin(place, 100)
    place.write_record(synced=False)
    part.publish(place.published)
    place.sweep()
    assert sorted(found.name for found in place.directory.iterdir()) == ["m.safetensors", "record.json"]
    assert json.loads((place.directory / "record.json").read_text())["synced"] is False


def test_what_a_killed_process_had_half_made_goes_at_once_and_what_somebody_makes_stays(tmp_path: Path) -> None:
    """B4, S-20: a journal whose filling file was not made yet, and files without their names."""
    place = slot(tmp_path)
    names = place.new_names()
    JournalWriter.create(names.journal, place.journal_header()).close()
    (place.directory / f"{names.partial.name}.tmp-0").write_bytes(b"")
    (place.directory / "record.json.tmp-1-0").write_bytes(b"{")
    made = JournalWriter.create(place.new_names().journal, place.journal_header())
    with (place.directory / "record.json.tmp-2-0").open("wb"):
        place.clean()
        assert {found.name for found in place.directory.iterdir()} == {made.path.name, "record.json.tmp-2-0"}
    made.close()
    place.clean()
    assert list(place.directory.iterdir()) == []
