"""The cache directory: one slot an object, named by store, key and version; who fills it, and what may be trusted.

    <root>/v1/objects/<digest>/  <basename>               published: complete, read-only, never written again
                                 <basename>.part-<id>     filling
                                 <basename>.journal-<id>  which bytes of it are there
                                 record.json              what the published file is; without it the file is not trusted
                                 lease                    locked by the fetcher that fills (D6)

The record is written before the file is published, so a published name without one is not ours or lost its proof
(S-20). Nothing here is synced to disk before readiness (D8): a killed process loses nothing, since the page cache
stays; a rebooted machine may, so what was not yet synced counts only within the boot that wrote it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError, CacheNotWritable
from adapter.streaming.integrity import Checksums, damaged
from adapter.streaming.journal import JournalHeader, JournalReader
from adapter.streaming.manifest import sync_directory
from adapter.streaming.reader import open_sized
from adapter.streaming.record import RECORD_NAME, Identity, Record, Trust

STRANGER_S = 60.0
"""A filling file of another boot or another size is removed when nothing was added to it for so long: until then it
may belong to a live holder that a lying lock did not show, on another machine with the same network filesystem."""
TEMPORARY_S = 5.0
"""The same for a file that did not get its name yet, which takes milliseconds."""

_LEASE_NAME = "lease"
_BASENAME_LIMIT_BYTES = 180
"""255 bytes are the longest name a filesystem takes, and some are needed for `.journal-<id>.tmp-<id>`."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class PartNames:
    """A filling file and its journal."""

    partial: Path
    journal: Path


class Lease:
    """The right to fill one slot, held until it is released or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let another have it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def lock_exclusively(descriptor: int) -> bool:
    """flock(2) without waiting; also True where the filesystem has no locks, which correctness never depends on."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


class Cache:
    """A cache directory.

    Args:
        root: Settings.cache_dir.
        boot_id: What tells one boot from another; None reads the kernel's.
        lock: Locks a descriptor or says that another has it; a seam for filesystems whose locks lie.
    """

    def __init__(
        self, root: Path, *, boot_id: str | None = None, lock: Callable[[int], bool] = lock_exclusively
    ) -> None:
        # absolute without following links: the names are written into a manifest that other processes read
        self.root: Path = Path(os.path.abspath(root))
        self.boot_id: str = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.lock = lock

    def slot(self, identity: Identity) -> Slot:
        """The place of one object; nothing is made on disk yet."""
        return Slot(self, identity)

    def make(self) -> None:
        """Make the directory for filling; S-23: whether that works is known before anything is fetched.

        Raises:
            CacheNotWritable: This user cannot write there.
            CacheError: It belongs to somebody else, who could put anything there.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(self.root, os.stat(self.root), allow_any=os.geteuid() == 0)
            for path in (self.root / "v1", self.root / "v1" / "objects"):
                make_private(path)
        except FileExistsError:
            raise CacheNotWritable(f"{self.root} is no directory", path=str(self.root)) from None
        except OSError as error:
            raise not_writable(self.root, error) from error
        if not os.access(self.root / "v1" / "objects", os.W_OK | os.X_OK):
            raise not_writable(self.root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))


class Slot:
    """One object's directory in a cache."""

    def __init__(self, cache: Cache, identity: Identity) -> None:
        self.identity = identity
        self._cache = cache
        self.directory: Path = cache.root / "v1" / "objects" / identity.digest
        self.basename: str = _file_name(identity.key)
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
        trust = record.trust(self._cache.boot_id) if record is not None else Trust.NONE
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

    def damaged(self) -> list[ByteRange] | None:
        """The parts of the published file that are not what its checksums say; None where it cannot be told.

        Reads all of the file.
        """
        record = self.record()
        if record is None or record.checksums is None:
            return None
        try:
            descriptor = open_sized(self.published, self.identity.size_bytes)
        except (FileNotFoundError, CacheError):
            return None
        try:
            return damaged(descriptor, record.checksums)
        except LookupError:
            return None
        finally:
            os.close(descriptor)

    def lease(self) -> Lease | None:
        """The right to fill, or None when another has it.

        Raises:
            OSError: The file of the lease cannot be made or opened.
        """
        descriptor = os.open(self.directory / _LEASE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if self._cache.lock(descriptor):
                return Lease(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        return None

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
        return JournalHeader(self.identity.size_bytes, self.identity.version, self._cache.boot_id)

    def write_record(self, *, synced: bool, checksums: Checksums | None = None) -> None:
        """Say what the published file is. Before it is published."""
        record = Record.now(self.identity, self._cache.boot_id, checksums)
        (record.as_synced() if synced else record).write(self._record)

    def prove(self) -> None:
        """Say that an unproven file was checked: within this boot it counts as complete."""
        record = self.record()
        if record is not None:
            replace(record, boot_id=self._cache.boot_id).write(self._record)

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
        record = self.record() or Record.now(self.identity, self._cache.boot_id)
        record.as_synced().write(self._record)

    def drop_published(self) -> None:
        """Remove what cannot be trusted. The record goes first; what is mapped from the file stays mapped."""
        self._record.unlink(missing_ok=True)
        self.published.unlink(missing_ok=True)

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
        """Remove filling files that nobody can go on with. Only with the lease, and never a young one."""
        now_s = time.time()
        kept = {keep.partial.name, keep.journal.name} if keep is not None else set()
        with os.scandir(self.directory) as found:
            for each in found:
                if each.name in kept or not _is_leftover(each.name, self.basename):
                    continue
                try:
                    if now_s - self._changed_s(each) > (TEMPORARY_S if ".tmp-" in each.name else STRANGER_S):
                        os.unlink(each.path)
                except FileNotFoundError:
                    continue

    def _changed_s(self, each: os.DirEntry[str]) -> float:
        """When it, or its twin, was last added to."""
        times = [each.stat(follow_symlinks=False).st_mtime]
        for ours, other in ((".part-", ".journal-"), (".journal-", ".part-")):
            if each.name.startswith(self.basename + ours):
                twin = self.directory / each.name.replace(self.basename + ours, self.basename + other, 1)
                try:
                    times.append(os.stat(twin, follow_symlinks=False).st_mtime)
                except FileNotFoundError:
                    continue
        return max(times)

    def _all_parts(self) -> Iterator[PartNames]:
        prefix = f"{self.basename}.part-"
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(prefix) and ".tmp-" not in name[len(prefix) :]:
                yield self._names(name[len(prefix) :])

    def _names(self, identifier: str) -> PartNames:
        return PartNames(
            self.directory / f"{self.basename}.part-{identifier}",
            self.directory / f"{self.basename}.journal-{identifier}",
        )


def make_private(path: Path) -> None:
    """Make a directory for this user alone, or check the one that is there.

    Raises:
        CacheError: What is there is no directory, or is somebody else's.
        OSError: It cannot be made.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise CacheError(f"{path} is no directory", path=str(path)) from None
        _refuse_foreign(path, found, allow_any=False)


def not_writable(path: Path, error: OSError) -> CacheNotWritable:
    """The error for a cache that this user cannot write."""
    return CacheNotWritable(
        f"the cache directory {path} cannot be written by uid {os.geteuid()}: {error.strerror}; "
        "set COLDSTART_CACHE_DIR to a directory that can",
        path=str(path),
        uid=os.geteuid(),
    )


def is_read_only(error: OSError) -> bool:
    """Whether the error says that this user may not write there."""
    return error.errno in _READ_ONLY


def _refuse_foreign(path: Path, found: os.stat_result, *, allow_any: bool) -> None:
    if found.st_uid not in (0, os.geteuid()) and not allow_any:
        raise CacheError(
            f"the cache directory {path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}, and could hold "
            "anything; set COLDSTART_CACHE_DIR to a directory of your own",
            path=str(path),
            uid=os.geteuid(),
            owner=found.st_uid,
        )


def _file_name(key: str) -> str:
    name = key.rpartition("/")[2]
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _BASENAME_LIMIT_BYTES:
        name = f"long-{hashlib.sha256(encoded).hexdigest()[:32]}{os.path.splitext(name)[1][:20]}"
    # names of our own are never those of an object
    return f"object-{name}" if name in (RECORD_NAME, _LEASE_NAME, "", ".", "..") else name


def _is_leftover(name: str, basename: str) -> bool:
    prefixes = (f"{basename}.part-", f"{basename}.journal-", f"{RECORD_NAME}.tmp-")
    return name.startswith(prefixes)
