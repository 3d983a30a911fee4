from __future__ import annotations

import math

import pytest

from adapter.testing import ManualClock


def test_it_stands_still_until_it_is_moved() -> None:
    clock = ManualClock()
    assert (clock(), clock()) == (0.0, 0.0)
    assert clock.advance(1.5) == 1.5
    clock.sleep(0.5)
    assert clock() == 2.0


def test_it_starts_where_it_is_told() -> None:
    assert ManualClock(start_s=100)() == 100.0


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_it_never_goes_back(seconds: float) -> None:
    clock = ManualClock(5)
    with pytest.raises(ValueError, match="a number of seconds from 0"):
        clock.advance(seconds)
    assert clock() == 5.0
