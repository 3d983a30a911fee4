"""One object's place in a cache: its files, what they may be taken for, and who may fill them."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError
from adapter.streaming.integrity import Checksums, Ended, Piece, damaged
from adapter.streaming.journal import JournalHeader, JournalReader
from adapter.streaming.manifest import sync_directory
from adapter.streaming.pins import PREFIX as PIN_PREFIX
from adapter.streaming.private import hold, is_open, let_go, make_private
from adapter.streaming.reader import open_sized
from adapter.streaming.record import RECORD_NAME, Identity, Record, Trust

STRANGER_S = 60.0
"""A filling file of another boot or another size is removed when nothing was added to it for so long: until then it
may belong to a live holder that a lying lock did not show, on another machine with the same network filesystem."""
TEMPORARY_S = 5.0
"""The same for a file that did not get its name yet, which takes milliseconds."""

LEASE_NAME = "lease"
_BASENAME_LIMIT_BYTES = 180
"""255 bytes are the longest name a filesystem takes, and some are needed for `.journal-<id>.tmp-<id>`."""


@dataclass(frozen=True, slots=True)
class Boot:
    """What tells one boot of a machine from another, and how files are locked in it."""

    id: str
    lock: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class PartNames:
    """A filling file and its journal."""

    partial: Path
    journal: Path

    def any_there(self) -> bool:
        """Whether one of the names is taken."""
        return any(os.path.lexists(path) for path in (self.partial, self.journal))


class Remains(NamedTuple):
    """A file whose bytes are no good as a whole, and what is known of its pieces."""

    descriptor: int
    pieces: list[Piece]


class Lease:
    """The right to fill one slot, held until it is released or the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another have it."""
        if self._descriptor >= 0:
            let_go(self._path, self._descriptor)
            self._descriptor = -1


class Slot:
    """One object's directory in a cache.

    Args:
        objects: The directory that holds all of them.
        identity: Which object.
        boot: Where and when this process runs.
    """

    def __init__(self, objects: Path, identity: Identity, boot: Boot) -> None:
        self.identity = identity
        self._boot = boot
        self.directory: Path = objects / identity.digest
        self.basename: str = file_name(identity.key)
        self.published: Path = self.directory / self.basename
        self._record = self.directory / RECORD_NAME

    def make(self) -> None:
        """Make the directory.

        Raises:
            CacheError: What is there is no directory of this user.
            OSError: It cannot be made.
        """
        make_private(self.directory)

    def trusted(self) -> bool:
        """Whether the published file is there and its record says that it is complete, in a way that still counts."""
        return self.trust() is Trust.FULL

    def trust(self) -> Trust:
        """What the published file may be taken for, by its record, name and size."""
        record = self.record()
        trust = record.trust(self._boot.id) if record is not None else Trust.NONE
        if trust is not Trust.NONE:
            try:
                os.close(open_sized(self.published, self.identity.size_bytes))
            except (FileNotFoundError, CacheError):
                return Trust.NONE
        return trust

    def record(self) -> Record | None:
        """What is known of the published file, when that is about this object."""
        found = Record.read(self._record)
        return found if found is not None and found.identity == self.identity else None

    def synced(self) -> bool:
        """Whether the record says that a power cut does no harm."""
        record = self.record()
        return record is not None and record.synced

    def damaged(self, ended: Ended | None = None) -> list[ByteRange] | None:
        """The parts of the published file that are not what its checksums say; None where it cannot be told.

        Reads all of the file.

        Raises:
            AdapterError: The one that `ended` returned meanwhile.
        """
        record = self.record()
        if record is None or record.checksums is None:
            return None
        try:
            descriptor = open_sized(self.published, self.identity.size_bytes)
        except (FileNotFoundError, CacheError):
            return None
        try:
            return damaged(descriptor, record.checksums, ended)
        except LookupError:
            return None
        finally:
            os.close(descriptor)

    def touch(self) -> None:
        """Say that it was used just now: what was used longest ago is evicted first."""
        # a cache that is read-only evicts nothing
        with suppress(OSError):
            os.utime(self.directory)

    def lease(self) -> Lease | None:
        """The right to fill, or None when another has it.

        Raises:
            OSError: The file of the lease cannot be made or opened.
        """
        path = self.directory / LEASE_NAME
        descriptor = hold(path, self._boot.lock)
        return Lease(path, descriptor) if descriptor is not None else None

    def parts(self) -> list[PartNames]:
        """Filling files that may be gone on with, the fullest first: of this object, size and boot, whole names."""
        found: list[tuple[int, str, PartNames]] = []
        for names in self._all_parts():
            try:
                journal = JournalReader(names.journal)
            except (FileNotFoundError, CacheError, OSError):
                continue
            try:
                if journal.header != self.journal_header():
                    continue
                os.close(open_sized(names.partial, self.identity.size_bytes))
                journal.poll()
                found.append((-journal.done.total, names.partial.name, names))
            except (FileNotFoundError, CacheError):
                continue
            finally:
                journal.close()
        return [names for *_, names in sorted(found, key=lambda each: each[:2])]

    def new_names(self) -> PartNames:
        """Names that no other process uses."""
        return self._names(os.urandom(8).hex())

    def journal_header(self) -> JournalHeader:
        """What a journal of this object in this boot begins with."""
        return JournalHeader(self.identity.size_bytes, self.identity.version, self._boot.id)

    def write_record(self, *, synced: bool, checksums: Checksums | None = None) -> None:
        """Say what the published file is. Before it is published."""
        record = Record.now(self.identity, self._boot.id, checksums)
        (record.as_synced() if synced else record).write(self._record)

    def prove(self) -> None:
        """Say that an unproven file was checked: within this boot it counts as complete."""
        record = self.record()
        if record is not None:
            replace(record, boot_id=self._boot.id).write(self._record)

    def distrust(self) -> None:
        """Say that the published file counts only as far as its checksums fit: the next start looks.

        Raises:
            OSError: This user cannot write there.
        """
        record = self.record()
        if record is not None:
            replace(record, boot_id="", synced=False).write(self._record)

    def sync(self) -> None:
        """Make the published file survive a power cut, then say so.

        Raises:
            FileNotFoundError: It was removed meanwhile.
        """
        descriptor = open_sized(self.published, self.identity.size_bytes)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self.directory)
        sync_directory(self.directory.parent)
        record = self.record() or Record.now(self.identity, self._boot.id)
        record.as_synced().write(self._record)

    def drop_published(self) -> None:
        """Remove what cannot be trusted. The record goes first; what is mapped from the file stays mapped."""
        self._record.unlink(missing_ok=True)
        self.published.unlink(missing_ok=True)

    @contextmanager
    def remains(self) -> Iterator[list[Remains]]:
        """Files of this version that may not be taken as they are, open until the `with` block ends."""
        with ExitStack() as opened:
            found: list[Remains] = []
            record = self.record()
            if record is not None and record.checksums is not None:
                algorithm = record.checksums.algorithm
                pieces = [Piece(part, algorithm, value) for part, value in record.checksums.ranges()]
                found += self._remains(self.published, pieces, opened)
            for names in self._all_parts():
                with suppress(CacheError, OSError), closing(JournalReader(names.journal, keep_pieces=True)) as journal:
                    if journal.header.boot_id != self._boot.id:
                        journal.poll()
                        if replace(journal.header, boot_id=self._boot.id) == self.journal_header():
                            found += self._remains(names.partial, journal.pieces, opened)
            yield found

    def _remains(self, path: Path, pieces: list[Piece], opened: ExitStack) -> list[Remains]:
        try:
            descriptor = open_sized(path, self.identity.size_bytes)
        except (FileNotFoundError, CacheError):
            return []
        opened.callback(os.close, descriptor)
        return [Remains(descriptor, pieces)]

    def sweep(self) -> None:
        """Remove other names of the published file, which a holder that died while it published may have left."""
        with suppress(OSError):
            if os.stat(self.published, follow_symlinks=False).st_nlink > 1:
                for names in self._all_parts():
                    if os.path.samefile(names.partial, self.published):
                        names.partial.unlink(missing_ok=True)
                        names.journal.unlink(missing_ok=True)

    def allocated_bytes(self) -> int:
        """Disk room that the filling file which would be gone on with has already."""
        for names in self.parts():
            with suppress(OSError):
                return min(os.stat(names.partial, follow_symlinks=False).st_blocks * 512, self.identity.size_bytes)
        return 0

    def clean(self, keep: PartNames | None = None) -> None:
        """Remove filling files that nobody can go on with. Only with the lease, and never a young one.

        What a killed process had only half made goes at once, where the kernel says that nobody has it open.
        """
        now_s = time.time()
        kept = {keep.partial.name, keep.journal.name} if keep is not None else set()
        with os.scandir(self.directory) as found:
            for each in found:
                if each.name in kept or not _is_leftover(each.name, self.basename):
                    continue
                try:
                    half_made = ".tmp-" in each.name or not self._has_twin(each.name)
                    if now_s - self._changed_s(each) > (TEMPORARY_S if half_made else STRANGER_S) or (
                        half_made and not is_open(Path(each.path))
                    ):
                        os.unlink(each.path)
                except FileNotFoundError:
                    continue

    def _changed_s(self, each: os.DirEntry[str]) -> float:
        """When it, or its twin, was last added to."""
        times = [each.stat(follow_symlinks=False).st_mtime]
        twin = self._twin(each.name)
        if twin is not None:
            with suppress(FileNotFoundError):
                times.append(os.stat(twin, follow_symlinks=False).st_mtime)
        return max(times)

    def _has_twin(self, name: str) -> bool:
        twin = self._twin(name)
        return twin is not None and os.path.lexists(twin)

    def _twin(self, name: str) -> Path | None:
        """The journal of a filling file, or the other way round."""
        for ours, other in ((".part-", ".journal-"), (".journal-", ".part-")):
            if name.startswith(self.basename + ours):
                return self.directory / name.replace(self.basename + ours, self.basename + other, 1)
        return None

    def _all_parts(self) -> Iterator[PartNames]:
        prefix = f"{self.basename}.part-"
        try:
            names = os.listdir(self.directory)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # a cache that cannot be read is told when it is to be written
        for name in names:
            if name.startswith(prefix) and ".tmp-" not in name[len(prefix) :]:
                yield self._names(name[len(prefix) :])

    def _names(self, identifier: str) -> PartNames:
        return PartNames(
            self.directory / f"{self.basename}.part-{identifier}",
            self.directory / f"{self.basename}.journal-{identifier}",
        )


def file_name(key: str) -> str:
    """Name of an object's file in its slot, which is none of our own names."""
    name = key.rpartition("/")[2]
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _BASENAME_LIMIT_BYTES:
        name = f"long-{hashlib.sha256(encoded).hexdigest()[:32]}{os.path.splitext(name)[1][:20]}"
    # names of our own are never those of an object
    own = name in (RECORD_NAME, LEASE_NAME, "", ".", "..") or name.startswith(PIN_PREFIX)
    return f"object-{name}" if own else name


def is_filling(name: str) -> bool:
    """Whether that is the name of a file in a slot that is not complete, or of its journal."""
    return any(mark in name for mark in (".part-", ".journal-", ".tmp-"))


def _is_leftover(name: str, basename: str) -> bool:
    prefixes = (f"{basename}.part-", f"{basename}.journal-", f"{RECORD_NAME}.tmp-")
    return name.startswith(prefixes)
