"""Run directories: one for each living replica, and none for those that were killed before they could clean up."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

_PREFIX = "coldstart-"
_LOCK = "lock"


def run_dir_name() -> str:
    """A name that no other replica has."""
    return f"{_PREFIX}{os.getpid()}-{os.urandom(4).hex()}"


def make_run_dir(run_dir: Path) -> int:
    """Make the directory, for this user only, held as long as the descriptor that this gives is open.

    A lock and not the PID in the name tells that it is in use: PIDs mean nothing to another container. Only the
    supervisor holds it; the roles close what they inherit.

    Raises:
        OSError: It cannot be made.
    """
    making = run_dir.with_name(f".{run_dir.name}")
    making.mkdir(mode=0o700)
    try:
        descriptor = os.open(making / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            making.rename(run_dir)  # it gets a name that is swept only when it is held already
        except BaseException:
            os.close(descriptor)
            raise
    except BaseException:
        remove_run_dir(making)
        raise
    return descriptor


def sweep_run_dirs(root: Path) -> int:
    """Remove what replicas of this user left that were killed; gives how many. What cannot be removed stays."""
    removed = 0
    with contextlib.suppress(OSError):
        for entry in os.scandir(root):
            if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(OSError):  # another user's, or held
                descriptor = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_run_dir(Path(entry.path))
                    removed += 1
                finally:
                    os.close(descriptor)
    return removed


def remove_run_dir(run_dir: Path) -> None:
    """Remove a run directory and the files in it; what is not there is no error."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(run_dir):
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
        os.rmdir(run_dir)
