"""Reading an object while it is still being filled, knowing nothing but the files on disk.

A tensor may be handed out once every page it touches is complete: a page that is written in place (copy-on-write)
never sees what arrives in its file later, so waits are rounded out to pages (D7).
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from adapter.checkpoint.header import HEADER_LIMIT_BYTES, LENGTH_BYTES, Header, header_length, parse_header
from adapter.checkpoint.ranges import ByteRange, round_to_pages
from adapter.errors import CacheError
from adapter.streaming.journal import JournalReader
from adapter.streaming.manifest import ObjectEntry
from adapter.streaming.waiting import Deadline, Failure, wait_for

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE_S = 1.0
"""A sealed file gets its final name before the other names go, so nothing at all for so long means: it was removed."""
_LOOKED_AT_S = 2.0
_LOOK_BYTES = 512
"""So much of a file's beginning tells what it is when it is no safetensors file."""


class ObjectReader:
    """One object of a manifest, read as it arrives. Thread-safe.

    It settles on one inode at its first use and stays with it: either the published file, which is complete, or the
    filling file with the journal that tells about that very file, also after both names are gone.

    Args:
        entry: Which object, from the manifest.
        failure: Tells whether the fetcher failed; its error ends a wait.
        deadline: Waits end there; None waits for ever.
        header_limit_bytes: Largest safetensors header that is read.
    """

    def __init__(
        self,
        entry: ObjectEntry,
        failure: Failure | None = None,
        deadline: Deadline | None = None,
        *,
        header_limit_bytes: int = HEADER_LIMIT_BYTES,
    ) -> None:
        self.entry = entry
        self._failure = failure
        self._deadline = deadline
        self._header_limit_bytes = header_limit_bytes
        self._lock = threading.Lock()
        self._descriptor = -1
        self._journal: JournalReader | None = None
        self._complete = False
        self._gone_since_s: float | None = None
        self._header: Header | None = None

    def wait(self, wanted: ByteRange | None = None) -> float:
        """Return once the bytes are there, with all of every page they touch; gives the seconds that took.

        Args:
            wanted: Which bytes; None is the whole object.

        Raises:
            AdapterError: The fetcher failed; its own error.
            InitTimeout: The deadline passed.
            CacheError: The files were removed, or are not what the manifest says.
        """
        whole = ByteRange(0, self.entry.size_bytes)
        pages = whole if wanted is None else round_to_pages(wanted, PAGE_BYTES, self.entry.size_bytes)
        begun_s = time.monotonic()
        if not self._there(pages):
            wait_for(lambda: self._there(pages) or None, self._state, failure=self._failure, deadline=self._deadline)
            return time.monotonic() - begun_s
        return 0.0

    def open(self) -> int:
        """A descriptor of its own on the object's file, for reading and mapping; the file has its final size.

        The caller closes it. `path_of` makes a path of it for what wants one.

        Raises:
            AdapterError, InitTimeout, CacheError: As `wait`.
        """
        return os.dup(self._attached())

    def file_path(self) -> Path:
        """A path that leads to the object's file as long as this reader is open, whatever names come and go."""
        return Path(f"/proc/self/fd/{self._attached()}")

    def read(self, wanted: ByteRange) -> bytes:
        """These bytes, once they are there.

        Raises:
            AdapterError, InitTimeout, CacheError: As `wait`.
        """
        self.wait(wanted)
        data = bytearray(wanted.length)
        view = memoryview(data)
        position = wanted.start
        while view:
            count = os.preadv(self._descriptor, [view], position)
            if count == 0:
                raise CacheError(f"the cached file of {self.entry.name} was cut short", path=str(self.entry.published))
            view = view[count:]
            position += count
        return bytes(data)

    def header(self) -> Header:
        """The safetensors header; waits for its bytes only.

        Raises:
            NotSafetensors, HeaderError: It is not one.
            AdapterError, InitTimeout, CacheError: As `wait`.
        """
        if self._header is None:
            self._header = read_header(self.read, self.entry.name, self.entry.size_bytes, self._header_limit_bytes)
        return self._header

    @property
    def complete(self) -> bool:
        """Whether every byte is there by now."""
        return self._there(ByteRange(0, self.entry.size_bytes))

    @property
    def done_bytes(self) -> int:
        """How many bytes are there by now."""
        with self._lock:
            if not self._complete and self._attach() and self._journal is not None:
                self._journal.poll()
            if self._complete:
                return self.entry.size_bytes
            return self._journal.done.total if self._journal is not None else 0

    def close(self) -> None:
        """Give back the files. What was mapped stays mapped."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            self._complete = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _there(self, pages: ByteRange) -> bool:
        with self._lock:
            if self._complete:
                return True
            if not self._attach():
                return False
            journal = self._journal
            if journal is None:
                return self._complete
            if journal.done.contains(pages):
                return True
            if not journal.poll():
                return False
            self._complete = journal.complete
            return journal.done.contains(pages)

    def _attached(self) -> int:
        def look() -> int | None:
            with self._lock:
                return self._descriptor if self._attach() else None

        return wait_for(look, self._state, failure=self._failure, deadline=self._deadline)

    def _attach(self) -> bool:
        """Settle on an inode; False when neither name can be opened just now."""
        if self._descriptor >= 0:
            return True
        if self._attach_published() or self._attach_partial() or self._attach_published():
            self._gone_since_s = None
            return True
        now_s = time.monotonic()
        self._gone_since_s = self._gone_since_s or now_s
        if now_s - self._gone_since_s > _GONE_S:
            path = self.entry.published
            raise CacheError(f"{self.entry.name} was removed from the cache: {path} is gone", path=str(path))
        return False

    def _attach_published(self) -> bool:
        try:
            self._descriptor = open_sized(self.entry.published, self.entry.size_bytes)
        except FileNotFoundError:
            return False
        self._complete = True
        return True

    def _attach_partial(self) -> bool:
        # the journal first: it is made first and goes last
        try:
            journal = JournalReader(self.entry.journal)
        except FileNotFoundError:
            return False
        try:
            header = journal.header
            if (header.size_bytes, header.version) != (self.entry.size_bytes, self.entry.version):
                raise CacheError(f"{self.entry.journal} is the journal of another object", path=str(self.entry.journal))
            descriptor = open_sized(self.entry.partial, self.entry.size_bytes)
            if not journal.is_at(self.entry.journal):
                # both were replaced between the two opens: this journal is not about this file
                os.close(descriptor)
                raise FileNotFoundError(self.entry.journal)
        except FileNotFoundError:
            journal.close()
            return False
        except BaseException:
            journal.close()
            raise
        journal.poll()
        self._descriptor = descriptor
        self._journal = journal
        self._complete = journal.complete
        return True

    def _state(self) -> str:
        size = self.entry.size_bytes
        there = self._journal.done.total if self._journal is not None else 0
        return f"{self.entry.name} ({there} of {size} bytes are there)"


def read_header(read: Callable[[ByteRange], bytes], file: str, file_bytes: int, limit_bytes: int) -> Header:
    """The header of a file that `read` gives bytes of; its length is checked before so much is read.

    Raises:
        NotSafetensors, HeaderError: It is not one.
    """
    first = read(ByteRange(0, min(_LOOK_BYTES, file_bytes)))
    length = header_length(first, file=file, file_bytes=file_bytes, limit_bytes=limit_bytes)
    data = read(ByteRange(0, LENGTH_BYTES + length))
    return parse_header(data, file=file, file_bytes=file_bytes, limit_bytes=limit_bytes)


def open_sized(path: Path, size_bytes: int) -> int:
    """A descriptor for reading of a plain file that has this size; links are not followed.

    Raises:
        FileNotFoundError: There is none.
        CacheError: It is no plain file, or has another size.
    """
    try:
        descriptor = _open(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CacheError(f"{path} cannot be opened: {error.strerror}", path=str(path)) from error
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes:
        os.close(descriptor)
        raise CacheError(
            f"{path} is not the plain file of {size_bytes} bytes that it should be (incomplete download?)",
            path=str(path),
            expected_bytes=size_bytes,
            found_bytes=found.st_size,
        )
    return descriptor


def _open(path: Path) -> int:
    end_s = time.monotonic() + _LOOKED_AT_S
    while True:
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except BlockingIOError:
            # eviction asks the kernel at this moment whether the file is used, which takes microseconds
            if time.monotonic() > end_s:
                raise
            time.sleep(0.0005)
