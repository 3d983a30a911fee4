"""A world for a `Fleet`: a clock that is turned by hand, replicas and callers of dice, and a watch on every promise.

Everything that happens is drawn from one seed; the world is the driver of the fleet, and asserts after each step that
limits are kept and that no request is answered twice. At the end none may be left without an answer.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from adapter.emulator.fleet import (
    Actions,
    Dispatch,
    Fail,
    Fleet,
    FleetLimits,
    KillReplica,
    Stage,
    StartReplica,
    TerminateReplica,
)
from adapter.errors import AdapterError, LoadError, RoleDied

NEVER = float("inf")
_LATE_S = 1e-6
"""How much later than its limit something may end: the clock's float arithmetic."""


@dataclass
class FakeReplica:
    """What the world knows of a replica."""

    name: str
    concurrency: int
    started: float
    ready: bool = False
    terminated: float | None = None
    ends_at: float = NEVER
    running: dict[str, float] = field(default_factory=dict)
    """Request: since when."""


@dataclass
class World:
    """Plays one schedule.

    Args:
        seed: Of everything.
    """

    seed: int
    now: float = 0.0
    outcomes: dict[str, str] = field(default_factory=dict)
    """Request: how it ended."""
    errors: dict[str, AdapterError] = field(default_factory=dict)
    starts: int = 0
    swept: int = 0
    """Replicas that somebody ended by hand."""

    def __post_init__(self) -> None:
        self.dice = dice = random.Random(self.seed)
        self.limits = FleetLimits(
            max_replicas=dice.choice((1, 1, 2, 3, 5)),
            idle_s=dice.choice((0.0, 0.5, 5.0, 60.0)),
            init_limit_s=dice.choice((1.0, 3.0, 10.0)),
            request_limit_s=dice.choice((1.0, 5.0)),
            answer_s=dice.choice((0.0, 0.5)),
            grace_s=dice.choice((0.0, 0.5, 2.0)),
            queue_limit=dice.choice((1, 3, 10, 1000)),
        )
        self.fleet = Fleet(self.limits)
        self.replicas: dict[str, FakeReplica] = {}
        self.arrived: set[str] = set()
        self._order = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], Actions]]] = []
        self._concurrency = dice.choice((1, 1, 1, 4))
        self._health = dice.choice((1.0, 0.8, 0.5, 0.0))
        """Share of starts that work."""

    @property
    def starts_never_work(self) -> bool:
        """Whether no replica becomes ready in this world."""
        return self._health == 0.0

    # -- playing -------------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Let callers come, people interfere, and time pass until nothing happens any more."""
        for number in range(self.dice.randint(1, 40)):
            self._at(self.dice.choice((0.0, self.dice.uniform(0, 30))), lambda n=number: self._arrive(f"q{n}"))  # type: ignore[misc]
        for _ in range(self.dice.choice((0, 0, 1, 2))):
            self._at(self.dice.uniform(0, 30), self._sweep)
        if self.dice.random() < 0.2:
            self._at(self.dice.uniform(0, 40), lambda: self.fleet.shutdown(self.now))
        for _ in range(100_000):
            if not self._step():
                break
        else:
            raise AssertionError("the world does not come to rest")
        assert self.arrived == set(self.outcomes), f"lost: {sorted(self.arrived - set(self.outcomes))}"
        assert not self.replicas
        assert not self.fleet.replicas
        assert (self.fleet.waiting, self.fleet.running) == (0, 0)

    def _step(self) -> bool:
        tick_at = self.fleet.next_at()
        next_at = self._agenda[0][0] if self._agenda else NEVER
        if tick_at is None and next_at == NEVER:
            return False
        if tick_at is not None and tick_at <= next_at:
            self.now = max(self.now, tick_at)
            actions = self.fleet.tick(self.now)
            assert actions or self.fleet.next_at() != tick_at, "a tick that does nothing would spin for ever"
            self._do(actions)
        else:
            self.now, _, happen = heapq.heappop(self._agenda)
            self._do(happen())
        self._check()
        return True

    def _at(self, at: float, happen: Callable[[], Actions]) -> None:
        heapq.heappush(self._agenda, (max(at, self.now), next(self._order), happen))

    # -- what the fleet decides ----------------------------------------------------------------------------------------

    def _do(self, actions: Actions) -> None:
        for action in actions:
            if isinstance(action, StartReplica):
                self._start(action.replica)
            elif isinstance(action, Dispatch):
                self._dispatch(action)
            elif isinstance(action, Fail):
                self._end(action.request, f"failed: {action.error.code}")
                self.errors[action.request] = action.error
                for replica in self.replicas.values():
                    replica.running.pop(action.request, None)
            elif isinstance(action, TerminateReplica):
                self._terminate(self.replicas[action.replica])
            elif isinstance(action, KillReplica):
                replica = self.replicas[action.replica]
                assert replica.terminated is None or self.now >= replica.terminated + self.limits.grace_s - _LATE_S
                self._ends(replica, self.now + 0.01)

    def _start(self, name: str) -> None:
        assert name not in self.replicas
        self.starts += 1
        replica = self.replicas[name] = FakeReplica(name, self._concurrency, self.now)
        fate = self.dice.random()
        takes_s = self.dice.choice((0.0, 0.1, 1.0, self.dice.uniform(0, 12)))
        if fate < self._health:
            self._at(self.now + takes_s, lambda: self._become_ready(replica))
            if self.dice.random() < 0.2:
                self._ends(replica, self.now + takes_s + self.dice.uniform(0, 10))
        elif fate < self._health + 0.3 * (1 - self._health):
            pass  # hangs
        elif self.dice.random() < 0.5:
            self._at(self.now + takes_s, lambda: self._tell_failure(replica))
        else:
            self._ends(replica, self.now + takes_s)

    def _dispatch(self, action: Dispatch) -> None:
        replica = self.replicas[action.replica]
        assert replica.ready, "a replica that is not ready got a request"
        assert replica.terminated is None, "a replica that is told to end got a request"
        assert action.request not in self.outcomes, "a request that has ended was dispatched"
        assert not any(action.request in other.running for other in self.replicas.values()), "dispatched twice"
        replica.running[action.request] = self.now
        takes_s = self.dice.choice((0.0, 0.1, 1.0, 3.0, NEVER if self.dice.random() < 0.2 else 0.5))
        if takes_s != NEVER:
            self._at(self.now + takes_s, lambda: self._finish(replica, action.request))
        if self.dice.random() < 0.05:
            self._ends(replica, self.now + self.dice.uniform(0, 2))

    def _terminate(self, replica: FakeReplica) -> None:
        assert replica.terminated is None, "told to end twice"
        replica.terminated = self.now
        if self.dice.random() < 0.7:  # others ignore it
            self._ends(replica, self.now + self.dice.uniform(0, 3))

    def _sweep(self) -> Actions:
        self.swept += len(self.replicas)
        return self.fleet.scale_to_zero(self.now)

    # -- what replicas and callers do ----------------------------------------------------------------------------------

    def _arrive(self, request: str) -> Actions:
        self.arrived.add(request)
        if self.dice.random() < 0.15:
            self._at(self.now + self.dice.uniform(0, 5), lambda: self._leave(request))
        patience_s = self.dice.uniform(0, 10) if self.dice.random() < 0.2 else None
        return self.fleet.arrive(request, self.now, patience_s)

    def _leave(self, request: str) -> Actions:
        if request in self.outcomes:
            return self.fleet.cancelled(request, self.now)  # too late: must change nothing
        self._end(request, "left")
        for replica in self.replicas.values():
            replica.running.pop(request, None)
        return self.fleet.cancelled(request, self.now)

    def _become_ready(self, replica: FakeReplica) -> Actions:
        if replica.name not in self.replicas:
            return ()
        replica.ready = True
        return self.fleet.replica_ready(replica.name, self.now, replica.concurrency)

    def _tell_failure(self, replica: FakeReplica) -> Actions:
        if replica.name not in self.replicas:
            return ()
        if replica.terminated is None:
            replica.terminated = self.now  # it ends by itself, or is killed
        if self.dice.random() < 0.8:
            self._ends(replica, self.now + self.dice.uniform(0, 1))
        return self.fleet.replica_failed(replica.name, LoadError("load raised"), self.now)

    def _finish(self, replica: FakeReplica, request: str) -> Actions:
        if replica.running.pop(request, None) is None:
            return self.fleet.finished(request, self.now) if request in self.outcomes else ()
        self._end(request, "answered")
        return self.fleet.finished(request, self.now)

    def _ends(self, replica: FakeReplica, at: float) -> None:
        if at < replica.ends_at:
            replica.ends_at = at
            self._at(at, lambda: self._gone(replica, at))

    def _gone(self, replica: FakeReplica, at: float) -> Actions:
        if replica.ends_at != at or self.replicas.pop(replica.name, None) is None:
            return ()
        held = set(replica.running)
        replica.running.clear()  # what it was about to answer is lost with it
        actions = self.fleet.replica_gone(replica.name, RoleDied("it died"), self.now)
        assert held <= {action.request for action in actions if isinstance(action, Fail)}, (
            "a held request was forgotten"
        )
        return actions

    def _end(self, request: str, how: str) -> None:
        assert request not in self.outcomes, f"{request} ended twice: {self.outcomes[request]}, {how}"
        self.outcomes[request] = how

    # -- what must hold at any time ------------------------------------------------------------------------------------

    def _check(self) -> None:
        limits = self.limits
        assert set(self.replicas) == set(self.fleet.replicas)
        assert len(self.replicas) <= limits.max_replicas
        assert self.fleet.waiting <= limits.queue_limit
        for replica in self.replicas.values():
            assert len(replica.running) <= replica.concurrency
            seen = self.fleet.replicas[replica.name]
            assert seen.running == set(replica.running)
            if seen.stage is Stage.STARTING:
                assert self.now <= replica.started + limits.init_limit_s + _LATE_S, "longer than the init limit"
            for since in replica.running.values():
                over_s = self.now - since - limits.request_limit_s - limits.answer_s
                assert over_s <= _LATE_S, "longer than the request limit"
        if self.fleet.waiting:
            free = [
                found
                for found in self.fleet.replicas.values()
                if found.stage is Stage.READY and len(found.running) < found.concurrency
            ]
            assert not free, "somebody waits beside a free place"
            assert self.fleet.replicas, "somebody waits for nothing"
