"""Objects of a store into the cache: what there is, what is missing, and then all of it by parallel range reads.

`prepare` says what will be streamed and where (the manifest), `run` brings it: small files and the beginnings of all
shards first, then, once its header has been checked, each shard's parts in the order in which they are wanted. One
queue serves all connections, so no connection waits for another's share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from adapter.checkpoint.header import Header
from adapter.checkpoint.ranges import ByteRange, split
from adapter.checkpoint.use_order import parts_in_use_order
from adapter.errors import (
    AdapterError,
    CacheError,
    CheckpointError,
    InitTimeout,
    InvocationCancelled,
    LeaseTimeout,
    NoSpace,
    ObjectChanged,
    TensorMismatch,
)
from adapter.storage.base import RangeSource
from adapter.storage.concurrency import ConcurrencyRule, Gate
from adapter.storage.retry import RetryingSource
from adapter.streaming.cache import Cache
from adapter.streaming.fetching import Fetching, Read
from adapter.streaming.filling import Filling, Hold
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import MEBIBYTE, Progress, StreamOptions
from adapter.streaming.partial_filling import FIRST_BYTES
from adapter.streaming.preparation import Preparation
from adapter.streaming.reader import read_header
from adapter.streaming.work import Work
from adapter.timeline import Timeline

_HEDGE, _FIRST, _HEAD, _BULK = range(4)
_FOLLOW_S = 0.01
"""How often another fetcher's progress is looked at."""
_LEASE_S = 0.1
"""How often the lease of another is tried: a dead holder is replaced within this."""
_TELL_S = 5.0
"""How often a wait for another fetcher is told in the timeline."""
_LOOK_S = 0.05
"""How often it is looked for reads that are too slow: a part usually takes longer."""
_LEFT_S = 0.1
"""How long threads may take to end whose reads were given up and cannot be broken off."""
_JOIN_S = 2.0
"""How long threads may take to end after a failure; one that hangs in the network is left behind."""


class Streamer:
    """Streams one checkpoint into a cache. `with` owns its files and leases; the source stays the caller's.

    Args:
        source: Where the objects are.
        cache: Where they go.
        options: How.
        timeline: Where spans are recorded; None keeps them in memory.
    """

    def __init__(
        self, source: RangeSource, cache: Cache, options: StreamOptions, timeline: Timeline | None = None
    ) -> None:
        self.options = options
        self.timeline: Timeline = timeline or Timeline("fetcher")
        self._cancel = threading.Event()
        deadline_s = options.deadline.at_s if options.deadline is not None else None
        gate = Gate(ConcurrencyRule(first=options.connections, most=options.reads_at_most))
        self._source = RetryingSource(source, options.retry, gate=gate, cancel=self._cancel, deadline_s=deadline_s)
        self._fetching = Fetching(self._source, options, self.timeline, self._cancel)
        self._preparation = Preparation(self._source, cache, options, self.timeline, self._cancel)
        self._fillings: tuple[Filling, ...] = ()
        self._use_order: dict[str, int] = {}
        self._work = Work(options.connections, options.chunk_bytes, "stream")
        self._begun_s: float | None = None
        self._ended_s: float | None = None

    def prepare(self, order_hint: Sequence[str] = (), tensor_hint: Sequence[str] = ()) -> StreamManifest:
        """What is streamed and where it will be; every file in it exists under one of its names.

        Args:
            order_hint: Names of shards that are wanted first.
            tensor_hint: Names of tensors that are wanted first, in whatever shard.

        Raises:
            StorageError: The store could not be read.
            CheckpointError: There is no complete checkpoint.
            CacheError: The cache cannot hold it: not writable, no space.
            InitTimeout, InvocationCancelled: Time is up; `cancel` was called.
        """
        self._use_order = {name: number for number, name in enumerate(tensor_hint)}
        try:
            manifest = self._preparation.prepare(order_hint, self._fetch_now)
            self._fillings = tuple(self._preparation.fillings.values())
            return manifest
        except OSError as error:
            self._give_up(error)
            raise _cache_error(error) from error
        except BaseException as error:
            self._give_up(error)
            raise

    @property
    def notice(self) -> str | None:
        """What whoever runs this should know of the cache, such as that another directory is used; after `prepare`."""
        return self._preparation.notice

    def run(self) -> Progress:
        """Bring everything that is wanted; returns when every object is published, but for shards with holes.

        Raises:
            StorageError, CheckpointError, CacheError: The first failure; everything else has stopped.
            LeaseTimeout: Another process was filling the last of it when the deadline passed.
            InitTimeout: The deadline passed.
            InvocationCancelled: `cancel` was called.
        """
        self._begun_s = time.monotonic()
        with self.timeline.span("weights.stream", "network") as span:
            try:
                # small files first also in this loop: a thread takes the first task while the next is still put
                for order, filling in sorted(enumerate(self._fillings), key=lambda each: each[1].kind == "shard"):
                    if filling.hold is Hold.OURS:
                        self._enqueue(order, filling)
                self._watch()
            except BaseException as error:
                self._cancel.set()
                self._work.fail(error)
                self._join()
                self._give_up(error)
                if isinstance(error, OSError):
                    raise _cache_error(error) from error
                raise
            finally:
                self._ended_s = time.monotonic()
                progress = self.progress()
                span.add(**progress.facts())
            self._join()
        return progress

    def progress(self) -> Progress:
        """How far it is. From any thread."""
        fetching, source = self._fetching, self._source
        seconds = 0.0 if self._begun_s is None else (self._ended_s or time.monotonic()) - self._begun_s
        return Progress(
            total_bytes=sum(filling.wanted_bytes for filling in self._fillings),
            done_bytes=sum(filling.done_bytes for filling in self._fillings),
            from_cache_bytes=sum(filling.from_cache_bytes for filling in self._fillings),
            fetched_bytes=fetching.fetched_bytes,
            requests=source.requests,
            retries=source.retries,
            throttles=source.gate.throttles,
            stalls=fetching.stalls,
            hedges=fetching.hedges,
            twice_bytes=fetching.twice_bytes,
            concurrency=source.gate.limit,
            seconds=seconds,
            held_s=source.seconds.held,
            first_byte_s=source.seconds.first_byte,
            body_s=source.seconds.body,
            disk_s=fetching.disk_s,
        )

    def cancel(self) -> None:
        """End `prepare` or `run` soon, with `InvocationCancelled`. From any thread or signal handler."""
        self._cancel.set()

    def sync(self) -> None:
        """Make what was streamed survive a power cut. Takes long: for after readiness (D8)."""
        for filling in self._fillings:
            # a cache that is read-only or was cleared meanwhile has nothing to sync
            with suppress(OSError):
                if filling.hold is Hold.DONE and not filling.slot.synced():
                    filling.slot.sync()

    def close(self) -> None:
        """Give back files and leases."""
        self._cancel.set()
        if self._join():
            for filling in self._preparation.fillings.values():
                filling.close()
        else:
            # a thread still hangs in a read and may yet write: its files stay open until the process ends
            for filling in self._preparation.fillings.values():
                filling.release()

    def _join(self) -> bool:
        """Wait for the threads; not for long where the only ones left wait for answers that nobody wants any more."""
        if self._cancel.is_set():
            self._fetching.give_up()
        complete = all(filling.ended for filling in self._fillings)
        return self._work.close(_LEFT_S if complete and self._fetching.left_behind else _JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Until everything is published: look at failures, time, and what other fetchers do."""
        tried_s = told_s = time.monotonic()
        while True:
            seen = self._work.ended
            if self._cancel.is_set():
                raise InvocationCancelled("the stream was cancelled")
            if self._work.error is not None:
                raise self._work.error
            waiting = [filling for filling in self._fillings if not filling.ended]
            if not waiting:
                return
            self._check_time(waiting)
            now_s = time.monotonic()
            try_leases = now_s - tried_s >= _LEASE_S
            tried_s = now_s if try_leases else tried_s
            followed = [filling for filling in waiting if filling.hold is Hold.FOLLOWED]
            for filling in followed:
                self._follow(filling, try_leases)
            if followed and now_s - told_s >= _TELL_S:
                told_s = now_s
                first = followed[0]
                self.timeline.mark(
                    "lease.wait", "network", file=first.name, bytes=first.done_bytes, of=first.wanted_bytes
                )
            self._look_at_reads()
            self._work.wait(seen, _FOLLOW_S if followed else _LOOK_S)

    def _look_at_reads(self) -> None:
        """Give slow reads another try, and the work as many threads as help."""
        total_bytes = sum(filling.wanted_bytes - filling.from_cache_bytes for filling in self._fillings)
        for hedge in self._fetching.look(idle=self._work.idle, total_bytes=total_bytes):
            self._work.put((_HEDGE, 0, hedge.gap.start), partial(self._bring_again, hedge))
        self._work.allow(self._source.gate.limit + self._fetching.doubled)

    def _check_time(self, waiting: list[Filling]) -> None:
        deadline = self.options.deadline
        if deadline is None or not deadline.passed:
            return
        first = waiting[0]
        state = f"{first.name}: {first.done_bytes} of {first.wanted_bytes} bytes"
        if all(filling.hold is Hold.FOLLOWED for filling in waiting):
            raise LeaseTimeout(
                f"time is up while another process fills the cache ({state})", path=str(first.slot.directory)
            )
        raise InitTimeout(f"time is up while weights are streamed ({state})", stage="weights.stream")

    def _follow(self, filling: Filling, try_lease: bool) -> None:
        filling.poll()
        if filling.catch_up() or filling.settle():
            return
        if try_lease and filling.take():
            self._tell("lease.taken_over", filling)
        elif time.monotonic() - filling.progressed_s > self.options.stall_s:
            self._tell("lease.stalled", filling)
            filling.go_on_without_lease()
        if filling.hold is Hold.OURS and not filling.catch_up():
            self._enqueue(self._fillings.index(filling), filling)

    def _tell(self, what: str, filling: Filling) -> None:
        self.timeline.mark(what, "network", file=filling.name, bytes=filling.done_bytes, of=filling.wanted_bytes)

    def _give_up(self, error: BaseException) -> None:
        """Leave what is worth resuming; give back the room that a full disk needs, drop what is no checkpoint."""
        for filling in self._preparation.fillings.values():
            if filling.ended:
                continue
            gone = isinstance(error, ObjectChanged) and _is_about(error, filling.name)
            useless = isinstance(error, CheckpointError) and not isinstance(error, TensorMismatch)
            if gone or useless or isinstance(error, NoSpace):
                filling.discard()
            filling.release()

    # -- filling ------------------------------------------------------------------------------------------------------

    def _enqueue(self, order: int, filling: Filling) -> None:
        if filling.kind == "shard":
            self._work.put((_HEAD, order, 0), partial(self._bring_head, order, filling))
        else:
            self._put_parts(_FIRST, order, filling)

    def _put_parts(self, phase: int, order: int, filling: Filling, header: Header | None = None) -> None:
        parts = [part for gap in filling.unfinished() for part in split(gap, self.options.part_bytes)]
        first = parts_in_use_order(header, parts, self._use_order) if header is not None else {}
        for part in parts or [ByteRange(0, 0)]:
            # what an earlier start asked for comes first, over all shards, then shard by shard
            rank = first.get(part, len(self._use_order) + order)
            self._work.put((phase, rank, part.start), partial(self._bring, filling, part))

    def _bring_head(self, order: int, filling: Filling, buffer: memoryview) -> None:
        """The shard's beginning, checked; only then is the rest of it worth fetching."""
        first_bytes = FIRST_BYTES if filling.sparse else MEBIBYTE
        with self.timeline.span("weights.header", "network", file=filling.name):
            self._fetching.bring(filling, ByteRange(0, min(first_bytes, filling.size_bytes)), buffer)
            header = self._header(filling, buffer)
            filling.plan(header)
        self._preparation.make_room_for_parts()
        self._put_parts(_BULK, order, filling, header)

    def _header(self, filling: Filling, buffer: memoryview) -> Header:
        def read(wanted: ByteRange) -> bytes:
            self._fetching.bring(filling, wanted, buffer)
            return filling.read(wanted)

        return read_header(read, filling.name, filling.size_bytes, self.options.header_limit_bytes)

    def _bring(self, filling: Filling, part: ByteRange, buffer: memoryview) -> None:
        self._fetching.bring(filling, part, buffer)
        filling.finish()

    def _bring_again(self, hedge: Read, buffer: memoryview) -> None:
        self._fetching.bring_again(hedge, buffer)
        hedge.filling.finish()

    def _fetch_now(self, filling: Filling) -> None:
        """A small object, in the calling thread, which cannot watch itself meanwhile; not published yet."""
        over = threading.Event()

        def watch() -> None:
            while not over.wait(_LOOK_S):
                self._fetching.look(idle=False, total_bytes=0)
                if self._cancel.is_set():
                    self._fetching.give_up()

        watcher = threading.Thread(target=watch, name="stream-watch", daemon=True)
        watcher.start()
        try:
            self._fetching.bring(filling, filling.whole, memoryview(bytearray(self.options.chunk_bytes)))
        finally:
            over.set()
            watcher.join()


def _is_about(error: AdapterError, name: str) -> bool:
    """Whether an error of the store concerns that object, named with or without the address's prefix."""
    key = error.fields.get("key")
    return not isinstance(key, str) or key == name or key.endswith(f"/{name}")


def _cache_error(error: OSError) -> CacheError:
    """What the disk did, as an error of ours: everything that talks to a network maps its own."""
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else None
    return CacheError(f"the cache could not be used: {error}", path=path, cause=type(error).__name__)
