"""A real replica, started as a platform starts a container, and watched from outside: its log, its health, its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from adapter.emulator.child import Child
from adapter.emulator.client import fetch_json
from adapter.emulator.leftovers import MARK, end_leftovers
from adapter.emulator.own_lines import own_line
from adapter.errors import AdapterError, RoleDied, WorkerDied
from adapter.init_report import InitReport

LOG_LINES = 2000
"""Lines of a replica's log that are kept."""
_STARTING_POLL_S = 0.05
"""How often a starting replica is asked: a platform's probe is slower, a person who watches wants to see it move."""
_READY_POLL_S = 0.25
_HEALTH_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The replica takes invocations, this many at a time."""

    concurrency: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The start failed; the process is about to end."""

    error: AdapterError


@dataclass(frozen=True, slots=True)
class Gone:
    """The process has ended."""

    error: AdapterError
    """For whoever relied on it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Phase or progress are others."""


@dataclass(frozen=True, slots=True)
class Reported:
    """A start, or the recovery of a worker, has its report."""

    report: InitReport


News = Ready | Failed | Gone | Changed | Reported


@dataclass(frozen=True, slots=True)
class ReplicaOrder:
    """What replica to start."""

    name: str
    target: str
    environment: Mapping[str, str]
    directory: Path
    """For its report file."""


class ReplicaProcess:
    """A replica's process; `watch` follows it to its end.

    Args:
        order: What to start.
        tell: Called on the event loop with what happens.
    """

    def __init__(self, order: ReplicaOrder, tell: Callable[[ReplicaProcess, News], None]) -> None:
        self.name: str = order.name
        self.started: float = time.time()
        self.port: int | None = None
        self.phase: str = "cold"
        self.progress: Mapping[str, int] | None = None
        self.exit_code: int | None = None
        self.lines: deque[str] = deque(maxlen=LOG_LINES)
        self._tell = tell
        self._reports = _Appended(order.directory / f"{order.name}.reports.jsonl")
        self._look = asyncio.Event()
        self._was_ready = False
        self._stopping = False
        self._owes_report = True
        self._failure: AdapterError | None = None
        arguments = ["serve", order.target, "--host", "127.0.0.1", "--port", "0", "--report", str(self._reports.path)]
        self._mark = uuid.uuid4().hex
        environment = {**order.environment, MARK: self._mark}
        self._child = Child(arguments, environment, self._on_stdout, self._on_stderr)
        self.pid: int = self._child.pid

    def terminate(self) -> None:
        """Send SIGTERM to the supervisor, as a platform does to PID 1."""
        self._stopping = True
        self._look.set()
        self._child.terminate()

    def kill(self) -> None:
        """Send SIGKILL to the supervisor; its roles die with it."""
        self._stopping = True
        self._look.set()
        self._child.kill()

    def kill_role(self, role: str) -> int | None:
        """Send SIGKILL to the process of one role; its PID, None where there is none."""
        pid = self.pid if role == "supervisor" else _role_of(self.pid, role)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    async def watch(self) -> None:
        """Follow the replica and tell what happens; returns when it has ended."""
        try:
            while self._child.exit_code is None:
                await self._ask_health()
                self._read_reports()
                at_rest = self._was_ready and not self._stopping and not self._owes_report
                pause_s = _READY_POLL_S if at_rest else _STARTING_POLL_S
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._look.wait(), pause_s)
                self._look.clear()
        finally:
            self.close()
        self._read_reports()
        self.phase = "stopped"
        self._tell(self, Gone(self._end()))

    def close(self) -> None:
        """Kill the process if it still runs and all that user code has left, and let go of it."""
        self._child.kill()
        self._child.wait()
        end_leftovers(self._mark)
        self._child.close()
        self.exit_code = self._child.exit_code

    # -- what it says --------------------------------------------------------------------------------------------------

    def _on_stdout(self, line: str) -> None:
        if said := without_report(line):
            self.lines.append(said)

    def _on_stderr(self, line: str) -> None:
        self.lines.append(line)
        value = own_line(line)
        if value is None or value["role"] != "supervisor":
            return
        if value["event"] == "supervisor.listen.complete" and self.port is None:  # said before user code runs
            self.port = int(value["port"])
            self._look.set()
        elif value["event"] in ("replica.start.complete", "replica.start.failed"):
            self._owes_report = True
            self._look.set()

    async def _ask_health(self) -> None:
        if self.port is None:
            return
        try:
            health = await fetch_json(self.port, "/health/ready", timeout_s=_HEALTH_TIMEOUT_S)
        except OSError:
            return  # the front is not up yet, or ends: the process's end tells more
        if not isinstance(health, dict) or self._failure is not None:
            return
        phase = str(health.get("phase", self.phase))
        progress = health.get("progress")
        seen = (phase, progress if isinstance(progress, dict) else self.progress)
        changed, (self.phase, self.progress) = seen != (self.phase, self.progress), seen
        if health.get("status") == "ready" and not self._was_ready:
            self._was_ready = True
            concurrency = health.get("concurrency")
            self._tell(self, Ready(concurrency if isinstance(concurrency, int) and concurrency > 0 else 1))
        elif changed:
            self._tell(self, Changed())

    def _read_reports(self) -> None:
        for line in self._reports.lines():
            self._owes_report = False
            with contextlib.suppress(ValueError):
                self._take(InitReport.from_json(line))

    def _take(self, report: InitReport) -> None:
        self._tell(self, Reported(report))
        if report.outcome == "failed" and self._failure is None:
            self._failure = AdapterError.from_dict(report.error or {})
            self.phase = "failed"
            self._tell(self, Failed(self._failure))

    def _end(self) -> AdapterError:
        code = self.exit_code or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        if self._was_ready:
            return WorkerDied(
                f"replica {self.name} ended ({how}) while it held this invocation; whether it took effect is unknown",
                replica=self.name,
                status=code,
            )
        return self._failure or self._last_words() or RoleDied(self._silent_end(how), replica=self.name, status=code)

    def _last_words(self) -> AdapterError | None:
        """The line by which a command says why it cannot begin: `coldstart: code: message`."""
        for line in reversed(self.lines):
            start, _, rest = line.partition(": ")
            code, found, message = rest.partition(": ")
            if start == "coldstart" and found:
                return AdapterError.from_dict({"code": code, "message": message})
        return None

    def _silent_end(self, how: str) -> str:
        said = [line for line in self.lines if own_line(line) is None][-3:]
        words = f"; its last words: {' / '.join(said)}" if said else ""
        return f"replica {self.name} ended before it was ready: {how}{words}"


class _Appended:
    """A file to which somebody else appends lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_bytes = 0

    def lines(self) -> list[bytes]:
        """Whole lines that were not given before."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, end, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._read_bytes += len(whole) + len(end)
        return whole.splitlines() if end else []


def without_report(line: str) -> str:
    """A line of standard output without the report that a replica prints there too, and its report file holds.

    User code that prints at the same moment shares the line with it: what is the user's is kept.
    """
    start = line.find('{"kind":')
    if start < 0:
        return line
    try:
        value, stop = json.JSONDecoder().raw_decode(line, start)
    except ValueError:
        return line
    return line[:start] + line[stop:] if "schema_version" in value else line


def _role_of(supervisor: int, role: str) -> int | None:
    """The child of the supervisor that plays that role. Source: proc_pid_stat(5), fields 2 and 4."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            head, _, rest = Path(f"/proc/{entry}/stat").read_text().rpartition(")")
            state, parent = rest.split()[:2]
            if int(parent) == supervisor and state != "Z" and head.partition("(")[2] == f"cs-{role}":
                return int(entry)
    return None
