"""Room for what is wanted next: what was used longest ago goes, never what is pinned, filled or used by a process.

Whether a process uses a file is asked of the kernel: a write lease (fcntl(2), F_SETLEASE) is given on a file only when
nobody else on this machine has it open or mapped, in whatever container, and whether or not they know of this cache.
A file of which that cannot be said (a network filesystem, a file of another user) is taken for used. Evicting is
`unlink`: a process that opens a file at that moment keeps it whole.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adapter.errors import NoSpace
from adapter.streaming.budget import Room, room
from adapter.streaming.cache import Cache
from adapter.streaming.pins import PREFIX as PIN_PREFIX
from adapter.streaming.pins import pins
from adapter.streaming.private import hold, is_open, let_go
from adapter.streaming.record import RECORD_NAME, Record
from adapter.streaming.slot import LEASE_NAME, file_name, is_filling


@dataclass(frozen=True, slots=True)
class CachedObject:
    """One slot of a cache, as found on disk."""

    directory: Path
    record: Record | None
    """None while it is filled for the first time, or when it lost its record."""
    files: tuple[Path, ...]
    """All but lease and pins; the record goes first when they are removed."""
    bytes_on_disk: int
    used_s: float
    """When a start last used it, in seconds of the wall clock."""
    pins: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Name of the slot."""
        return self.directory.name

    @property
    def published(self) -> Path | None:
        """The complete file."""
        path = self.directory / file_name(self.record.identity.key) if self.record is not None else None
        return path if path in self.files else None

    @property
    def filling(self) -> bool:
        """Whether there is a file that is not complete."""
        return any(is_filling(path.name) for path in self.files)

    @property
    def title(self) -> str:
        """What to call it: its address, or the name of its file while that is not known."""
        if self.record is not None:
            return self.record.identity.key
        names = [path.name.partition(".part-")[0] for path in self.files if is_filling(path.name)]
        return names[0] if names else self.digest

    def is_used(self) -> bool:
        """Whether a process has one of its files open or mapped, or that cannot be told."""
        return any(path.name != RECORD_NAME and is_open(path) for path in self.files)


def cached_objects(cache: Cache) -> Iterator[CachedObject]:
    """What is in a cache; slots without a file are left out."""
    try:
        directories = sorted(each for each in cache.objects.iterdir() if each.is_dir() and not each.is_symlink())
    except FileNotFoundError:
        return
    for directory in directories:
        with suppress(FileNotFoundError, PermissionError):
            found = _look(directory)
            if found.files:
                yield found


def by_last_use(objects: Collection[CachedObject], keep: Collection[Path]) -> list[CachedObject]:
    """What may go, in the order in which it goes: what was used longest ago is first."""
    return sorted(
        (each for each in objects if not each.pins and each.directory not in keep),
        key=lambda each: (each.used_s, each.digest),
    )


def shortfall(needed_bytes: int, cached_bytes: int, room: Room, floor_bytes: int = 0) -> int:
    """How many bytes have to go before so many can come; zero or less: none."""
    over_limit = needed_bytes + cached_bytes - room.limit_bytes if room.limit_bytes is not None else 0
    return max(needed_bytes + floor_bytes - room.free_bytes, over_limit)


def make_room(cache: Cache, needed_bytes: int, keep: Collection[Path] = ()) -> list[CachedObject]:
    """Evict until so many bytes can come; gives what went.

    Args:
        cache: Where.
        needed_bytes: What is to come.
        keep: Slots that are wanted themselves.

    Raises:
        NoSpace: It cannot be; what went until then is gone.
    """
    there = room(cache.objects, cache.budget)
    if needed_bytes <= 0 or (
        there.limit_bytes is None and shortfall(needed_bytes, 0, there, cache.budget.floor_bytes) <= 0
    ):
        return []
    objects = list(cached_objects(cache))
    cached_bytes = sum(each.bytes_on_disk for each in objects)
    gone: list[CachedObject] = []
    for each in by_last_use(objects, keep):
        if shortfall(needed_bytes, cached_bytes, there, cache.budget.floor_bytes) <= 0:
            break
        if evict(each):
            gone.append(each)
            cached_bytes -= each.bytes_on_disk
            there = room(cache.objects, cache.budget)
    missing = shortfall(needed_bytes, cached_bytes, there)
    if missing > 0:
        limit = f", of {there.limit_bytes} that the cache may have" if there.limit_bytes is not None else ""
        raise NoSpace(
            f"not enough room in {cache.objects}: {needed_bytes} bytes are needed, {there.free_bytes} are free, "
            f"{cached_bytes} are taken by what is pinned or in use{limit} "
            "(COLDSTART_CACHE_DIR names the cache directory, coldstart cache ls shows what is in it)",
            path=str(cache.objects),
            needed_bytes=needed_bytes,
            free_bytes=there.free_bytes,
        )
    return gone


def evict(found: CachedObject, *, force: bool = False) -> bool:
    """Remove an object's files unless somebody fills or uses them; True when they are gone.

    Args:
        found: The object.
        force: Also what is pinned, filled or used; whoever has a file open keeps it.
    """
    path_of_lease = found.directory / LEASE_NAME
    try:
        lease = hold(path_of_lease)
    except OSError:
        lease = None
    if lease is None and not force:
        return False
    try:
        now = _look(found.directory)
        if not force and (now.pins or now.is_used()):
            return False
        for path in (*now.files, *(found.directory / f"{PIN_PREFIX}{name}" for name in now.pins)):
            path.unlink(missing_ok=True)
        return True
    except OSError:
        return False
    finally:
        # the slot and its lease stay: who has just opened the lease must not lock a file that is gone
        if lease is not None:
            let_go(path_of_lease, lease)


def remove_empty(cache: Cache, *, older_s: float) -> None:
    """Remove slots without a file that nobody touched for so long."""
    with suppress(OSError):
        for directory in cache.objects.iterdir():
            with suppress(OSError):
                if time.time() - os.stat(directory, follow_symlinks=False).st_mtime > older_s:
                    if {each.name for each in directory.iterdir()} <= {LEASE_NAME}:
                        (directory / LEASE_NAME).unlink(missing_ok=True)
                        directory.rmdir()


def _look(directory: Path) -> CachedObject:
    files, taken = [], 0
    with os.scandir(directory) as found:
        for each in found:
            if each.name == LEASE_NAME or each.name.startswith(PIN_PREFIX) or not each.is_file(follow_symlinks=False):
                continue
            files.append(directory / each.name)
            taken += each.stat(follow_symlinks=False).st_blocks * 512
    files.sort(key=lambda path: (path.name != RECORD_NAME, path.name))
    used_s = os.stat(directory).st_mtime
    return CachedObject(directory, Record.read(directory / RECORD_NAME), tuple(files), taken, used_s, pins(directory))
