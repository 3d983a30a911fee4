"""Ranges of objects from the store into their files, watched while they run: stalls, hedges, the sequential way out.

Runs in the threads of the stream, except for `look`, which the thread that watches the stream calls again and again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field

from adapter.checkpoint.ranges import ByteRange, IntervalSet
from adapter.errors import InvocationCancelled, ObjectChanged, StorageError, TruncatedRead, WrongRange
from adapter.storage.base import RangeAnswer, RangeRequest
from adapter.storage.retry import RetryingSource
from adapter.storage.watch import ReadWatch
from adapter.streaming.filling import Filling
from adapter.streaming.hedging import Finished, Moved, Running, has_stalled, is_late, usual
from adapter.streaming.options import StreamOptions
from adapter.timeline import Timeline

_KEPT_READS = 64
"""Finished reads from which the usual time is learnt: the last second of a fast stream."""
_ENOUGH = 8
"""Finished reads from which one can tell midway that another is slow."""
_CHUNKS_AT_RISK = 2
"""What a hedge may cost before it is stopped: a chunk that the slow read was about to hand over, and one of its own."""
_LOOK_S = 0.05
"""How often a read that waits for another looks whether it is cancelled."""


@dataclass(eq=False, slots=True)
class Pair:
    """Two reads of the same bytes: whoever is first."""

    slow: Read
    hedge: Read
    seen: IntervalSet = field(default_factory=IntervalSet)
    """What either has brought since there are two."""

    def other(self, read: Read) -> Read:
        """The rival."""
        return self.slow if read is self.hedge else self.hedge


@dataclass(eq=False, slots=True)
class Read:
    """One range under way."""

    filling: Filling
    gap: ByteRange
    position: int
    """Up to here it has been written."""
    watch: ReadWatch
    whole: bool = False
    """From a store that gives nothing less: not doubled."""
    writing: bool = False
    """Whether it waits for the disk."""
    moved: Moved | None = None
    """How far it was when its pace was last looked at; None after a pause that was not the store's."""
    began_s: float = field(default_factory=time.monotonic)
    pair: Pair | None = None

    @property
    def ahead_bytes(self) -> int:
        """Where it is in the object, with what has been received and not yet handed over."""
        return max(self.position, self.gap.start + self.watch.received_bytes)


class Fetching:
    """Brings ranges of objects. Thread-safe.

    Args:
        source: Where they come from.
        options: How.
        timeline: Where marks are recorded.
        cancel: Ends reads when set.
    """

    def __init__(
        self, source: RetryingSource, options: StreamOptions, timeline: Timeline, cancel: threading.Event
    ) -> None:
        self.fetched_bytes: int = 0
        """Bytes that this process read from the store."""
        self.hedges: int = 0
        """Ranges that were asked for a second time."""
        self.twice_bytes: int = 0
        """Bytes that were read twice for that."""
        self.stalls: int = 0
        """Requests that were broken off because they hardly moved."""
        self.disk_s: float = 0.0
        """Seconds in which threads wrote."""
        self._source = source
        self._options = options
        self._timeline = timeline
        self._cancel = cancel
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._running: dict[Read, None] = {}
        self._finished: deque[Finished] = deque(maxlen=_KEPT_READS)
        self._sequential: set[Filling] = set()
        self._ignores_ranges = False
        self._sent_first = False
        self._budget_bytes = 0.0

    def bring(self, filling: Filling, wanted: ByteRange, buffer: memoryview) -> None:
        """Fetch what is missing of a range.

        Raises:
            StorageError: The store did not give it.
            CacheError: The disk did not take it.
            InvocationCancelled, InitTimeout: It was cancelled, time is up.
        """
        if self._ignores_ranges and filling.kind == "shard":
            self._bring_whole(filling, buffer)
            return
        for gap in filling.missing(wanted):
            if filling.catch_up():
                return
            try:
                self._run(Read(filling, gap, gap.start, ReadWatch()), buffer)
            except WrongRange as error:
                if not error.fields.get("ignores_range"):
                    raise
                self._ignores_ranges = True
                self._bring_whole(filling, buffer)
                return

    def bring_again(self, hedge: Read, buffer: memoryview) -> None:
        """Fetch what a slow read has not brought yet, beside it.

        Raises:
            StorageError, CacheError, InvocationCancelled, InitTimeout: As `bring`, where the slow read has ended.
        """
        hedge.began_s = time.monotonic()
        self._run(hedge, buffer)

    def look(self, *, idle: bool, total_bytes: int) -> list[Read]:
        """Break off what has stalled; the reads worth doubling, for `bring_again`.

        Args:
            idle: Whether no other work waits.
            total_bytes: All that is streamed.
        """
        now_s = time.monotonic()
        with self._lock:
            running = list(self._running)
            for read in running:
                self._look_at_pace(read, now_s)
            self._budget_bytes = self._options.slowness.hedge_share * total_bytes
            return [] if self._source.gate.slowed else self._late(running, now_s, midway=not idle)

    def give_up(self) -> None:
        """End all reads under way."""
        with self._lock:
            for read in self._running:
                read.watch.give_up()

    @property
    def doubled(self) -> int:
        """How many reads under way are there for the second time."""
        with self._lock:
            return sum(read.pair is not None and read is read.pair.hedge for read in self._running)

    @property
    def left_behind(self) -> bool:
        """Whether the only reads still under way wait for answers that nobody wants any more."""
        with self._lock:
            watches = [read.watch for read in self._running]
        return bool(watches) and all(each.given_up and each.answered_s is None for each in watches)

    # -- too slow -----------------------------------------------------------------------------------------------------

    def _look_at_pace(self, read: Read, now_s: float) -> None:
        now = Moved(now_s, read.watch.received_bytes)
        asked_s = read.watch.asked_s
        if read.moved is None or asked_s is None or read.writing or read.moved.at_s < asked_s:
            read.moved = now  # the pause was not the store's
            return
        rule = self._options.slowness
        stalled = has_stalled(read.moved, now, rule)
        if stalled:
            self.stalls += 1
            count, seconds = now.received_bytes - read.moved.received_bytes, now.at_s - read.moved.at_s
            read.watch.interrupt(f"it stalled, {count} bytes in {seconds:.1f} s")
            self._tell("storage.stalled", read)
        if stalled is not None:
            read.moved = now

    def _late(self, running: list[Read], now_s: float, *, midway: bool) -> list[Read]:
        rule = self._options.slowness
        # before many have finished, what is usual midway is not known
        ordinary = usual(self._finished) if rule.hedge_share and len(self._finished) >= _ENOUGH * midway else None
        if ordinary is None:
            return []
        budget_bytes = self._budget_bytes * (rule.midway_share if midway else 1)
        at_risk = _CHUNKS_AT_RISK * self._options.chunk_bytes
        open_bytes = at_risk * sum(read.pair is not None and read is read.pair.hedge for read in running)
        late = []
        for read in running:
            if read.whole or read.pair is not None or read.watch.given_up:
                continue
            if read.writing or read.watch.asked_s is None:
                continue  # the store is not what is waited for
            seen = Running(read.gap.length, read.watch.received_bytes, now_s - read.began_s)
            cost_bytes = min(at_risk, read.gap.stop - read.position)
            if not is_late(seen, ordinary, rule, midway=midway):
                continue
            if self.twice_bytes + open_bytes + cost_bytes > budget_bytes:
                break
            open_bytes += cost_bytes
            rest = ByteRange(read.position, read.gap.stop)
            hedge = Read(read.filling, rest, rest.start, ReadWatch(beyond=True))
            read.pair = hedge.pair = Pair(read, hedge)
            self._running[hedge] = None
            self.hedges += 1
            self._tell("storage.hedged", read)
            late.append(hedge)
        return late

    def _tell(self, what: str, read: Read) -> None:
        received = read.watch.received_bytes
        self._timeline.mark(what, "network", file=read.filling.name, range=str(read.gap), received_bytes=received)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _bring_whole(self, filling: Filling, buffer: memoryview) -> None:
        """From a store that always sends all of an object: once, from its beginning (S-09)."""
        with self._lock:
            first = filling not in self._sequential
            self._sequential.add(filling)
        if not first or filling.catch_up():
            return
        for left in reversed(range(self._options.retry.attempts)):
            try:
                self._run(Read(filling, filling.whole, 0, ReadWatch(), whole=True), buffer)
            except WrongRange as error:
                # it broke, and the rest could not be had alone: all of it again
                if not error.fields.get("ignores_range") or not left:
                    raise
            else:
                return

    def _run(self, read: Read, buffer: memoryview) -> None:
        with self._lock:
            first, self._sent_first = not self._sent_first, True
            self._running[read] = None
        if first:
            self._timeline.mark("storage.first_range", "network", key=read.filling.name)
        try:
            self._receive(read, buffer)
        except (StorageError, InvocationCancelled):
            if not self._is_covered(read) or self._cancel.is_set():
                raise
            self._wait_for_other(read)
        else:
            self._won(read)
        finally:
            with self._ended:
                self._running.pop(read, None)
                self._ended.notify_all()

    def _receive(self, read: Read, buffer: memoryview) -> None:
        name, identity, gap = read.filling.name, read.filling.slot.identity, read.gap
        handed_over = 0
        request = RangeRequest(name, gap.start, gap.length, identity.version, read.watch)
        try:
            with closing(self._source.read_chunks(request, buffer)) as chunks:
                for answer in chunks:
                    if self._cancel.is_set() or read.watch.given_up:
                        raise InvocationCancelled("the stream was cancelled")
                    _check_size(answer, name, identity.size_bytes)
                    handed_over += answer.length_bytes
                    with self._lock:
                        self.fetched_bytes += answer.length_bytes
                    self._take(read, buffer[: answer.length_bytes])
        finally:
            if read.pair is not None and read.watch.given_up:
                with self._lock:
                    dropped_bytes = max(0, read.watch.received_bytes - handed_over)
                    self.fetched_bytes += dropped_bytes
                    self.twice_bytes += dropped_bytes
        if read.position < gap.stop:
            raise TruncatedRead(
                f"the store gave {read.position - gap.start} of {gap.length} bytes of {name} from {gap.start}",
                key=name,
                range=str(gap),
            )

    def _take(self, read: Read, data: memoryview) -> None:
        """Write a chunk, unless the other one of a pair has brought it already."""
        part = ByteRange(read.position, read.position + len(data))
        fresh_bytes = len(data)
        with self._lock:
            pair = read.pair
            read.writing = True
            if pair is not None:
                fresh_bytes = sum(each.length for each in pair.seen.missing(part))
                self.twice_bytes += len(data) - fresh_bytes
                pair.seen.add(part)
        began_s = time.monotonic()
        if fresh_bytes:
            read.filling.write(part.start, data)
        with self._lock:
            read.position = part.stop
            read.writing, read.moved = False, None
            self.disk_s += time.monotonic() - began_s
            if pair is None or read is pair.slow:
                return
            if read.position >= pair.slow.ahead_bytes:
                pair.slow.watch.give_up()
            elif self.twice_bytes > self._budget_bytes and not pair.slow.watch.given_up:
                read.watch.give_up()

    def _won(self, read: Read) -> None:
        watch = read.watch
        with self._lock:
            seconds = time.monotonic() - read.began_s
            first_byte_s = 0.0 if watch.first_byte_s is None else min(watch.first_byte_s, seconds)
            self._finished.append(Finished(read.gap.length, first_byte_s, seconds))
            if read.pair is not None:
                read.pair.other(read).watch.give_up()

    def _is_covered(self, read: Read) -> bool:
        """Whether a read that ended without all its bytes is not missed, since the other of its pair brings them."""
        with self._lock:
            # in one step with the look at the other: when both fail, the second one is told
            self._running.pop(read, None)
            if read.pair is None or read.watch.given_up:
                return read.pair is not None
            other = read.pair.other(read)
            return other in self._running and not other.watch.given_up

    def _wait_for_other(self, read: Read) -> None:
        """Until the winner has brought what this read was for: who asked for it goes on with those bytes."""
        assert read.pair is not None
        other = read.pair.other(read)
        with self._ended:
            while other in self._running and not self._cancel.is_set():
                self._ended.wait(_LOOK_S)


def _check_size(answer: RangeAnswer, name: str, size_bytes: int) -> None:
    if answer.info.size_bytes != size_bytes:
        raise ObjectChanged(f"{name} has {answer.info.size_bytes} bytes now, not {size_bytes} as listed", key=name)
