"""The platform's decisions, on a clock that is turned by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from adapter.emulator.fleet import (
    Action,
    Dispatch,
    Fail,
    Fleet,
    FleetLimits,
    KillReplica,
    StartReplica,
    StopReason,
    TerminateReplica,
)
from adapter.errors import Draining, InitTimeout, InvocationTimeout, LoadError, QueueFull, RoleDied
from tests.support.fleet_world import World

SCHEDULES = 500


def test_no_caller_is_lost_or_answered_twice_and_limits_are_kept_in_500_random_schedules() -> None:
    """G3."""
    outcomes: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        world = World(seed)
        try:
            world.play()
        except Exception as error:
            raise AssertionError(f"seed {seed} at {world.now:.3f} s, {world.limits}: {error}") from error
        outcomes.update(world.outcomes.values())
        # a start that failed is not tried again for those who waited, so there are as many as callers; where replicas
        # work, they also end (die, idle) and are replaced
        allowed = len(world.arrived) if world.starts_never_work else 2 * len(world.arrived) + 2
        assert world.starts <= allowed + world.swept, f"seed {seed}: {world.starts} starts"
    # the schedules reach every way to end
    wanted = {"answered", "left"} | {
        f"failed: {kind.code}" for kind in (LoadError, RoleDied, InitTimeout, InvocationTimeout, QueueFull, Draining)
    }
    assert wanted <= set(outcomes)


def fails(actions: tuple[Action, ...]) -> dict[str, type]:
    return {action.request: type(action.error) for action in actions if isinstance(action, Fail)}


def test_the_first_request_starts_a_replica_and_is_dispatched_when_it_is_ready() -> None:
    fleet = Fleet(FleetLimits())
    assert fleet.arrive("a", 0.0) == (StartReplica("r1"),)
    assert fleet.replica_ready("r1", 1.0) == (Dispatch("a", "r1"),)
    assert fleet.finished("a", 2.0) == ()
    assert fleet.arrive("b", 3.0) == (Dispatch("b", "r1"),)


def test_a_queue_starts_as_many_replicas_as_it_needs_and_no_more_than_may_be() -> None:
    fleet = Fleet(FleetLimits(max_replicas=3))
    started = [action for n in range(20) for action in fleet.arrive(f"q{n}", 0.0)]
    assert started == [StartReplica("r1"), StartReplica("r2"), StartReplica("r3")]


def test_a_replica_that_takes_several_requests_at_a_time_is_counted_so() -> None:
    fleet = Fleet(FleetLimits(max_replicas=9))
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0, concurrency=4)
    assert [fleet.arrive(name, 1.0) for name in "bcd"] == [(Dispatch(name, "r1"),) for name in "bcd"]
    assert fleet.arrive("e", 1.0) == (StartReplica("r2"),)
    assert [fleet.arrive(name, 1.0) for name in "fgh"] == [(), (), ()]
    assert fleet.arrive("i", 1.0) == (StartReplica("r3"),)


def test_the_replica_used_last_is_used_first_so_that_the_others_become_idle() -> None:
    fleet = Fleet(FleetLimits(idle_s=10))
    fleet.arrive("a", 0.0)
    fleet.arrive("b", 0.0)
    fleet.replica_ready("r1", 1.0)
    fleet.replica_ready("r2", 1.0)
    fleet.finished("a", 2.0)
    fleet.finished("b", 3.0)
    assert fleet.arrive("c", 4.0) == (Dispatch("c", "r2"),)
    assert fleet.tick(12.0) == (TerminateReplica("r1", StopReason.IDLE),)


def test_an_idle_replica_is_ended_and_killed_when_it_does_not_go() -> None:
    fleet = Fleet(FleetLimits(idle_s=10, grace_s=5))
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0)
    fleet.finished("a", 2.0)
    assert fleet.next_at() == 12.0
    assert fleet.tick(12.0) == (TerminateReplica("r1", StopReason.IDLE),)
    assert fleet.next_at() == 17.0
    assert fleet.tick(17.0) == (KillReplica("r1"),)
    assert fleet.replica_gone("r1", RoleDied("killed"), 17.1) == ()
    assert fleet.next_at() is None
    assert fleet.arrive("b", 20.0) == (StartReplica("r2"),)


def test_a_start_over_the_init_limit_is_ended_and_its_callers_are_told_how_far_it_was() -> None:
    """G2."""
    fleet = Fleet(FleetLimits(init_limit_s=30, grace_s=5, max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.replica_progress("r1", "loading, 5 of 9 bytes of the weights were here")
    actions = fleet.tick(30.0)
    assert actions[0] == TerminateReplica("r1", StopReason.INIT_LIMIT)
    assert fails(actions) == {"a": InitTimeout}
    told = actions[1]
    assert isinstance(told, Fail)
    assert "5 of 9 bytes" in told.error.message
    # the next caller waits for the old replica's end, since the limit counts it, and gets a new one
    assert fleet.arrive("b", 31.0) == ()
    assert fleet.tick(35.0) == (KillReplica("r1"),)
    assert fleet.replica_gone("r1", RoleDied("killed"), 35.1) == (StartReplica("r2"),)


def test_a_replica_that_becomes_ready_while_it_is_being_ended_gets_nothing() -> None:
    fleet = Fleet(FleetLimits(init_limit_s=30, max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.tick(30.0)
    fleet.arrive("b", 30.5)
    assert fleet.replica_ready("r1", 30.6) == ()


def test_callers_of_a_failed_start_get_its_error_when_no_other_start_is_left() -> None:
    fleet = Fleet(FleetLimits(max_replicas=2))
    for name in "abc":
        fleet.arrive(name, 0.0)
    assert fleet.replica_failed("r1", LoadError("no"), 1.0) == ()  # r2 may still come, and nobody asks for a third
    assert fails(fleet.replica_failed("r2", LoadError("no"), 2.0)) == dict.fromkeys("abc", LoadError)
    assert fleet.replica_gone("r1", RoleDied("exit code 14"), 2.1) == ()


def test_nobody_who_saw_a_start_fail_asks_for_another() -> None:
    """Else a function that cannot start would be started as fast as its replicas die."""
    fleet = Fleet(FleetLimits(max_replicas=9))
    fleet.arrive("a", 0.0)
    fleet.arrive("b", 0.0)
    assert fleet.replica_gone("r1", RoleDied("killed"), 1.0) == ()


def test_callers_of_a_failed_start_are_served_by_a_start_that_works() -> None:
    fleet = Fleet(FleetLimits(max_replicas=2))
    for name in "ab":
        fleet.arrive(name, 0.0)
    fleet.replica_gone("r1", RoleDied("killed"), 1.0)
    # that r2 is ready shows that starts work: b may ask for one of its own again, and is not kept from r2 by it
    assert fleet.replica_ready("r2", 2.0) == (Dispatch("a", "r2"), StartReplica("r3"))
    assert Dispatch("b", "r2") in fleet.finished("a", 3.0)


def test_a_later_caller_has_a_start_of_its_own_after_a_failure() -> None:
    fleet = Fleet(FleetLimits())
    fleet.arrive("a", 0.0)
    assert fails(fleet.replica_gone("r1", RoleDied("killed"), 1.0)) == {"a": RoleDied}
    assert fleet.arrive("b", 2.0) == (StartReplica("r2"),)


def test_those_who_saw_a_start_fail_do_not_wait_for_starts_that_others_ask_for_later() -> None:
    """Else steady callers of a function that cannot start would keep the first of them for ever."""
    fleet = Fleet(FleetLimits(max_replicas=9))
    fleet.arrive("a", 0.0)
    fleet.arrive("b", 0.0)
    fleet.replica_gone("r1", RoleDied("killed"), 1.0)
    assert fleet.arrive("c", 1.5) == ()  # r2 could be for it
    assert fleet.arrive("d", 1.5) == (StartReplica("r3"),)
    assert fails(fleet.replica_gone("r2", RoleDied("killed"), 2.0)) == {"a": RoleDied, "b": RoleDied}


def test_a_crash_of_a_ready_replica_fails_what_it_held_and_others_go_on() -> None:
    fleet = Fleet(FleetLimits(max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.arrive("b", 0.0)
    fleet.replica_ready("r1", 1.0)
    actions = fleet.replica_gone("r1", RoleDied("killed"), 2.0)
    assert fails(actions) == {"a": RoleDied}
    assert actions[-1] == StartReplica("r2")
    assert fleet.replica_ready("r2", 3.0) == (Dispatch("b", "r2"),)


def test_a_request_over_its_limit_fails_and_its_replica_is_ended_after_what_else_it_runs() -> None:
    fleet = Fleet(FleetLimits(request_limit_s=10, answer_s=1, max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0, concurrency=2)
    fleet.arrive("b", 5.0)
    assert fleet.tick(11.5) == ()
    actions = fleet.tick(12.0)
    assert fails(actions) == {"a": InvocationTimeout}
    assert actions[-1] == TerminateReplica("r1", StopReason.REQUEST_LIMIT)
    assert fleet.arrive("c", 12.5) == ()
    assert fleet.finished("b", 13.0) == ()
    assert fleet.replica_gone("r1", RoleDied("ended"), 13.5) == (StartReplica("r2"),)


def test_a_full_queue_refuses_and_a_free_place_does_not() -> None:
    fleet = Fleet(FleetLimits(queue_limit=1, max_replicas=1))
    fleet.arrive("a", 0.0)
    assert fails(fleet.arrive("b", 0.0)) == {"b": QueueFull}
    fleet.replica_ready("r1", 1.0)
    fleet.finished("a", 2.0)
    assert fleet.arrive("c", 3.0) == (Dispatch("c", "r1"),)


def test_a_caller_without_patience_is_told_while_it_waits() -> None:
    fleet = Fleet(FleetLimits())
    fleet.arrive("a", 0.0, patience_s=2.0)
    assert fleet.next_at() == 2.0
    assert fails(fleet.tick(2.0)) == {"a": InvocationTimeout}


def test_scale_to_zero_ends_replicas_and_keeps_who_waits() -> None:
    fleet = Fleet(FleetLimits(max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0)
    fleet.arrive("b", 2.0)
    assert fleet.scale_to_zero(3.0) == (TerminateReplica("r1", StopReason.SCALE_TO_ZERO),)
    assert fleet.finished("a", 4.0) == ()
    assert fleet.replica_gone("r1", RoleDied("ended"), 4.1) == (StartReplica("r2"),)


def test_shutdown_refuses_who_waits_and_who_comes() -> None:
    fleet = Fleet(FleetLimits(max_replicas=1))
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0)
    fleet.arrive("b", 2.0)
    actions = fleet.shutdown(3.0)
    assert fails(actions) == {"b": Draining}
    assert actions[-1] == TerminateReplica("r1", StopReason.SHUTDOWN)
    assert fails(fleet.arrive("c", 3.5)) == {"c": Draining}
    assert fleet.replica_gone("r1", RoleDied("ended"), 4.0) != ()  # a was held: its caller is told
    assert not fleet.replicas


@pytest.mark.parametrize("late", ["finished", "cancelled"])
def test_what_is_said_of_an_ended_request_changes_nothing(late: str) -> None:
    fleet = Fleet(FleetLimits())
    fleet.arrive("a", 0.0)
    fleet.replica_ready("r1", 1.0)
    fleet.finished("a", 2.0)
    assert getattr(fleet, late)("a", 3.0) == ()
    assert fleet.running == 0
