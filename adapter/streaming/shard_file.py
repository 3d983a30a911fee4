"""A file that gets its final size first and its bytes in any order; published by a link when it is whole (D2, D5)."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Self

from adapter.checkpoint.ranges import ByteRange
from adapter.errors import CacheError, NoSpace
from adapter.streaming.integrity import Checksums, checksum_of

_TMPFS_MAGIC = 0x01021994
_RAMFS_MAGIC = 0x858458F6
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What filesystems without hard links answer."""
_RENAME_NOREPLACE = 1
_AT_FDCWD = -100
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class PartFile:
    """A filling file, open for reading and writing. Threads may write different ranges at a time.

    It is written with `pwrite`, never through a map: on a full disk a write through a map kills the process.
    """

    def __init__(self, path: Path, size_bytes: int, descriptor: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self._descriptor = descriptor

    @classmethod
    def create(cls, path: Path, size_bytes: int, *, sparse: bool = False) -> Self:
        """A new file of that size with nothing in it; appears with its final size, under a name nobody else uses.

        Args:
            path: That name.
            size_bytes: That size.
            sparse: Most of it will stay empty: no room is taken for it before it is written.

        Raises:
            NoSpace: The disk has less room than that.
        """
        temporary = path.with_name(f"{path.name}.tmp-{os.urandom(4).hex()}")
        descriptor = os.open(temporary, _WRITING | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if sparse:
                os.ftruncate(descriptor, size_bytes)
            else:
                allocate(descriptor, size_bytes, path)
            os.rename(temporary, path)
        except BaseException:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        return cls(path, size_bytes, descriptor)

    @classmethod
    def adopt(cls, path: Path, size_bytes: int) -> Self:
        """Go on with a file that another process began.

        Raises:
            FileNotFoundError: It is gone.
            CacheError: It is no plain file of that size.
        """
        descriptor = os.open(path, _WRITING)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size_bytes:
            os.close(descriptor)
            raise CacheError(f"{path} is no plain file of {size_bytes} bytes", path=str(path))
        return cls(path, size_bytes, descriptor)

    @property
    def allocated_bytes(self) -> int:
        """Disk room that it has already."""
        return os.fstat(self._descriptor).st_blocks * 512

    def write(self, start: int, data: memoryview) -> None:
        """Put bytes at their place.

        Raises:
            NoSpace: The disk is full.
        """
        try:
            while data:
                written = os.pwrite(self._descriptor, data, start)
                start += written
                data = data[written:]
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise no_space(self.path, len(data)) from error

    def read(self, wanted: ByteRange) -> bytes:
        """Bytes that were written before."""
        return os.pread(self._descriptor, wanted.length, wanted.start)

    def checksum(self, algorithm: str, known: Checksums) -> str | None:
        """The checksum of all of it, in hexadecimal digits; None where it cannot be computed here.

        Args:
            algorithm: Its name.
            known: What is known without reading the file.
        """
        return checksum_of(self._descriptor, algorithm, known)

    def is_at(self, path: Path) -> bool:
        """Whether that name leads to this very file."""
        try:
            return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._descriptor))
        except FileNotFoundError:
            return False

    def publish(self, path: Path) -> bool:
        """Give it, complete, its final name, from now on for reading only; False when another holds the name.

        Raises:
            FileNotFoundError: Its own name was removed meanwhile.
        """
        try:
            os.link(self.path, path, follow_symlinks=False)
        except FileExistsError:
            if not self.is_at(path):
                return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not rename_to_new(self.path, path):
                return self.is_at(path)
        # after the link: a holder that dies between the two must leave a file that the next one can open for writing
        os.fchmod(self._descriptor, 0o444)
        return True

    def close(self) -> None:
        """Give back the file; its name stays."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_WRITING = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def allocate(descriptor: int, size_bytes: int, path: Path) -> None:
    """Give a file its size and, where the filesystem can without writing, its room on disk.

    glibc's `posix_fallocate` is not used: where the kernel call is missing it writes every block. tmpfs would clear
    every page. In both cases the size alone is set, after a look at the free space.

    Raises:
        NoSpace: Less room is free.
    """
    if size_bytes == 0:
        return
    if free_bytes(path.parent) < size_bytes:
        raise no_space(path, size_bytes)
    if _magic(descriptor) not in (_TMPFS_MAGIC, _RAMFS_MAGIC):
        number = _fallocate(descriptor, size_bytes)
        if number == 0:
            return
        if number in _FULL:
            raise no_space(path, size_bytes)
        if number not in _UNSUPPORTED:
            raise OSError(number, os.strerror(number), str(path))
    os.ftruncate(descriptor, size_bytes)


def rename_to_new(source: Path, target: Path) -> bool:
    """Rename a file unless the new name is taken; False when it is. Source: renameat2(2).

    Raises:
        OSError: The filesystem cannot do that either.
    """
    call = ctypes.CDLL(None, use_errno=True).renameat2
    if call(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
        return True
    number = ctypes.get_errno()
    if number == errno.EEXIST:
        return False
    raise OSError(number, os.strerror(number), str(target))


def free_bytes(directory: Path) -> int:
    """Room on the disk of a directory that this user may take."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def no_space(path: Path, needed_bytes: int) -> NoSpace:
    """The error for a disk with too little room."""
    free = free_bytes(path.parent)
    return NoSpace(
        f"not enough disk space in {path.parent}: {needed_bytes} bytes are needed, {free} are free "
        "(COLDSTART_CACHE_DIR names the cache directory)",
        path=str(path.parent),
        needed_bytes=needed_bytes,
        free_bytes=free,
    )


def is_memory(directory: Path) -> bool:
    """Whether files in a directory are kept in memory (tmpfs)."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return _magic(descriptor) in (_TMPFS_MAGIC, _RAMFS_MAGIC)
    finally:
        os.close(descriptor)


def _fallocate(descriptor: int, size_bytes: int) -> int:
    """fallocate(2); gives errno, 0 when it worked."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)
    while call(descriptor, 0, 0, size_bytes) != 0:
        number = ctypes.get_errno()
        if number != errno.EINTR:
            return number
    return 0


def _magic(descriptor: int) -> int:
    """The filesystem's type. Source: statfs(2); `f_type` is the first word on x86 and ARM."""
    room = ctypes.create_string_buffer(512)
    if ctypes.CDLL(None, use_errno=True).fstatfs(descriptor, room) != 0:
        return 0
    return ctypes.c_long.from_buffer(room).value & 0xFFFFFFFF
