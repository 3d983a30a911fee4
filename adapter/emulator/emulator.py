"""A serverless platform for one function on this machine: decides by the fleet, acts on real processes, keeps records.

Used on one event loop, in the main thread (replicas die with the thread that started them).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Self

from adapter.emulator.client import Headers
from adapter.emulator.embedded_store import EmbeddedStore
from adapter.emulator.fleet import (
    Action,
    Dispatch,
    Fail,
    Fleet,
    FleetReplica,
    KillReplica,
    Stage,
    StartReplica,
    TerminateReplica,
)
from adapter.emulator.host import HostDirectory
from adapter.emulator.hub import Hub
from adapter.emulator.invocations import Invocations
from adapter.emulator.options import EmulatorOptions, replica_environment
from adapter.emulator.passing import Call, passed_chunks, passed_headers, patience_of
from adapter.emulator.replica_process import Changed, Failed, Gone, News, Ready, ReplicaOrder, ReplicaProcess, Reported
from adapter.emulator.reports import Reports
from adapter.errors import AdapterError, InvocationCancelled, RoleDied
from adapter.logs import Log
from adapter.storage.addresses import shown_address

GONE_KEPT = 50
"""Replicas that have ended and are still shown."""
_KILL_S = 5.0
"""How long the end of a killed replica may take."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A replica's answer on its way to the caller."""

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    """Raises the error that ends the invocation before the answer is whole."""
    replica: str
    queued_s: float


class Emulator:
    """The platform; a context manager that starts the store and ends everything.

    Args:
        options: What to emulate.
        log: Where it says what it does.

    Raises:
        ConfigurationError: The options make no sense.
    """

    def __init__(self, options: EmulatorOptions, log: Log | None = None) -> None:
        options.check()
        self.options = options
        self.started: float = time.time()
        self.invocations: Invocations = Invocations()
        self.reports: Reports = Reports()
        self.hub: Hub = Hub()
        self.store: EmbeddedStore | None = None
        self._log = log
        self._fleet = Fleet(options.limits)
        self._processes: dict[str, ReplicaProcess] = {}
        self._gone: deque[dict[str, Any]] = deque(maxlen=GONE_KEPT)
        self._logs: deque[tuple[str, deque[str]]] = deque(maxlen=GONE_KEPT)
        self._calls: dict[str, Call] = {}
        self._watches: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._host: HostDirectory | None = None
        self._told: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._host = HostDirectory()
        try:
            if self.options.weights.directory is not None:
                self.store = EmbeddedStore(self.options, self._host.path)
                await self.store.listening()
            endpoint = self.store.endpoint if self.store is not None else None
            self._environment = replica_environment(self.options, self._host.path, endpoint, self._host.run_root)
        except BaseException:
            self._release()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.end()
        finally:
            self._release()

    async def end(self) -> None:
        """End every replica, within the grace; callers who wait get an error, and so do those who come later."""
        self._apply(self._fleet.shutdown(self._loop.time()))
        if self._watches:
            await asyncio.wait(self._watches, timeout=self.options.limits.grace_s + _KILL_S)

    def hurry(self) -> None:
        """End every replica at once."""
        for process in self._processes.values():
            process.kill()

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for process in self._processes.values():
            process.close()
        if self.store is not None:
            self.store.close()
        self.hub.close()
        if self._host is not None:
            self._host.remove()

    # -- invocations ---------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def invoke(self, event: bytes, headers: Headers = ()) -> AsyncIterator[Passed]:
        """Have a replica answer, started for it where there is none; the answer is passed on as it comes.

        Args:
            event: The encoded event.
            headers: The caller's, names in lower case; `x-coldstart-timeout-s` is its patience, waiting included.

        Raises:
            AdapterError: No replica could answer; the error that its callers get.
        """
        patience_s = patience_of(headers)
        record = self.invocations.open(len(event))
        call = self._calls[record.id] = Call(record, event, headers)
        try:
            self._tell_invocation(call)
            self._apply(self._fleet.arrive(record.id, self._loop.time(), patience_s))
            port = await call.placed()
            left_s = self.options.limits.request_limit_s
            if patience_s is not None:
                left_s = max(0.001, min(left_s, patience_s - (record.queued_s or 0.0)))
            async with call.answer(port, left_s) as answer:
                record.status = answer.status
                start = answer.header(b"x-coldstart")
                record.start = start.decode("ascii", "replace") if start else None
                chunks = passed_chunks(answer, record)
                yield Passed(
                    answer.status, passed_headers(answer), chunks, record.replica or "", record.queued_s or 0.0
                )
        except AdapterError as error:
            record.error = error.code
            raise
        except (asyncio.CancelledError, GeneratorExit):
            record.error = InvocationCancelled.code
            raise
        finally:
            self._end_call(call)

    def _end_call(self, call: Call) -> None:
        record = call.record
        del self._calls[record.id]
        record.state = "done"
        record.seconds = time.monotonic() - record.begun_s
        now = self._loop.time()
        self._tell_invocation(call)
        gone = record.error == InvocationCancelled.code
        self._apply(self._fleet.cancelled(record.id, now) if gone else self._fleet.finished(record.id, now))

    # -- what a person can do ------------------------------------------------------------------------------------------

    def scale_to_zero(self) -> None:
        """End every replica; what they run may finish within the grace."""
        self._apply(self._fleet.scale_to_zero(self._loop.time()))

    def kill(self, name: str, role: str) -> int | None:
        """Send SIGKILL to a role of a replica; its PID, None where there is none."""
        process = self._processes.get(name)
        return process.kill_role(role) if process is not None else None

    # -- looking -------------------------------------------------------------------------------------------------------

    def replicas(self) -> list[dict[str, Any]]:
        """Every replica, the newest first; the ended ones after those that live."""
        alive = [self._view(replica) for replica in self._fleet.replicas.values() if replica.name in self._processes]
        return [*reversed(alive), *reversed(self._gone)]

    def queue(self) -> dict[str, int]:
        """How many invocations wait, and how many run."""
        return {"waiting": self._fleet.waiting, "running": self._fleet.running}

    @property
    def alive(self) -> bool:
        """Whether any replica's process has not ended."""
        return bool(self._processes)

    def log_of(self, name: str) -> list[str] | None:
        """The log of a replica; None where that name is not known."""
        if name in self._processes:
            return list(self._processes[name].lines)
        return next((list(lines) for found, lines in self._logs if found == name), None)

    def snapshot(self) -> dict[str, Any]:
        """All that can be seen, as JSON values."""
        limits, address = self.options.limits, self.options.weights.address
        return {
            "target": self.options.target,
            "weights": shown_address(address) if address is not None else None,
            "started": round(self.started, 3),
            "limits": {name: getattr(limits, name) for name in limits.__dataclass_fields__},
            "replicas": self.replicas(),
            "queue": self.queue(),
            "invocations": self.invocations.to_json(),
            "reports": self.reports.to_json(),
        }

    def _view(self, replica: FleetReplica) -> dict[str, Any]:
        process = self._processes[replica.name]
        state = str(replica.stage)
        if replica.stage is Stage.READY:
            state = "busy" if replica.running else "idle" if replica.served else "ready"
        return {
            "id": replica.name,
            "pid": process.pid,
            "state": state,
            "phase": process.phase,
            "progress": process.progress,
            "since": round(time.time() - (self._loop.time() - replica.since), 3),
            "started": round(process.started, 3),
            "running": len(replica.running),
            "served": replica.served,
            "concurrency": replica.concurrency,
            "stop_reason": replica.stop_reason,
            "exit_code": process.exit_code,
        }

    # -- doing what the fleet decides ----------------------------------------------------------------------------------

    def _apply(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, StartReplica):
                self._start(action.replica)
            elif isinstance(action, Dispatch):
                self._dispatch(action)
            elif isinstance(action, Fail):
                if (call := self._calls.get(action.request)) is not None:
                    call.fail(action.error)
            else:
                self._stop(action)
        self._arm()
        self._tell_changes()

    def _start(self, name: str) -> None:
        assert self._host is not None, "it was entered"
        order = ReplicaOrder(name, self.options.target, self._environment, self._host.path)
        try:
            process = ReplicaProcess(order, self._on_news)
        except OSError as error:  # no process, no memory, no descriptors
            failed = RoleDied(f"replica {name} cannot be started: {error}", replica=name)
            self._loop.call_soon(lambda: self._apply(self._fleet.replica_gone(name, failed, self._loop.time())))
            return
        self._processes[name] = process
        watch = self._loop.create_task(process.watch())
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        self._note("replica.start.started", replica=name, pid=process.pid)

    def _dispatch(self, action: Dispatch) -> None:
        call, process = self._calls.get(action.request), self._processes.get(action.replica)
        if call is None or process is None:
            return
        call.record.state = "running"
        call.record.replica = action.replica
        call.record.queued_s = time.monotonic() - call.record.begun_s
        call.place(process.port)
        self._tell_invocation(call)

    def _stop(self, action: TerminateReplica | KillReplica) -> None:
        process = self._processes.get(action.replica)
        if process is None:
            return
        if isinstance(action, KillReplica):
            self._note("replica.kill", replica=action.replica)
            process.kill()
        else:
            self._note("replica.stop.started", replica=action.replica, why=str(action.why))
            process.terminate()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        at = self._fleet.next_at()
        self._timer = None if at is None else self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._apply(self._fleet.tick(self._loop.time()))

    # -- what replicas say ---------------------------------------------------------------------------------------------

    def _on_news(self, process: ReplicaProcess, news: News) -> None:
        name, now = process.name, self._loop.time()
        if isinstance(news, Ready):
            self._note("replica.start.complete", replica=name, seconds=round(time.time() - process.started, 3))
            self._apply(self._fleet.replica_ready(name, now, news.concurrency))
        elif isinstance(news, Failed):
            self._note("replica.start.failed", replica=name, code=news.error.code, message=news.error.message)
            self._apply(self._fleet.replica_failed(name, news.error, now))
        elif isinstance(news, Gone):
            self._on_gone(process, news.error)
        elif isinstance(news, Changed):
            self._fleet.replica_progress(name, _progress_of(process))
            self._tell_changes()
        elif isinstance(news, Reported):
            self.hub.publish("report", self.reports.keep(name, news.report).summary())

    def _on_gone(self, process: ReplicaProcess, error: AdapterError) -> None:
        name = process.name
        self._note("replica.stop.complete", replica=name, exit_code=process.exit_code)
        if (replica := self._fleet.replicas.get(name)) is not None:
            view = self._view(replica) | {"state": "gone", "since": round(time.time(), 3), "running": 0}
            self._gone.append(view)
            self._logs.append((name, process.lines))
            self._told.pop(name, None)
            self.hub.publish("replica", view)
        actions = self._fleet.replica_gone(name, error, self._loop.time())
        del self._processes[name]
        self._apply(actions)

    # -- telling who listens -------------------------------------------------------------------------------------------

    def _tell_changes(self) -> None:
        for replica in self._fleet.replicas.values():
            if replica.name in self._processes:
                self._tell_once(replica.name, "replica", self._view(replica))
        self._tell_once("queue", "queue", self.queue())

    def _tell_once(self, key: str, kind: str, value: dict[str, Any]) -> None:
        seen = {name: part for name, part in value.items() if name != "since"}  # it is reckoned anew each time
        if self._told.get(key) != seen:
            self._told[key] = seen
            self.hub.publish(kind, value)

    def _tell_invocation(self, call: Call) -> None:
        self.hub.publish("invocation", call.record.to_json())

    def _note(self, event: str, **fields: object) -> None:
        if self._log is not None:
            self._log.info(event, **fields)


def _progress_of(process: ReplicaProcess) -> str:
    progress = process.progress
    if not progress or not progress.get("of"):
        return process.phase
    return f"{process.phase}, {progress.get('bytes')} of {progress['of']} bytes of the weights were here"
