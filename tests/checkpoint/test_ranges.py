"""Byte ranges, sets of them and plans of parts, each against the same thing done byte by byte."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.checkpoint.ranges import ByteRange, IntervalSet, Part, coalesce, plan_parts, round_to_pages, split

RANGES = st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda pair: ByteRange(pair[0], sum(pair)))
LISTS = st.lists(RANGES, max_size=12)


def _bytes(*ranges: ByteRange) -> set[int]:
    return {byte for each in ranges for byte in range(each.start, each.stop)}


@pytest.mark.parametrize(("start", "stop"), [(-1, 0), (2, 1), (-2, -1)])
def test_a_range_never_runs_backwards_or_below_the_file(start: int, stop: int) -> None:
    with pytest.raises(ValueError, match="no byte range"):
        ByteRange(start, stop)


def test_a_range_is_half_open() -> None:
    assert ByteRange(2, 5).length == 3
    assert not ByteRange(2, 2)
    assert str(ByteRange(2, 5)) == "[2, 5)"
    assert ByteRange(2, 5).shift(3) == ByteRange(5, 8)


@given(RANGES, RANGES)
def test_two_ranges_meet_in_the_bytes_they_share(one: ByteRange, other: ByteRange) -> None:
    shared = _bytes(one) & _bytes(other)
    found = one.intersect(other)
    assert (found is not None) == bool(shared) == one.overlaps(other)
    assert _bytes(*([found] if found else [])) == shared
    assert one.contains(other) == (_bytes(other) <= _bytes(one))


@given(LISTS, RANGES)
def test_an_interval_set_knows_which_bytes_are_there(ranges: list[ByteRange], asked: ByteRange) -> None:
    have = IntervalSet(ranges)
    there = _bytes(*ranges)
    assert have.total == len(there)
    assert _bytes(*have) == there
    assert have.contains(asked) == (_bytes(asked) <= there)
    missing = have.missing(asked)
    assert _bytes(*missing) == _bytes(asked) - there
    assert all(missing)
    assert missing == coalesce(missing)


@given(LISTS.flatmap(lambda ranges: st.tuples(st.just(ranges), st.permutations(ranges))))
def test_an_interval_set_is_the_same_whatever_the_order(orders: tuple[list[ByteRange], list[ByteRange]]) -> None:
    ranges, shuffled = orders
    have = IntervalSet(ranges)
    assert have == IntervalSet(shuffled)
    assert list(have) == coalesce(ranges)
    assert len(have) == len(coalesce(ranges))


def test_ranges_that_touch_become_one() -> None:
    have = IntervalSet([ByteRange(0, 4), ByteRange(8, 12)])
    assert len(have) == 2
    have.add(ByteRange(4, 8))
    assert list(have) == [ByteRange(0, 12)]
    have.add(ByteRange(20, 20))
    assert list(have) == [ByteRange(0, 12)]
    assert repr(have) == "IntervalSet([[0, 12)])"


@given(RANGES, st.integers(1, 20))
def test_a_split_covers_the_range_on_the_grid_of_the_file(whole: ByteRange, part_bytes: int) -> None:
    parts = split(whole, part_bytes)
    assert [byte for part in parts for byte in range(part.start, part.stop)] == list(range(whole.start, whole.stop))
    assert all(0 < part.length <= part_bytes for part in parts)
    assert all(part.stop % part_bytes == 0 for part in parts[:-1])


@given(LISTS, st.integers(0, 10))
def test_coalescing_joins_over_small_gaps_only(ranges: list[ByteRange], gap_bytes: int) -> None:
    joined = coalesce(ranges, gap_bytes)
    assert _bytes(*ranges) <= _bytes(*joined)
    assert all(after.start - before.stop > gap_bytes for before, after in pairwise(joined))
    assert all(gap.length <= gap_bytes for each in joined for gap in IntervalSet(ranges).missing(each))


@given(RANGES, st.integers(1, 16), st.integers(0, 20))
def test_rounding_takes_every_page_that_is_touched(asked: ByteRange, page_bytes: int, behind: int) -> None:
    file_bytes = asked.stop + behind
    rounded = round_to_pages(asked, page_bytes, file_bytes)
    pages = {byte // page_bytes for byte in _bytes(asked)}
    assert _bytes(rounded) == {byte for byte in range(file_bytes) if byte // page_bytes in pages}


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="part_bytes"):
        split(ByteRange(0, 4), 0)
    with pytest.raises(ValueError, match="part_bytes"):
        plan_parts({"a": 4}, -1)
    with pytest.raises(ValueError, match="gap_bytes"):
        coalesce([], -1)
    with pytest.raises(ValueError, match="page_bytes"):
        round_to_pages(ByteRange(0, 4), 0, 4)
    with pytest.raises(ValueError, match="does not lie"):
        round_to_pages(ByteRange(0, 5), 4096, 4)


def test_a_plan_follows_the_order_of_use_and_skips_what_is_there() -> None:
    sizes = {"a": 10, "b": 6, "c": 4}
    parts = plan_parts(sizes, 4, order=["c", "unknown", "b", "c"], present={"b": IntervalSet([ByteRange(0, 5)])})
    assert parts == [
        Part("c", ByteRange(0, 4)),
        Part("b", ByteRange(5, 6)),
        Part("a", ByteRange(0, 4)),
        Part("a", ByteRange(4, 8)),
        Part("a", ByteRange(8, 10)),
    ]


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 40)), st.integers(1, 9), st.lists(st.sampled_from("abcdx"))
)
def test_a_plan_reads_each_byte_once(sizes: dict[str, int], part_bytes: int, order: list[str]) -> None:
    parts = plan_parts(sizes, part_bytes, order=order)
    read = [(part.shard, byte) for part in parts for byte in range(part.range.start, part.range.stop)]
    assert sorted(read) == [(shard, byte) for shard in sorted(sizes) for byte in range(sizes[shard])]


def test_a_resumed_plan_has_the_parts_of_the_first() -> None:
    whole = plan_parts({"a": 100}, 8)
    done = IntervalSet(part.range for part in whole[::3])
    assert plan_parts({"a": 100}, 8, present={"a": done}) == [part for i, part in enumerate(whole) if i % 3]
