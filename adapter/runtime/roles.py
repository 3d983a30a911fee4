"""A role begins: fork, and nothing of the parent left that could hurt the child.

Standard library only; the supervisor, which calls this, has one thread, so a fork is safe.
Source: prctl(2), `docs/architecture.md`.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from adapter.errors import AdapterError
from adapter.settings import Settings

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


class Role(StrEnum):
    """What a process of a replica is for."""

    SUPERVISOR = "supervisor"
    FRONT = "front"
    FETCHER = "fetcher"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What every role of a replica is told."""

    target: str
    """The handler, as `module:attribute`."""
    settings: Settings
    run_dir: Path
    started_ns: int
    """The replica's exec time, ns of CLOCK_MONOTONIC."""

    @property
    def timeline(self) -> Path:
        """Where all roles record their spans."""
        return self.run_dir / "timeline.jsonl"

    @property
    def link(self) -> Path:
        """The unix socket on which the front takes the worker."""
        return self.run_dir / "front.sock"

    @property
    def manifest(self) -> Path:
        """What the fetcher streams, for the worker to read."""
        return self.run_dir / "weights.json"

    @property
    def address(self) -> Path:
        """Which address the fetcher took, and where it had it from."""
        return self.run_dir / "address.json"

    @property
    def progress(self) -> Path:
        """How far the stream is."""
        return self.run_dir / "progress.json"

    @property
    def failure(self) -> Path:
        """Why the start failed; the front tells its callers."""
        return self.run_dir / "failure.json"

    @property
    def report(self) -> Path:
        """The init report of the last start, whole or failed."""
        return self.run_dir / "report.json"

    @property
    def sealed(self) -> Path:
        """There as soon as all of the weights are, or none are wanted."""
        return self.run_dir / "sealed"

    @property
    def ready(self) -> Path:
        """There as soon as the replica is ready: what may wait, such as fsync, begins then."""
        return self.run_dir / "ready"

    def error_of(self, role: Role) -> Path:
        """Where a role leaves the error that ended it."""
        return self.run_dir / f"{role}.error.json"


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file that readers see whole or not at all."""
    write_whole(path, json.dumps(value).encode())


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file that readers see whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def read_json(path: Path) -> object | None:
    """A JSON file's value; None where it is not there or not whole."""
    try:
        return json.loads(path.read_bytes())  # type: ignore[no-any-return]
    except (OSError, ValueError):
        return None


def read_error(path: Path) -> AdapterError | None:
    """The error a role left behind, if it left one."""
    value = read_json(path)
    return AdapterError.from_dict(value) if isinstance(value, dict) else None


def ensure_standard_streams() -> None:
    """Open /dev/null for standard descriptors that the caller closed.

    Else the next socket or file would get such a number, and whatever is printed would go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 - for life


def adopt_orphans() -> None:
    """Make this process the one that reaps what its descendants leave behind (PID 1 does so anyway)."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork_role(role: Role, main: Callable[[], int], keep: Collection[int] = ()) -> int:
    """Fork a child that runs `main` and exits with what it returns.

    The child dies with its parent, has no descriptor but the standard ones and `keep`, default signal dispositions,
    an empty signal mask, and a session of its own (a terminal's Ctrl-C reaches the supervisor alone, which decides).

    Args:
        role: Names the process.
        main: Returns the exit code.
        keep: Descriptors that the child needs.

    Returns:
        The child's PID.
    """
    parent = os.getpid()
    # a signal between the fork and the reset below would run the parent's handler in the child
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _become(role, main, parent, keep)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _become(role: Role, main: Callable[[], int], parent: int, keep: Collection[int]) -> None:
    code = 1
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above: nobody would tell us any more
            os._exit(1)
        libc.prctl(_PR_SET_NAME, f"cs-{role}".encode(), 0, 0, 0)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) not in (signal.SIG_DFL, None):
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a peer that went away is an error value, not a death
        os.setsid()
        _close_all_but(keep)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)  # the parent's exit handlers are not ours to run


def _close_all_but(keep: Collection[int]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            try:
                os.close(descriptor)
            except OSError:
                continue  # the listing's own descriptor is gone by now
