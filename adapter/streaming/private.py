"""Directories and locks of this user alone, and the errors for those that are not."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

from adapter.errors import CacheError, CacheNotWritable

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


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


def lock_file(path: Path) -> int | None:
    """A descriptor that holds the lock of a file, made if need be; None when another has it or it cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return None
    if lock_exclusively(descriptor):
        return descriptor
    os.close(descriptor)
    return None


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
        refuse_foreign(path, found, allow_any=False)


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


def refuse_foreign(path: Path, found: os.stat_result, *, allow_any: bool) -> None:
    """Refuse a directory that somebody else could put anything into.

    Raises:
        CacheError: It is neither this user's nor root's, and `allow_any` does not say that this is all the same.
    """
    if found.st_uid not in (0, os.geteuid()) and not allow_any:
        raise CacheError(
            f"the cache directory {path} belongs to uid {found.st_uid}, not to uid {os.geteuid()}, and could hold "
            "anything; set COLDSTART_CACHE_DIR to a directory of your own",
            path=str(path),
            uid=os.geteuid(),
            owner=found.st_uid,
        )
