from __future__ import annotations

from itertools import product

import pytest

from adapter.lifecycle import TRANSITIONS, Event, Phase, advance


def walk(phase: Phase, *events: Event) -> Phase:
    for event in events:
        phase = advance(phase, event)
    return phase


def test_a_start_goes_from_cold_to_ready() -> None:
    assert walk(Phase.COLD, Event.START, Event.IMPORTED, Event.LOADED, Event.WARMED) is Phase.READY


def test_a_lost_worker_is_started_again() -> None:
    recovering = advance(Phase.READY, Event.WORKER_LOST)
    assert recovering is Phase.RECOVERING
    assert walk(recovering, Event.START, Event.IMPORTED, Event.LOADED, Event.WARMED) is Phase.READY


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.FAILED, Phase.STOPPED)])
def test_a_drain_may_come_at_any_point_before_the_end(phase: Phase) -> None:
    assert walk(phase, Event.DRAIN, Event.ENDED) is Phase.STOPPED


def test_a_drain_cannot_fail_any_more() -> None:
    with pytest.raises(ValueError, match="draining cannot take the event fail"):
        advance(Phase.DRAINING, Event.FAIL)


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_every_pair_is_in_the_table_or_refused(phase: Phase, event: Event) -> None:
    if (phase, event) in TRANSITIONS:
        assert advance(phase, event) is TRANSITIONS[phase, event]
    else:
        with pytest.raises(ValueError, match=f"a replica that is {phase} cannot take the event {event}"):
            advance(phase, event)


def test_nothing_leaves_the_end() -> None:
    assert not [pair for pair in TRANSITIONS if pair[0] is Phase.STOPPED]


def test_every_phase_can_be_reached_from_cold_and_reaches_the_end() -> None:
    def reachable(start: Phase) -> set[Phase]:
        found = {start}
        while more := {after for (before, _), after in TRANSITIONS.items() if before in found} - found:
            found |= more
        return found

    assert reachable(Phase.COLD) == set(Phase)
    assert all(Phase.STOPPED in reachable(phase) for phase in Phase)
