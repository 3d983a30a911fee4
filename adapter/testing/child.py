"""`coldstart …` as a child process that never outlives the tests, however they end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TypeVar

from adapter.errors import AdapterError

T = TypeVar("T")

POLL_S = 0.005

# The child ends when its standard input does, so also when the tests are killed. (A death signal, prctl(2), would tie
# it to the thread that started it.) It finds modules where the tests do, and settings of the developer's shell do not
# reach it: a test says what it means.
_PROGRAM = """
import json, os, signal, sys, threading

path, *arguments = json.loads(sys.argv[1])
os.environ["PYTHONPATH"] = os.pathsep.join(path)
for name in [name for name in os.environ if name.startswith("COLDSTART_")]:
    del os.environ[name]
sys.path[1:1] = path

def watch():
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=watch, daemon=True).start()
from adapter.cli.main import main
sys.exit(main(arguments))
"""


class Child:
    """A running command; it announces itself on standard output, and says the rest on standard error.

    Args:
        arguments: The command and its arguments.
        directory: Where it runs.
    """

    def __init__(self, arguments: Sequence[str], directory: Path) -> None:
        self.name: str = f"coldstart {arguments[0]}"
        # files without names: never full, as a pipe that nobody reads, and gone with the last process that has them
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - the same: `end` closes it
        self._last_log: str | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps([import_path(), *arguments])],
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C in the terminal is for pytest, which ends this in order
            )
        except BaseException:
            self._close_files()
            raise

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said on standard error so far; after `end`, all of it."""
        return _content(self._log).decode(errors="replace") if self._last_log is None else self._last_log

    def lines(self) -> list[bytes]:
        """The whole lines of its standard output so far."""
        return _content(self._output).split(b"\n")[:-1]

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def wait_for(self, look: Callable[[], T | None], what: str, limit_s: float) -> T:
        """What `look` finds, looked for every few milliseconds.

        Raises:
            AdapterError: The process ended (its own error, where it named one), or the time is over.
        """
        deadline_s = time.monotonic() + limit_s
        while (found := look()) is None:
            if self.exit_code() is not None:
                raise self.ended(f"before {what}")
            if time.monotonic() > deadline_s:
                raise AdapterError(f"{self.name}: {what} did not happen within {limit_s:g} s; it said:\n{self.log}")
            time.sleep(POLL_S)
        return found

    def ended(self, when: str) -> AdapterError:
        """The error for its unexpected end: the one it named on standard error, else what is known."""
        for line in reversed(self.log.splitlines()):
            mark, _, rest = line.partition(": ")
            code, _, message = rest.partition(": ")
            if mark == "coldstart" and message:
                return AdapterError.from_dict({"code": code, "message": message})
        return AdapterError(f"{self.name} ended with exit code {self.exit_code()} {when}; it said:\n{self.log}")

    def end(self, within_s: float) -> None:
        """Ask it to end, and end it when it does not; all that it started goes with it."""
        if self._last_log is not None:
            return
        assert self._process.stdin is not None
        if self.exit_code() is None:
            self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its children have a death signal
            self._process.wait()
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._last_log = self.log
        self._close_files()

    def _close_files(self) -> None:
        self._output.close()
        self._log.close()


def _content(file: IO[bytes]) -> bytes:
    """All of it, without moving the position at which the child writes."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def import_path() -> list[str]:
    """Where this process finds modules beyond what any process of its interpreter does: for a child's PYTHONPATH."""
    import site
    import sysconfig

    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    library += [os.path.join(path, "lib-dynload") for path in library]
    own = {os.path.realpath(path) for path in (*library, *site.getsitepackages(), site.getusersitepackages())}
    found = [os.path.abspath(entry) for entry in sys.path]
    return [entry for entry in dict.fromkeys(found) if os.path.exists(entry) and os.path.realpath(entry) not in own]
