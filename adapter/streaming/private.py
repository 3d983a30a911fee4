"""Directories and locks of this user alone, and the errors for those that are not."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from adapter.errors import CacheError, CacheNotWritable

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


_held: dict[Path, int] = {}
"""Locks of this process, by their file, and the process: a forked child has none of its parent's."""
_guard = threading.Lock()


def _after_fork() -> None:
    global _guard  # noqa: PLW0603 - another thread may have held it at the fork, and does not exist here
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def lock_exclusively(descriptor: int) -> bool:
    """Lock a file for this process without waiting; False when another process has it.

    Also True where the filesystem has no locks, which correctness never depends on. A lock of fcntl(2), not flock(2):
    a forked child, which would keep an flock of its killed parent for ever, does not share it.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def hold(path: Path, lock: Callable[[int], bool] = lock_exclusively) -> int | None:
    """A descriptor that holds the lock of a file, made if need be; None when somebody has it. `let_go` ends it.

    Within one process the kernel does not tell two holders apart, and closing any descriptor of the file would end
    the lock: so a file that is held is not even opened.

    Raises:
        OSError: It cannot be made or opened.
    """
    with _guard:
        if _held.get(path) == os.getpid():
            return None
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not lock(descriptor):
                os.close(descriptor)
                return None
        except BaseException:
            os.close(descriptor)
            raise
        _held[path] = os.getpid()
        return descriptor


def let_go(path: Path, descriptor: int) -> None:
    """End what `hold` began."""
    with _guard:
        os.close(descriptor)
        if _held.get(path) == os.getpid():
            del _held[path]


def is_open(path: Path) -> bool:
    """Whether a process has a file open or mapped; also True where that cannot be told.

    Source: fcntl(2), "Leases". Who opens the file while it is looked at waits for a few microseconds.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        # the signal of a broken lease ends a process unless it is one that is ignored where nobody handles it
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


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
