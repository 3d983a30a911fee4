"""Events: numbered, kept for who comes back, and never more than a listener can hold."""

from __future__ import annotations

import asyncio

from adapter.emulator.hub import BEHIND_LIMIT, KEPT, Hub


def test_a_listener_hears_what_happens_after_it_came() -> None:
    async def hear() -> list[object]:
        hub = Hub()
        hub.publish("a", 1)
        with hub.listening() as listener:
            hub.publish("b", 2)
            hub.publish("c", 3)
            hub.close()
            heard = [await listener.get() for _ in range(3)]
        return [happening and (happening.number, happening.kind, happening.value) for happening in heard]

    assert asyncio.run(hear()) == [(2, "b", 2), (3, "c", 3), None]


def test_what_was_missed_is_told_as_long_as_it_is_kept() -> None:
    hub = Hub()
    for number in range(KEPT + 5):
        hub.publish("n", number)
    missed = hub.missed(KEPT)
    assert missed is not None
    assert [happening.number for happening in missed] == list(range(KEPT + 1, KEPT + 6))
    assert hub.missed(KEPT + 5) == ()
    assert hub.missed(5) is not None
    assert hub.missed(4) is None
    assert hub.missed(0) is None
    assert hub.missed(KEPT + 6) is None


def test_a_listener_that_does_not_read_is_cut_off() -> None:
    async def fill() -> int:
        hub = Hub()
        with hub.listening() as listener:
            for number in range(BEHIND_LIMIT + 10):
                hub.publish("n", number)
            return listener.qsize()

    assert asyncio.run(fill()) == BEHIND_LIMIT + 1  # the last one says that it is over


def test_who_comes_after_the_end_is_told_so() -> None:
    async def hear() -> object:
        hub = Hub()
        hub.close()
        with hub.listening() as listener:
            return await listener.get()

    assert asyncio.run(hear()) is None
