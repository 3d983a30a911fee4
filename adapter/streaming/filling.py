"""One object on its way into the cache: taken from it, filled by this process, or followed while another fills it.

Whatever a manifest has named is brought to its end: readers may have mapped that very inode. Writing a range twice,
by two processes, does no harm, since both write the bytes of one pinned version; so neither a lying lock nor a
holder that was taken for dead can spoil a file, they cost a second read at worst (D5, D6).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from enum import Enum
from typing import ClassVar

from adapter.checkpoint.header import Header
from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError
from adapter.storage.checksums import StoredChecksum
from adapter.streaming.integrity import Checksums, Piece, best_algorithm, checksums_of, mismatch
from adapter.streaming.journal import JournalReader, JournalWriter
from adapter.streaming.manifest import Kind, ObjectEntry
from adapter.streaming.reader import open_sized, read_header
from adapter.streaming.shard_file import PartFile
from adapter.streaming.slot import Lease, PartNames, Slot

_COPY_BYTES = 1 << 20


class Hold(Enum):
    """Who brings an object's bytes."""

    DONE = "done"
    """Nobody has to: it is published."""
    OURS = "ours"
    """This process, which holds the lease."""
    FOLLOWED = "followed"
    """Another process, which holds the lease."""
    ENOUGH = "enough"
    """Nobody has to: what is wanted of it is there. It is not complete and not published."""


class Filling:
    """One object and its files, all of which is wanted. Thread-safe where threads meet: `write`, `missing`, `finish`.

    Args:
        name: The object's key relative to the address, safe as a file's name.
        kind: What it is.
        slot: Its place in the cache.
    """

    sparse: ClassVar[bool] = False
    """Whether most of the file will stay empty."""

    def __init__(self, name: str, kind: Kind, slot: Slot) -> None:
        self.name = name
        self.kind: Kind = kind
        self.slot = slot
        self.hold: Hold = Hold.FOLLOWED
        self.from_cache_bytes: int = 0
        """Bytes that were there when it was begun."""
        self.progressed_s: float = time.monotonic()
        """When bytes last came, as seen from here."""
        self.names: PartNames | None = None
        self.sha256: str | None = None
        """The digest that it must have to be published."""
        self.ask_checksum: Callable[[], StoredChecksum | None] = lambda: None
        """Asks the store for the checksum that it must have to be published."""
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._part: PartFile | None = None
        self._writer: JournalWriter | None = None
        self._journal: JournalReader | None = None
        self._fresh = False
        self._held = -1

    @property
    def size_bytes(self) -> int:
        """Size of the object."""
        return self.slot.identity.size_bytes

    @property
    def whole(self) -> ByteRange:
        """All of its bytes."""
        return ByteRange(0, self.size_bytes)

    @property
    def wanted_bytes(self) -> int:
        """How many of its bytes are wanted."""
        return self.size_bytes

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be brought."""
        return self.hold in (Hold.DONE, Hold.ENOUGH)

    @property
    def done_bytes(self) -> int:
        """Bytes that are there."""
        if self.hold is Hold.DONE:
            return self.size_bytes
        return self._journal.done.total if self._journal is not None else 0

    def entry(self) -> ObjectEntry:
        """What the manifest says about it."""
        names = self.names or self.slot.new_names()
        identity = self.slot.identity
        return ObjectEntry(
            self.name,
            self.name,
            identity.version,
            identity.size_bytes,
            self.kind,
            self.slot.published,
            names.partial,
            names.journal,
        )

    # -- beginning ----------------------------------------------------------------------------------------------------

    def done_before(self) -> bool:
        """Take it from the cache as it is; False when it is gone meanwhile.

        It stays open here, so that it is not evicted before those who read it have it open themselves.
        """
        try:
            self._held = open_sized(self.slot.published, self.size_bytes)
        except (FileNotFoundError, CacheError):
            return False
        self.slot.touch()
        self.hold = Hold.DONE
        self.from_cache_bytes = self.size_bytes
        return True

    def take(self) -> bool:
        """Try to get the lease; True when it is held now.

        Raises:
            OSError: The slot cannot be written.
        """
        self.slot.make()
        lease = self.slot.lease()
        if lease is None:
            return False
        self._lease = lease
        self.hold = Hold.OURS
        return True

    def adopt(self, wanted: PartNames | None) -> bool:
        """Go on with a filling file that is there, `wanted` before others; False when there is none."""
        found = self.slot.parts()
        if wanted in found:
            found = [wanted]
        for names in found:
            try:
                self._open(names)
            except (FileNotFoundError, CacheError):
                continue
            self.from_cache_bytes = self.done_bytes
            return True
        return False

    def create(self, wanted: PartNames | None) -> None:
        """Begin a new filling file, under the wanted names if they are free.

        Raises:
            NoSpace: The disk has no room for it.
        """
        names = wanted if wanted is not None and not wanted.any_there() else self.slot.new_names()
        # the journal first: a filling file without one is nobody's
        # both stay open until they are opened for filling: half-made files that nobody has open are cleaned away
        with closing(JournalWriter.create(names.journal, self.slot.journal_header())):
            try:
                with closing(PartFile.create(names.partial, self.size_bytes, sparse=self.sparse)):
                    self._open(names)
            except BaseException:
                names.partial.unlink(missing_ok=True)
                names.journal.unlink(missing_ok=True)
                raise
        self._fresh = True

    def salvage(self, descriptor: int, pieces: Iterable[Piece]) -> None:
        """Take over from another file what is still as it arrived, by its checksums.

        Raises:
            NoSpace: The disk is full.
        """
        for piece in pieces:
            for gap in self.missing(piece.range):
                if gap != piece.range or not piece.algorithm.available:
                    continue
                data = os.pread(descriptor, gap.length, gap.start)
                if len(data) == gap.length and piece.algorithm.of(data) == piece.value:
                    self.write(gap.start, memoryview(data))
        self.from_cache_bytes = self.done_bytes

    def go_on_without_lease(self) -> None:
        """Fill it beside a holder that stalls."""
        self.hold = Hold.OURS
        self.progressed_s = time.monotonic()

    def _open(self, names: PartNames) -> None:
        reader = JournalReader(names.journal, keep_pieces=True)
        part = writer = None
        try:
            part = PartFile.adopt(names.partial, self.size_bytes)
            writer = JournalWriter.adopt(names.journal, self.slot.journal_header())
            if not reader.is_at(names.journal):
                raise FileNotFoundError(names.journal)
        except BaseException:
            for each in (reader, part, writer):
                if each is not None:
                    each.close()
            raise
        reader.poll()
        self.names, self._part, self._writer, self._journal = names, part, writer, reader

    # -- filling ------------------------------------------------------------------------------------------------------

    def missing(self, wanted: ByteRange | None = None) -> list[ByteRange]:
        """What is not there yet, others' work included."""
        with self._lock:
            if self._journal is None or self.hold is Hold.DONE:
                return []
            self._journal.poll()
            return self._journal.done.missing(self.whole if wanted is None else wanted)

    def unfinished(self) -> list[ByteRange]:
        """What is wanted and not there yet."""
        return self.missing()

    def plan(self, header: Header) -> None:
        """Hear what its header says, before the bulk of it is brought."""

    def settle(self) -> bool:
        """Whether it ends as it is, since only some of it is wanted."""
        return False

    def write(self, start: int, data: memoryview) -> None:
        """Put bytes into the file, then say in the journal that they are there.

        Raises:
            NoSpace: The disk is full.
        """
        if self._part is None or self._writer is None or self._journal is None:
            raise CacheError(f"{self.name} is not being filled", path=str(self.slot.directory))
        # before the write: what is on the disk later is compared with what came from the store
        algorithm = best_algorithm()
        checksum = algorithm.of(data)
        self._part.write(start, data)
        done = ByteRange(start, start + len(data))
        with self._lock:
            self._writer.append(done, algorithm, checksum)
            self._journal.done.add(done)
        self.progressed_s = time.monotonic()

    def read(self, wanted: ByteRange) -> bytes:
        """Bytes that are there."""
        if self._part is None:
            descriptor = open_sized(self.slot.published, self.size_bytes)
            try:
                return os.pread(descriptor, wanted.length, wanted.start)
            finally:
                os.close(descriptor)
        return self._part.read(wanted)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Publish it if every byte is there; True when it is published now.

        Raises:
            CacheError: The filling file was removed by somebody.
            ChecksumMismatch: It is complete, and not what it should be.
        """
        with self._lock:
            if self.hold is Hold.DONE:
                return True
            if self._part is None or self._journal is None or self.names is None or not self._journal.complete:
                return False
            self._journal.poll()  # also what was written here is read back: its checksum
            checksums = checksums_of(self._journal.pieces, self.size_bytes, self._part.read)
            self._compare(self._part, checksums)
            self.slot.write_record(synced=False, checksums=checksums)
            try:
                self._part.publish(self.slot.published)
            except FileNotFoundError:
                if not self.slot.trusted():
                    path = str(self.names.partial)
                    raise CacheError(f"{path} was removed while it was being filled", path=path) from None
            self._drop_names()
            self.hold = Hold.DONE
        self.slot.clean()
        self.release()
        return True

    def _compare(self, part: PartFile, checksums: Checksums) -> None:
        """Refuse what is not what the list of digests or the store itself says."""
        stored = self.ask_checksum()
        expected = {stored.algorithm: stored.value} if stored is not None else {}
        if self.sha256 is not None:
            expected["sha256"] = self.sha256
        for algorithm, value in expected.items():
            found = part.checksum(algorithm, checksums)
            if found is not None and found != value:
                raise mismatch(self.name, algorithm, value, found)

    def catch_up(self) -> bool:
        """Take what others published meanwhile; True when all bytes are there and published now.

        When another inode holds the published name, what is missing here is copied from it, since a reader may have
        mapped the file that was named in the manifest.
        """
        if self.hold is Hold.DONE:
            return True
        if not self.slot.trusted():
            return False
        if self._part is not None and not self._part.is_at(self.slot.published):
            self._copy_published()
        with self._lock:
            if self._lease is not None or (self._part is not None and not self._part.is_at(self.slot.published)):
                self._drop_names()
            self.hold = Hold.DONE
        self.release()
        return True

    def poll(self) -> None:
        """Look how far another process is."""
        with self._lock:
            if self._journal is not None and self._journal.poll():
                self.progressed_s = time.monotonic()

    def check_header(self, limit_bytes: int) -> None:
        """Read the published file's header.

        Raises:
            NotSafetensors, HeaderError: It is not one.
        """
        read_header(self.read, self.name, self.size_bytes, limit_bytes)

    def drop(self) -> None:
        """Remove a filling file that is no good; the lease stays."""
        with self._lock:
            self._drop_names()
            self._close_files()
            self.names = None
            self.from_cache_bytes = 0

    def discard(self) -> None:
        """Remove what was begun: give back its room."""
        with self._lock:
            if self._fresh or self._lease is not None:
                self._drop_names()
        self.release()

    def release(self) -> None:
        """Let another fill it."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def close(self) -> None:
        """Give back files and lease. No thread may use it any more."""
        self.release()
        self._close_files()

    def _close_files(self) -> None:
        for each in (self._part, self._writer, self._journal):
            if each is not None:
                each.close()
        self._part = self._writer = self._journal = None
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _drop_names(self) -> None:
        # the file's name before the journal's: a reader that finds a filling file must find its journal
        if self.names is not None:
            self.names.partial.unlink(missing_ok=True)
            self.names.journal.unlink(missing_ok=True)

    def _copy_published(self) -> None:
        descriptor = open_sized(self.slot.published, self.size_bytes)
        try:
            buffer = memoryview(bytearray(_COPY_BYTES))
            for gap in self.missing():
                position = gap.start
                while position < gap.stop:
                    count = os.preadv(descriptor, [buffer[: gap.stop - position]], position)
                    if count == 0:
                        path = str(self.slot.published)
                        raise CacheError(f"{path} was cut short", path=path)
                    self.write(position, buffer[:count])
                    position += count
        finally:
            os.close(descriptor)
