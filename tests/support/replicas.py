"""Replicas as tests see them: `coldstart serve` in a child process, its log, its roles, its answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parents[2]
TOKEN = "COLDSTART_TEST_TOKEN"


def until(look: Callable[[], T | None], *, within_s: float = 20.0, what: str | Callable[[], str] = "it") -> T:
    """What `look` gives as soon as it is true."""
    stop = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() >= stop:
            raise AssertionError(f"{what if isinstance(what, str) else what()} did not happen within {within_s:g} s")
        time.sleep(0.01)


@dataclass
class Answer:
    """An HTTP answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's value."""
        return json.loads(self.body)


@dataclass
class Replica:
    """A running `coldstart serve`."""

    process: subprocess.Popen[bytes]
    token: str
    lines: list[dict[str, Any]] = field(default_factory=list)
    raw: list[str] = field(default_factory=list)

    def read_log(self) -> None:
        """Collect log lines until the replica and its roles have closed their standard error."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.decode(errors="replace").rstrip()
            self.raw.append(text)
            with contextlib.suppress(ValueError):
                value = json.loads(text)
                if isinstance(value, dict):
                    self.lines.append(value)

    def logged(self, event: str) -> dict[str, Any] | None:
        """The first log line of that event."""
        return next((line for line in list(self.lines) if line.get("event") == event), None)

    def wait_log(self, event: str, within_s: float = 30.0) -> dict[str, Any]:
        """The first log line of that event, as soon as it is there."""
        return until(lambda: self.logged(event), within_s=within_s, what=lambda: "\n".join([event, *self.raw]))

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.wait_log("supervisor.listen.complete")["port"])

    @property
    def run_dir(self) -> Path:
        """Its run directory."""
        return Path(self.wait_log("supervisor.listen.complete")["run_dir"])

    def get(self, path: str, timeout_s: float = 10.0) -> Answer:
        """GET."""
        return self._ask("GET", path, None, {}, timeout_s)

    def post(
        self, event: Any, path: str = "/", *, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0
    ) -> Answer:
        """POST a JSON event."""
        return self._ask("POST", path, json.dumps(event).encode(), dict(headers or {}), timeout_s)

    def wait_ready(self, within_s: float = 60.0) -> None:
        """Return once it says that it is ready."""

        def ready() -> bool:
            assert self.process.poll() is None, "the replica ended:\n" + "\n".join(self.raw)
            with contextlib.suppress(OSError, http.client.HTTPException):
                return self.get("/health/ready").status == 200
            return False

        until(ready, within_s=within_s, what=lambda: "\n".join(["readiness", *self.raw]))

    def report(self) -> dict[str, Any]:
        """The init report of its last start."""
        report: dict[str, Any] = self.get("/coldstart").json()
        return report

    def pid_of(self, role: str) -> int | None:
        """The PID of the living process of that role."""
        for pid, name in self._processes():
            if name == f"cs-{role}":
                return pid
        return None

    def kill(self, role: str, number: int = signal.SIGKILL) -> int:
        """Send a signal to a role; its PID."""
        pid = self.process.pid if role == "supervisor" else until(lambda: self.pid_of(role), what=f"a {role}")
        os.kill(pid, number)
        return pid

    def survivors(self) -> list[tuple[int, str]]:
        """Processes that this replica started and that still run."""
        return self._processes()

    def end(self, within_s: float = 10.0) -> int:
        """The exit code, once every process of it is gone."""
        code = self.process.wait(within_s)
        until(lambda: not self.survivors(), within_s=2.0, what=f"the end of {self.survivors()}")
        return code

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", **headers} if body else headers)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def _processes(self) -> list[tuple[int, str]]:
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                if f"{TOKEN}={self.token}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    state = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[0]
                    if state != "Z":
                        found.append((int(entry), Path(f"/proc/{entry}/comm").read_text().strip()))
        return found


@contextlib.contextmanager
def running_replica(
    target: str,
    directory: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Replica]:
    """`coldstart serve TARGET` run in `directory`, with a cache of its own there, until the block ends.

    Args:
        target: The handler.
        directory: Where user code is found; the cache is its folder `cache`.
        arguments: Further arguments.
        environment: Further variables.
    """
    token = uuid.uuid4().hex
    variables = {
        **os.environ,
        "COLDSTART_CACHE_DIR": str(directory / "cache"),
        "OMP_NUM_THREADS": "1",
        TOKEN: token,
        **(environment or {}),
    }
    command = [sys.executable, "-m", "adapter.cli", "serve", target, "--port", "0", "--host", "127.0.0.1"]
    variables["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    process = subprocess.Popen(
        [*command, *arguments],
        cwd=directory,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    replica = Replica(process, token)
    reader = threading.Thread(target=replica.read_log, daemon=True)
    reader.start()
    try:
        yield replica
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for pid, _ in replica.survivors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        reader.join(5)
        if process.stderr is not None:
            process.stderr.close()


def write_module(directory: Path, name: str, source: str) -> None:
    """Put a module of user code into the directory."""
    (directory / f"{name}.py").write_text(textwrap.dedent(source))
