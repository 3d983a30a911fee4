"""A serverless platform's decisions: when replicas start and end, who gets which caller, what becomes of each caller.

No clock, no processes, no I/O: whoever drives a `Fleet` tells it what happened and when, and does what it answers.
What it holds to, whatever happens:

- Every request ends once: it is handed to a replica and finishes there, or it fails with an error that says why.
- Replicas, the ending ones included, never exceed the limit; a replica never gets more requests than it takes.
- A start that failed is not tried again for those who waited for it. They get its error as soon as nothing that could
  still serve them is left: no ready replica, and no start that was under way when theirs failed.
- Whatever has to end is asked first (SIGTERM), and killed when the grace is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from adapter.errors import AdapterError, Draining, InitTimeout, InvocationTimeout, QueueFull


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetLimits:
    """How many and how long; lengths in seconds."""

    max_replicas: int = 3
    idle_s: float = 60.0
    """A replica without a request for this long is ended."""
    init_limit_s: float = 600.0
    """Longest start."""
    request_limit_s: float = 300.0
    """Longest time that a replica may hold a request; Cloud Run's default."""
    answer_s: float = 1.0
    """How much later a replica may say by itself that a request was over its limit, before it is ended for it."""
    grace_s: float = 10.0
    """From SIGTERM to SIGKILL, as on Cloud Run."""
    queue_limit: int = 1000
    """Requests that may wait for a replica; 1 at least, or none could ever start one."""


class StopReason(StrEnum):
    """Why a replica is told to end."""

    IDLE = "idle"
    INIT_LIMIT = "init_limit"
    REQUEST_LIMIT = "request_limit"
    SCALE_TO_ZERO = "scale_to_zero"
    SHUTDOWN = "shutdown"
    FAILED = "failed"
    """Its start failed, and it ends by itself."""


@dataclass(frozen=True, slots=True)
class StartReplica:
    """Start a replica under this name."""

    replica: str


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Hand the request to the replica."""

    request: str
    replica: str


@dataclass(frozen=True, slots=True)
class Fail:
    """Give the caller this error, and take the request from its replica if it has one."""

    request: str
    error: AdapterError


@dataclass(frozen=True, slots=True)
class TerminateReplica:
    """Send SIGTERM: finish what runs, then end."""

    replica: str
    why: StopReason


@dataclass(frozen=True, slots=True)
class KillReplica:
    """Send SIGKILL: the grace is over."""

    replica: str


Action = StartReplica | Dispatch | Fail | TerminateReplica | KillReplica
Actions = tuple[Action, ...]


class Stage(StrEnum):
    """Where a replica is in its life, as the fleet sees it."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


@dataclass(slots=True)
class FleetReplica:
    """What the fleet knows of a replica; read it, do not write it."""

    name: str
    since: float
    """When its stage began."""
    stage: Stage = Stage.STARTING
    concurrency: int = 1
    running: set[str] = field(default_factory=set)
    last_used: float = 0.0
    served: int = 0
    """How many requests were handed to it."""
    progress: str = ""
    """How far its start is, for people."""
    stop_reason: StopReason | None = None
    kill_at: float | None = None


@dataclass(slots=True)
class _Waiting:
    patience_ends: float | None
    error: AdapterError | None = None
    """The start that failed while it waited."""
    hopes: frozenset[str] = frozenset()
    """The other starts that were under way then."""


@dataclass(frozen=True, slots=True)
class _Held:
    replica: str
    since: float


class Fleet:
    """The state of one function on the platform. Times are of one monotonic clock, in seconds.

    Args:
        limits: How many and how long.
    """

    def __init__(self, limits: FleetLimits) -> None:
        self.limits = limits
        self._replicas: dict[str, FleetReplica] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._held: dict[str, _Held] = {}
        self._started = 0
        self._expected = 1
        self._closing = False

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Mapping[str, FleetReplica]:
        """Every replica that has not ended, in the order of their starts."""
        return self._replicas

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that a replica holds."""
        return len(self._held)

    def next_at(self) -> float | None:
        """When `tick` has something to do if nothing happens before; None where it never will."""
        limits = self.limits
        times = [waiting.patience_ends for waiting in self._waiting.values() if waiting.patience_ends is not None]
        times += [held.since + limits.request_limit_s + limits.answer_s for held in self._held.values()]
        for replica in self._replicas.values():
            if replica.stage is Stage.STARTING:
                times.append(replica.since + limits.init_limit_s)
            elif replica.stage is Stage.READY and not replica.running:
                times.append(replica.last_used + limits.idle_s)
            elif replica.kill_at is not None:
                times.append(replica.kill_at)
        return min(times, default=None)

    # -- what happens --------------------------------------------------------------------------------------------------

    def arrive(self, request: str, now: float, patience_s: float | None = None) -> Actions:
        """A request came in.

        Args:
            request: A name that was not used before.
            now: The time.
            patience_s: How long its caller waits for a replica; None: as long as it takes.
        """
        if self._closing:
            return (Fail(request, _closing()),)
        if len(self._waiting) >= self.limits.queue_limit and not self._free():
            limit = self.limits.queue_limit
            error = QueueFull(f"{limit} requests wait already, as many as may: try later", queue_limit=limit)
            return (Fail(request, error),)
        self._waiting[request] = _Waiting(None if patience_s is None else now + patience_s)
        return self._settle(now)

    def replica_progress(self, name: str, progress: str) -> None:
        """How far a start is, in words for whoever waits in vain."""
        if (replica := self._replicas.get(name)) is not None:
            replica.progress = progress

    def replica_ready(self, name: str, now: float, concurrency: int = 1) -> Actions:
        """A replica takes requests, this many at a time."""
        replica = self._replicas.get(name)
        if replica is None or replica.stage is not Stage.STARTING:
            return ()  # it is being ended already
        replica.stage, replica.since, replica.last_used = Stage.READY, now, now
        replica.concurrency = self._expected = max(1, concurrency)
        for waiting in self._waiting.values():  # starts work after all: what failed before is no sign any more
            waiting.error = None
        return self._settle(now)

    def replica_failed(self, name: str, error: AdapterError, now: float) -> Actions:
        """A start failed; the replica ends by itself, and is killed if it does not."""
        replica = self._replicas.get(name)
        if replica is None or replica.stage is not Stage.STARTING:
            return ()
        self._stop(replica, StopReason.FAILED, now)
        self._note_failed_start(error)
        return self._settle(now)

    def replica_gone(self, name: str, error: AdapterError, now: float) -> Actions:
        """A replica's process has ended; the error says how, for those whose requests it held."""
        replica = self._replicas.pop(name, None)
        if replica is None:
            return ()
        failed = tuple(Fail(request, error) for request in sorted(replica.running))
        for request in replica.running:
            del self._held[request]
        if replica.stage is Stage.STARTING:
            self._note_failed_start(error)
        return (*failed, *self._settle(now))

    def finished(self, request: str, now: float) -> Actions:
        """A request that was dispatched has its answer, whatever that says."""
        self._release(request, now)
        return self._settle(now)

    def cancelled(self, request: str, now: float) -> Actions:
        """A caller went away, or gave up."""
        self._waiting.pop(request, None)
        self._release(request, now)
        return self._settle(now)

    def scale_to_zero(self, now: float) -> Actions:
        """End every replica; what they run may finish within the grace, and who waits gets a fresh one."""
        return (*self._terminate_all(StopReason.SCALE_TO_ZERO, now), *self._settle(now))

    def shutdown(self, now: float) -> Actions:
        """End everything: who waits gets an error, and so does who comes later."""
        self._closing = True
        refused = tuple(Fail(request, _closing()) for request in self._waiting)
        self._waiting.clear()
        return (*refused, *self._terminate_all(StopReason.SHUTDOWN, now))

    def tick(self, now: float) -> Actions:
        """Time has passed: hold everyone to the limits."""
        actions: list[Action] = []
        for request in [name for name, waiting in self._waiting.items() if _over(waiting.patience_ends, now)]:
            del self._waiting[request]
            actions.append(Fail(request, _impatient()))
        for request, held in list(self._held.items()):
            if now >= held.since + self.limits.request_limit_s + self.limits.answer_s:
                actions += self._end_overdue(request, held.replica, now)
        for replica in self._replicas.values():
            if replica.stage is Stage.STARTING and now >= replica.since + self.limits.init_limit_s:
                error = self._init_timeout(replica)
                actions.append(self._stop(replica, StopReason.INIT_LIMIT, now))
                self._note_failed_start(error)
            elif replica.stage is Stage.READY and not replica.running and now >= replica.last_used + self.limits.idle_s:
                actions.append(self._stop(replica, StopReason.IDLE, now))
            elif _over(replica.kill_at, now):
                replica.kill_at = None
                actions.append(KillReplica(replica.name))
        return (*actions, *self._settle(now))

    # -- what follows --------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> Actions:
        return (*self._dispatch(now), *self._give_up(), *self._scale_up(now))

    def _free(self) -> list[FleetReplica]:
        ready = (replica for replica in self._replicas.values() if replica.stage is Stage.READY)
        return [replica for replica in ready if len(replica.running) < replica.concurrency]

    def _dispatch(self, now: float) -> list[Action]:
        actions: list[Action] = []
        while self._waiting and (free := self._free()):
            # the one used last: the others become idle and can go
            replica = max(free, key=lambda found: found.last_used)
            request = next(iter(self._waiting))
            del self._waiting[request]
            replica.running.add(request)
            replica.last_used = now
            replica.served += 1
            self._held[request] = _Held(replica.name, now)
            actions.append(Dispatch(request, replica.name))
        return actions

    def _give_up(self) -> list[Action]:
        if any(replica.stage is Stage.READY for replica in self._replicas.values()):
            return []
        starting = {replica.name for replica in self._replicas.values() if replica.stage is Stage.STARTING}
        lost = {
            request: waiting.error
            for request, waiting in self._waiting.items()
            if waiting.error is not None and not waiting.hopes & starting
        }
        for request in lost:
            del self._waiting[request]
        return [Fail(request, error) for request, error in lost.items()]

    def _scale_up(self, now: float) -> list[Action]:
        if self._closing:
            return []
        # who has seen a start fail asks for no other one: a start that fails at once would be tried for ever
        wanted = sum(waiting.error is None for waiting in self._waiting.values())
        starting = sum(replica.stage is Stage.STARTING for replica in self._replicas.values())
        missing = wanted - starting * self._expected
        count = min(-(-missing // self._expected), self.limits.max_replicas - len(self._replicas))
        return [self._start(now) for _ in range(count)]

    def _start(self, now: float) -> StartReplica:
        self._started += 1
        replica = FleetReplica(f"r{self._started}", now)
        self._replicas[replica.name] = replica
        return StartReplica(replica.name)

    def _stop(self, replica: FleetReplica, why: StopReason, now: float) -> TerminateReplica:
        replica.stage, replica.since, replica.stop_reason = Stage.STOPPING, now, why
        replica.kill_at = now + self.limits.grace_s
        return TerminateReplica(replica.name, why)

    def _terminate_all(self, why: StopReason, now: float) -> list[Action]:
        return [
            self._stop(replica, why, now) for replica in self._replicas.values() if replica.stage is not Stage.STOPPING
        ]

    def _end_overdue(self, request: str, name: str, now: float) -> list[Action]:
        limit_s = self.limits.request_limit_s
        error = InvocationTimeout(
            f"no answer within the request limit of {limit_s:g} s; its replica is ended", timeout_s=limit_s
        )
        actions: list[Action] = [Fail(request, error)]
        self._release(request, now)
        replica = self._replicas[name]
        if replica.stage is Stage.READY:
            actions.append(self._stop(replica, StopReason.REQUEST_LIMIT, now))
        return actions

    def _release(self, request: str, now: float) -> None:
        held = self._held.pop(request, None)
        if held is not None and (replica := self._replicas.get(held.replica)) is not None:
            replica.running.discard(request)
            replica.last_used = now

    def _note_failed_start(self, error: AdapterError) -> None:
        starting = frozenset(replica.name for replica in self._replicas.values() if replica.stage is Stage.STARTING)
        for waiting in self._waiting.values():
            if waiting.error is None:
                waiting.error, waiting.hopes = error, starting

    def _init_timeout(self, replica: FleetReplica) -> InitTimeout:
        limit_s = self.limits.init_limit_s
        where = f": it was {replica.progress}" if replica.progress else ""
        return InitTimeout(
            f"replica {replica.name} was not ready within the init limit of {limit_s:g} s{where}. What it has of the "
            "weights stays for the next start.",
            timeout_s=limit_s,
            replica=replica.name,
            progress=replica.progress or None,
        )


def _over(at: float | None, now: float) -> bool:
    return at is not None and now >= at


def _closing() -> Draining:
    return Draining("the emulator is ending and takes no new requests")


def _impatient() -> InvocationTimeout:
    return InvocationTimeout("the caller's time was over before a replica could take the request")
