"""The emulated host's directory: its cache, its sockets, the store's tree; gone with the emulator."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "coldstart-emulator-"
_LOCK = "alive"
_SHORT = Path("/tmp")  # noqa: S108 - a directory of a random name is made in it
_RUN_DIR = "coldstart-4194304-ffffffff"
"""The longest name of a run directory: Linux has 22 bits for a process's number."""
_SOCKET_PATH_BYTES = 107
"""Source: unix(7), sun_path."""
_SETTLED_S = 60.0
"""Age from which a directory without a living owner is one that a killed emulator has left: it was locked long ago."""


class HostDirectory:
    """A directory under the system's one for temporary files, locked as long as its owner lives.

    An emulator that is killed cannot remove its own, which may hold gigabytes of weights: the next one does.

    Args:
        parent: Where it is made; None: where the system, or `TMPDIR`, says.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or Path(tempfile.gettempdir())
        _sweep(parent)
        self.path: Path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        self._sockets: HostDirectory | None = None
        self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    @property
    def run_root(self) -> Path:
        """Where replicas make their run directories: in it, or in one of its own where its path is long for a socket.

        Raises:
            OSError: That cannot be made.
        """
        if self._sockets is None:
            longest = os.fsencode(self.path / _RUN_DIR / "front.sock")
            if len(longest) <= _SOCKET_PATH_BYTES or self.path.parent == _SHORT:
                return self.path
            self._sockets = HostDirectory(_SHORT)
        return self._sockets.path

    def remove(self) -> None:
        """Remove it with all that is in it."""
        if self._sockets is not None:
            self._sockets.remove()
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.close(self._lock)


def _sweep(parent: Path) -> None:
    for entry in os.scandir(parent):
        if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
            with contextlib.suppress(OSError):  # somebody else's, or just gone
                status = entry.stat(follow_symlinks=False)
                if status.st_uid == os.geteuid() and time.time() - status.st_mtime > _SETTLED_S:
                    _remove_if_left(Path(entry.path))


def _remove_if_left(directory: Path) -> None:
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return  # its owner lives
    else:
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
