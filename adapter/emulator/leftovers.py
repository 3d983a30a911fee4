"""What user code has started and left behind: a platform ends it with the replica's container, so we do too."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

MARK = "COLDSTART_REPLICA_MARK"
"""The variable that every process of a replica has inherited, unless it was started without its environment."""
_PASSES = 20
"""A process that is being killed may start another: as often it is looked for more."""


def end_leftovers(mark: str) -> int:
    """Kill every process of this user that has the mark in its environment; gives how many that were.

    Source: proc_pid_environ(5); pidfd_open(2), which holds on to the process that was looked at.
    """
    killed: set[int] = set()
    for _ in range(_PASSES):
        found = {pid for pid in _processes() if pid not in killed and _end(pid, f"{MARK}={mark}".encode())}
        if not found:
            break
        killed |= found
    return len(killed)


def _processes() -> list[int]:
    own = os.getpid()
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != own]


def _end(pid: int, mark: bytes) -> bool:
    with contextlib.suppress(OSError):  # another user's, or just gone
        descriptor = os.pidfd_open(pid)
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                return True
        finally:
            os.close(descriptor)
    return False
