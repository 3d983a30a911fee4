"""Child processes of the emulator: in a session of their own, gone when it is gone, their output line by line."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Literal

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_READ_BYTES = 64 << 10
LINE_LIMIT_BYTES = 64 << 10
"""Of a line that is longer, the rest is dropped: a log is for people."""

OnLine = Callable[[str], None]


class Child:
    """`coldstart …` as a child process; made and used on the event loop of the process's main thread.

    It dies with the thread that made it, whatever ends that: nothing that the emulator starts outlives it.

    Args:
        arguments: Of the command `coldstart`.
        environment: All that the child sees of the environment.
        on_stdout: Called with each line of standard output.
        on_stderr: The same for standard error.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        on_stdout: OnLine,
        on_stderr: OnLine,
    ) -> None:
        parent = os.getpid()

        def in_child() -> None:
            # between fork and exec; one system call, no lock. Source: prctl(2)
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)

        self._process = subprocess.Popen(
            [sys.executable, "-m", "adapter.cli", *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # a terminal's Ctrl-C reaches the emulator alone: it ends its children in order
            preexec_fn=in_child,  # noqa: PLW1509 - see in_child
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = (_Reader(self._process.stdout, on_stdout), _Reader(self._process.stderr, on_stderr))

    @property
    def pid(self) -> int:
        """The process, which leads its group."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """As `subprocess` tells it: minus the signal's number where one ended it; None while it runs."""
        return self._process.poll()

    def terminate(self) -> None:
        """Ask it to end."""
        self._process.terminate()

    def kill(self) -> None:
        """End it and its group."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Returns when it has ended."""
        self._process.wait()

    def close(self) -> None:
        """Read what is left of its output, and let go of it; the process has ended, or is killed."""
        self.kill()
        self.wait()
        for reader in self._readers:
            reader.close()


class _Reader:
    def __init__(self, pipe: IO[bytes], on_line: OnLine) -> None:
        self._pipe = pipe
        self._on_line = on_line
        self._rest = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> Literal["more", "later", "end"]:
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except BlockingIOError:
            return "later"
        if not data:
            self._loop.remove_reader(self._pipe.fileno())
            self._emit(self._rest)
            self._rest = b""
            return "end"
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[:LINE_LIMIT_BYTES]
        for line in lines:
            self._emit(line[:LINE_LIMIT_BYTES])
        return "more"

    def _emit(self, line: bytes) -> None:
        if text := line.decode("utf-8", "replace").rstrip():
            self._on_line(text)

    def close(self) -> None:
        if self._pipe.closed:
            return
        while self._read() == "more":
            pass
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()
