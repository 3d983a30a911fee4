"""The supervisor: starts the other roles, hears of their ends, passes signals on, decides the exit code.

One thread, standard library only: it is the only process that forks. What to do about an end is decided by the pure
function `judge_exit`; the rest is signals, pipes and waiting.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from adapter.errors import AdapterError, Draining, InitTimeout
from adapter.lifecycle import Event, Phase, advance
from adapter.logs import Log
from adapter.runtime.judgement import RoleEnd, Verdict, describe_status, judge_exit, role_died
from adapter.runtime.roles import ReplicaSpec, Role, adopt_orphans, fork_role, read_error, read_json, write_json
from adapter.timeline import Timeline

DEFAULT_INIT_TIMEOUT_S = 600.0
TERM_PATIENCE_S = 1.0
"""How long a role may ignore SIGTERM before SIGKILL; a signal can be stuck inside `dlopen` for longer."""
_REPORT_WAIT_S = 10.0
_REPORT_POLL_S = 0.02
_BACK_OFF_S = (0.0, 0.2, 1.0, 3.0)


@dataclass(frozen=True, slots=True)
class RoleMains:
    """What each role runs; composed by the command line, imported only in the child."""

    fetcher: Callable[[ReplicaSpec, str | None], int]
    """Takes the address that the handler asked for, None to find it."""
    front: Callable[[ReplicaSpec, socket.socket, int], int]
    """Takes the listener and the descriptor for status lines."""
    worker: Callable[[ReplicaSpec], int]
    report: Callable[[ReplicaSpec, int, AdapterError | None], None]
    """Publishes the init report of the start that began at this time (ns); called in the supervisor."""


class Supervisor:
    """One replica's supervisor; `run` is its life.

    Args:
        spec: What the replica is.
        mains: What the roles run.
        listener: The bound and listening TCP socket; kept here so that a front can be replaced.
    """

    def __init__(self, spec: ReplicaSpec, mains: RoleMains, listener: socket.socket) -> None:
        self._spec = spec
        self._mains = mains
        self._listener = listener
        self._log = Log("supervisor", spec.settings.log_level)
        self._timeline = Timeline("supervisor", spec.timeline)
        self._phase = Phase.COLD
        self._pids: dict[int, Role] = {}
        self._restarts = dict.fromkeys(Role, 0)
        self._start_ns = spec.started_ns
        self._init_timeout_s = spec.settings.init_timeout_s or DEFAULT_INIT_TIMEOUT_S
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self._confirmed: tuple[str | None] | None = None
        self._held: AdapterError | None = None
        self._replacing: set[int] = set()
        self._owes_report = True
        self._exit_code = 0
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._status_read, self._status_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._status_text = b""

    def run(self) -> int:
        """Start the roles and stay until the last has ended.

        Returns:
            The replica's exit code.
        """
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, _noted)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._timeline.record("process.start", "process", self._spec.started_ns, time.monotonic_ns())
        self._phase = advance(self._phase, Event.START)
        self._spawn_fetcher(None)  # first: its first request should be on its way while the rest starts
        self._spawn(Role.FRONT)
        self._spawn(Role.WORKER)
        self._arm_init_timeout()
        while self._pids:
            self._wait()
        self._phase = advance(self._phase, Event.ENDED)
        self._log.info("supervisor.stop.complete", exit_code=self._exit_code)
        return self._exit_code

    # -- starting roles ------------------------------------------------------------------------------------------------

    def _spawn(self, role: Role) -> None:
        if self._stopping:
            return
        if role is Role.FRONT:
            self._fork(role, lambda: self._mains.front(self._spec, self._listener, self._status_write), self._front_fds)
        elif role is Role.WORKER:
            self._fork(role, lambda: self._mains.worker(self._spec))
        else:
            self._spawn_fetcher(self._confirmed[0] if self._confirmed else None)

    def _spawn_fetcher(self, address: str | None) -> None:
        self._fork(Role.FETCHER, lambda: self._mains.fetcher(self._spec, address))

    @property
    def _front_fds(self) -> tuple[int, ...]:
        return (self._listener.fileno(), self._status_write)

    def _fork(self, role: Role, main: Callable[[], int], keep: tuple[int, ...] = ()) -> None:
        self._spec.error_of(role).unlink(missing_ok=True)
        with self._timeline.span("role.spawn", "process", spawned=str(role)) as span:
            pid = fork_role(role, main, keep)
            span.add(child=pid)
        self._pids[pid] = role
        self._log.debug("role.spawn.complete", spawned=str(role), pid=pid)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        now = time.monotonic()
        pause_s = max(0.0, min((at for at, _ in self._timers), default=now + 3600) - now)
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        poll.register(self._status_read, select.POLLIN)
        told = {descriptor for descriptor, _ in poll.poll(pause_s * 1000 + 1)}
        if self._status_read in told:  # first: who ends a replica that it has seen ready ends no start
            self._on_status(os.read(self._status_read, 65536))
        if self._wake_read in told:
            self._on_signals(os.read(self._wake_read, 4096))
        self._reap()
        now = time.monotonic()
        due = [timer for timer in self._timers if timer[0] <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for _, act in due:
            act()

    def _after(self, delay_s: float, act: Callable[[], None]) -> None:
        self._timers.append((time.monotonic() + delay_s, act))

    def _on_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number in (signal.SIGTERM, signal.SIGINT):
                self._log.info("supervisor.signal", signal=signal.Signals(number).name, phase=str(self._phase))
                self._stop(number)

    def _on_status(self, data: bytes) -> None:
        lines = (self._status_text + data).split(b"\n")
        self._status_text = lines.pop()
        for line in lines:
            with contextlib.suppress(ValueError):
                self._on_event(json.loads(line))

    def _on_event(self, event: dict[str, object]) -> None:
        if self._stopping:
            return
        if event.get("event") == "phase":
            self._on_phase(event)
        elif event.get("event") == "ready" and self._phase is not Phase.READY:
            while self._phase is not Phase.READY:
                self._phase = advance(self._phase, _FORWARD[self._phase])
            self._restarts = dict.fromkeys(Role, 0)
            self._spec.ready.touch()
            self._timers.clear()
            seconds = (time.monotonic_ns() - self._start_ns) / 1e9
            self._log.info("replica.start.complete", seconds=round(seconds, 3), target=self._spec.target)
            self._report_when_sealed(time.monotonic() + _REPORT_WAIT_S)

        elif event.get("event") == "unresponsive":
            # it ignores its cancel: another invocation must not wait behind it, nor share its state
            self._log.warning("worker.unresponsive", request_id=event.get("id"), seconds=event.get("seconds"))
            self._signal(Role.WORKER, signal.SIGKILL)

    def _report_when_sealed(self, until_s: float) -> None:
        """The stream's own span ends when the last byte is in place, which may be after the model needed it."""
        streams = Role.FETCHER in self._pids.values() and not self._spec.sealed.exists()
        if streams and time.monotonic() < until_s:
            self._after(_REPORT_POLL_S, lambda: self._report_when_sealed(until_s))
        elif self._phase is Phase.READY:
            self._report(None)

    def _report(self, error: AdapterError | None) -> None:
        """Publish the start's report, once."""
        if self._owes_report:
            self._owes_report = False
            self._mains.report(self._spec, self._start_ns, error)

    def _on_phase(self, event: dict[str, object]) -> None:
        target = event.get("phase")
        while self._phase in _FORWARD and self._phase != target and target in (Phase.LOADING, Phase.WARMING):
            if self._phase is Phase.WARMING:
                break
            self._phase = advance(self._phase, _FORWARD[self._phase])
        timeout_s = event.get("init_timeout_s")
        if isinstance(timeout_s, (int, float)) and self._spec.settings.init_timeout_s is None:
            self._init_timeout_s = float(timeout_s)
            self._arm_init_timeout()
        if "weights" in event:
            address = event["weights"]
            self._confirm_address(address if isinstance(address, str) else None)

    def _confirm_address(self, address: str | None) -> None:
        """The handler has been imported and says where its weights are: the early stream was right, or starts again."""
        if self._confirmed is not None:
            return
        self._confirmed = (address,)
        from adapter.storage.addresses import shown_address  # only once all roles are under way

        wanted = shown_address(address) if address is not None else None
        taken = read_json(self._spec.address)
        streaming = taken.get("address") if isinstance(taken, dict) else None
        if isinstance(taken, dict) and streaming == wanted:
            if self._held is not None:
                self._fail(self._held)
            return
        if streaming is not None:
            self._log.warning("weights.address.changed", streamed=streaming, wanted=wanted)
        self._held = None
        for pid in [pid for pid, role in self._pids.items() if role is Role.FETCHER]:
            self._replacing.add(pid)
            os.kill(pid, signal.SIGKILL)  # its journal is durable against this
        self._spec.manifest.unlink(missing_ok=True)
        self._spec.sealed.unlink(missing_ok=True)
        if address is not None:
            self._spawn_fetcher(address)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in self._pids:
                # while it is a zombie its number is its group's alone: what user code started goes with it, unless
                # that has left the group on purpose (a session of its own)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(ended.si_pid, signal.SIGKILL)
            pid, raw = os.waitpid(ended.si_pid, 0)
            role = self._pids.pop(pid, None)
            if pid in self._replacing:
                self._replacing.discard(pid)
            elif role is not None:
                self._on_exit(role, os.waitstatus_to_exitcode(raw))

    def _on_exit(self, role: Role, status: int) -> None:
        if self._stopping:
            if role is Role.FRONT and self._phase is Phase.DRAINING:
                self._terminate_all()
            return
        error = read_error(self._spec.error_of(role))
        taken = read_json(self._spec.address)
        # what the settings or the handler's own source say is no guess
        hint = self._confirmed is None and isinstance(taken, dict) and taken.get("origin") == "record"
        ready = self._phase is Phase.READY
        end = RoleEnd(role, status, error, ready, self._restarts[role], hint, self._spec.sealed.exists())
        verdict = judge_exit(end, self._spec.settings.worker_restarts)
        if verdict is not Verdict.DONE:
            self._log.warning("role.end", ended=str(role), status=describe_status(status), verdict=str(verdict))
        if verdict is Verdict.FAIL:
            self._fail(error or role_died(end))
        elif verdict is Verdict.HOLD:
            self._held = error
        elif verdict is Verdict.RESTART:
            self._restart(role)

    def _restart(self, role: Role) -> None:
        delay_s = _BACK_OFF_S[min(self._restarts[role], len(_BACK_OFF_S) - 1)]
        self._restarts[role] += 1
        if role is Role.WORKER:
            if self._phase is Phase.READY:
                self._report(None)  # the weights may still have come in
            self._owes_report = True
            self._phase = advance(advance(self._phase, Event.WORKER_LOST), Event.START)
            self._start_ns = time.monotonic_ns()
            self._spec.ready.unlink(missing_ok=True)
            self._timers.clear()
            self._arm_init_timeout(delay_s)
        if delay_s:
            self._after(delay_s, lambda: self._spawn(role))
        else:
            self._spawn(role)

    def _arm_init_timeout(self, delay_s: float = 0.0) -> None:
        begun_ns = self._start_ns

        def check() -> None:
            if self._start_ns == begun_ns and self._phase not in (Phase.READY, Phase.DRAINING, Phase.FAILED):
                self._fail(self._init_timeout())

        spent_s = (time.monotonic_ns() - begun_ns) / 1e9
        self._after(max(0.0, self._init_timeout_s - spent_s + delay_s), check)

    def _init_timeout(self) -> InitTimeout:
        done, total, stream = self._streamed()
        return InitTimeout(
            f"not ready within {self._init_timeout_s:g} s: the replica was {self._phase}{stream}. "
            "Raise init_timeout_s, or look at the report for the stage that takes long.",
            phase=str(self._phase),
            timeout_s=self._init_timeout_s,
            done_bytes=done,
            total_bytes=total,
        )

    def _ended_early(self, number: int) -> Draining:
        done, total, stream = self._streamed()
        name = signal.Signals(number).name
        message = f"ended by {name} before it was ready: the replica was {self._phase}{stream}"
        return Draining(message, signal=name, phase=str(self._phase), done_bytes=done, total_bytes=total)

    def _streamed(self) -> tuple[int, int, str]:
        """Bytes of the weights that are here, how many there are, and both in words."""
        progress = read_json(self._spec.progress)
        counts = [progress.get(name) for name in ("done_bytes", "total_bytes")] if isinstance(progress, dict) else []
        done, total = (int(count) if isinstance(count, (int, float)) else 0 for count in counts or (0, 0))
        words = f"; {done} of {total} bytes of the weights are here and stay for the next start" if total else ""
        return done, total, words

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _fail(self, error: AdapterError) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._phase = advance(self._phase, Event.FAIL)
        self._exit_code = error.exit_code
        write_json(self._spec.failure, error.to_dict())
        self._log.error("replica.start.failed", **error.to_dict())
        self._mains.report(self._spec, self._start_ns, error)
        self._terminate_all()

    def _stop(self, number: int) -> None:
        again = self._stopping
        ready = self._phase is Phase.READY
        if not again and not ready:
            self._report(self._ended_early(number))
        if self._phase is not Phase.FAILED:
            self._phase = advance(self._phase, Event.DRAIN)
        self._stopping = True
        if ready and not again:
            self._signal(Role.FRONT, signal.SIGTERM)
            self._timers.clear()
            self._report(None)  # the weights may still have come in
            self._after(self._spec.settings.grace_s + TERM_PATIENCE_S, self._terminate_all)
            if Role.FRONT not in self._pids.values():
                self._terminate_all()
            return
        if not again or self._exit_code == 0:
            self._exit_code = 128 + number
        self._terminate_all()

    def _terminate_all(self) -> None:
        self._timers.clear()
        for role in Role:
            self._signal(role, signal.SIGTERM)
        self._after(TERM_PATIENCE_S, self._kill_all)

    def _kill_all(self) -> None:
        for pid, role in list(self._pids.items()):
            self._log.warning("role.kill", killed=str(role), pid=pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _signal(self, role: Role, number: int) -> None:
        for pid in [pid for pid, found in self._pids.items() if found is role]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


_FORWARD: dict[Phase, Event] = {
    Phase.IMPORTING: Event.IMPORTED,
    Phase.LOADING: Event.LOADED,
    Phase.WARMING: Event.WARMED,
}


def _noted(number: int, frame: object) -> None:
    """Nothing: the wake-up descriptor carries the number to the loop."""
