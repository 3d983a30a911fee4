"""Half-open byte ranges, sets of them, and how a file is cut into the parts that are read one by one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes `start, start + 1, …, stop - 1` of one file.

    Raises:
        ValueError: `start` is negative or lies behind `stop`.
    """

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"no byte range: {self.start} to {self.stop}")

    @property
    def length(self) -> int:
        """How many bytes it holds."""
        return self.stop - self.start

    def __bool__(self) -> bool:
        """Whether it holds any byte at all."""
        return self.stop > self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"

    def contains(self, other: ByteRange) -> bool:
        """Whether every byte of `other` is in this range; an empty range is in every range."""
        return not other or (self.start <= other.start and other.stop <= self.stop)

    def overlaps(self, other: ByteRange) -> bool:
        """Whether at least one byte is in both."""
        return max(self.start, other.start) < min(self.stop, other.stop)

    def intersect(self, other: ByteRange) -> ByteRange | None:
        """The bytes that are in both, or None where there are none."""
        start, stop = max(self.start, other.start), min(self.stop, other.stop)
        return ByteRange(start, stop) if start < stop else None

    def shift(self, by_bytes: int) -> ByteRange:
        """The range of the same length, `by_bytes` further on."""
        return ByteRange(self.start + by_bytes, self.stop + by_bytes)


class IntervalSet:
    """Which bytes of a file are there: a growing set, kept as few sorted ranges that do not touch.

    Adding and asking cost O(log n) and n stays small, since ranges that touch become one. Not thread-safe.
    """

    __slots__ = ("_starts", "_stops", "_total")

    def __init__(self, ranges: Iterable[ByteRange] = ()) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._total = 0
        for each in ranges:
            self.add(each)

    @property
    def total(self) -> int:
        """How many bytes are in the set."""
        return self._total

    def add(self, new: ByteRange) -> None:
        """Put the bytes of `new` in; those that are there already stay and count once."""
        if not new:
            return
        first = bisect_left(self._stops, new.start)
        last = bisect_right(self._starts, new.stop)
        start, stop = new.start, new.stop
        if first < last:  # these touch or overlap the new range and become one with it
            start = min(start, self._starts[first])
            stop = max(stop, self._stops[last - 1])
            self._total -= sum(self._stops[first:last]) - sum(self._starts[first:last])
        self._starts[first:last] = [start]
        self._stops[first:last] = [stop]
        self._total += stop - start

    def contains(self, asked: ByteRange) -> bool:
        """Whether every byte of `asked` is there; always so for an empty range."""
        if not asked:
            return True
        at = bisect_right(self._starts, asked.start) - 1
        return at >= 0 and asked.stop <= self._stops[at]

    def missing(self, asked: ByteRange) -> list[ByteRange]:
        """The parts of `asked` that are not there, in order."""
        found: list[ByteRange] = []
        position = asked.start
        at = max(bisect_right(self._starts, position) - 1, 0)
        while position < asked.stop:
            if at == len(self._starts) or self._starts[at] >= asked.stop:
                found.append(ByteRange(position, asked.stop))
                break
            if self._starts[at] > position:
                found.append(ByteRange(position, self._starts[at]))
            position = max(position, self._stops[at])
            at += 1
        return found

    def __iter__(self) -> Iterator[ByteRange]:
        """The ranges, in order; no two touch."""
        return (ByteRange(start, stop) for start, stop in zip(self._starts, self._stops, strict=True))

    def __len__(self) -> int:
        """How many separate ranges the set consists of (not bytes: see `total`)."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, IntervalSet):
            return NotImplemented
        return self._starts == other._starts and self._stops == other._stops

    __hash__: ClassVar[None] = None  # type: ignore[assignment]  # it grows

    def __repr__(self) -> str:
        return f"IntervalSet([{', '.join(map(str, self))}])"


def split(whole: ByteRange, part_bytes: int) -> list[ByteRange]:
    """The range cut at every multiple of `part_bytes` of the *file*, in order.

    Cutting on the file's own grid (not from the range's start) gives a resumed read the same parts as the first one,
    and parts that hold whole pages when `part_bytes` does.

    Raises:
        ValueError: `part_bytes` is not positive.
    """
    if part_bytes <= 0:
        raise ValueError(f"part_bytes must be positive, not {part_bytes}")
    parts: list[ByteRange] = []
    start = whole.start
    while start < whole.stop:
        stop = min((start // part_bytes + 1) * part_bytes, whole.stop)
        parts.append(ByteRange(start, stop))
        start = stop
    return parts


def coalesce(ranges: Iterable[ByteRange], gap_bytes: int = 0) -> list[ByteRange]:
    """The ranges sorted, with those joined that overlap, touch, or lie at most `gap_bytes` apart; empty ones dropped.

    A request costs a round trip: reading a small gap along is cheaper than a second request.

    Raises:
        ValueError: `gap_bytes` is negative.
    """
    if gap_bytes < 0:
        raise ValueError(f"gap_bytes must not be negative, not {gap_bytes}")
    joined: list[ByteRange] = []
    for each in sorted(each for each in ranges if each):
        if joined and each.start - joined[-1].stop <= gap_bytes:
            joined[-1] = ByteRange(joined[-1].start, max(joined[-1].stop, each.stop))
        else:
            joined.append(each)
    return joined


def coalesce_within(ranges: Iterable[ByteRange], spare_bytes: int, gap_bytes: int) -> list[ByteRange]:
    """The ranges as `coalesce`, the shortest gaps closed first, as long as all that are closed fit into `spare_bytes`.

    Args:
        ranges: In any order.
        spare_bytes: The most that may be read along in all.
        gap_bytes: The longest gap that is closed.
    """
    apart = coalesce(ranges)
    gaps = sorted(
        (ByteRange(before.stop, after.start) for before, after in pairwise(apart)), key=lambda gap: gap.length
    )
    closed: list[ByteRange] = []
    for gap in gaps:
        spare_bytes -= gap.length
        if spare_bytes < 0 or gap.length > gap_bytes:
            break
        closed.append(gap)
    return coalesce([*apart, *closed])


def round_to_pages(asked: ByteRange, page_bytes: int, file_bytes: int) -> ByteRange:
    """The smallest range of whole pages around `asked`, ended where the file ends; an empty range stays as it is.

    Raises:
        ValueError: `page_bytes` is not positive, or `asked` does not lie in the file.
    """
    if page_bytes <= 0:
        raise ValueError(f"page_bytes must be positive, not {page_bytes}")
    if asked.stop > file_bytes:
        raise ValueError(f"{asked} does not lie in a file of {file_bytes} bytes")
    if not asked:
        return asked
    start = asked.start // page_bytes * page_bytes
    stop = -(-asked.stop // page_bytes) * page_bytes
    return ByteRange(start, min(stop, file_bytes))


@dataclass(frozen=True, slots=True)
class Part:
    """What one range read fetches: a piece of one shard."""

    shard: str
    range: ByteRange


def plan_parts(
    sizes: Mapping[str, int],
    part_bytes: int,
    *,
    order: Sequence[str] = (),
    present: Mapping[str, IntervalSet] | None = None,
) -> list[Part]:
    """Every part of the shards that is still to be read, in the order in which they will be wanted.

    Args:
        sizes: Bytes of each shard.
        part_bytes: Length of a part; see `split`.
        order: Shards that are wanted first. A hint: names that are not in `sizes` are passed over, shards that it
            does not name follow in the order of `sizes`.
        present: Bytes that are there already and are not planned again.

    Raises:
        ValueError: `part_bytes` is not positive.
    """
    have = present or {}
    hinted = dict.fromkeys(name for name in order if name in sizes)
    parts: list[Part] = []
    for shard in dict.fromkeys((*hinted, *sizes)):
        whole = ByteRange(0, sizes[shard])
        gaps = have[shard].missing(whole) if shard in have else [whole]
        parts.extend(Part(shard, piece) for gap in gaps for piece in split(gap, part_bytes))
    return parts
