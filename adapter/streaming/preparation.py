"""What is to be streamed, and a file for each of it: everything before the bulk of the bytes."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from adapter.checkpoint.index import WeightIndex, parse_index
from adapter.errors import (
    AdapterError,
    CacheError,
    CacheNotWritable,
    ChecksumMismatch,
    ConfigurationError,
    InitTimeout,
    InvocationCancelled,
    WeightIndexError,
)
from adapter.storage.base import ObjectInfo
from adapter.storage.retry import RetryingSource
from adapter.streaming.cache import Cache
from adapter.streaming.eviction import make_room
from adapter.streaming.filling import Filling, Hold
from adapter.streaming.integrity import DIGESTS_NAME, parse_sha256
from adapter.streaming.listing import find_checkpoint, list_objects
from adapter.streaming.manifest import Kind, StreamManifest
from adapter.streaming.options import StreamOptions
from adapter.streaming.partial_filling import PartialFilling
from adapter.streaming.private import is_read_only, not_writable
from adapter.streaming.record import Identity, Trust
from adapter.streaming.selection import FILE_LIMIT_BYTES, Wanted, without_needless
from adapter.streaming.slot import PartNames
from adapter.streaming.soundness import Soundness
from adapter.streaming.waiting import wait_for
from adapter.timeline import Timeline

_DESCRIPTORS = 4
"""Files held open for one object: lease, filling file, journal for reading and for writing."""
_OTHER_DESCRIPTORS = 256
"""Connections, logs, whatever else the process has open."""


class Preparation:
    """Lists, selects, takes leases and makes files.

    Args:
        source: Where the objects are.
        cache: Where they go.
        options: How.
        timeline: Where spans are recorded.
        cancel: Ends waits when set.
    """

    def __init__(
        self,
        source: RetryingSource,
        cache: Cache,
        options: StreamOptions,
        timeline: Timeline,
        cancel: threading.Event,
    ) -> None:
        self.fillings: dict[str, Filling] = {}
        """What was begun, by name; in the manifest's order once `prepare` has returned."""
        self.notice: str | None = None
        """What whoever runs this should know of the cache."""
        self._source = source
        self._cache = cache
        self._options = options
        self._timeline = timeline
        self._cancel = cancel
        self._read_only: CacheNotWritable | None = None
        self._soundness = Soundness(options, timeline, self._ended)
        self._room_lock = threading.Lock()

    def prepare(self, order_hint: Sequence[str], fetch: Callable[[Filling], None]) -> StreamManifest:
        """The manifest; every object in it is published, begun here, or followed.

        Args:
            order_hint: Names of shards that are wanted first.
            fetch: Brings all bytes of a small object, without publishing it.

        Raises:
            StorageError, CheckpointError, CacheError, InitTimeout, InvocationCancelled: As `Streamer.prepare`.
        """
        if self._options.tensors and self._options.verify != "size":
            raise ConfigurationError(
                f"verify={self._options.verify} compares whole files, and where only some tensors are wanted (only=, "
                "skip=, COLDSTART_ONLY_TENSORS, COLDSTART_SKIP_TENSORS) there are none: use one or the other"
            )
        self._open_cache()
        previous = self._options.previous
        if previous is not None:
            wanted = [Wanted(ObjectInfo(entry.key, entry.size_bytes, entry.version), entry.kind) for entry in previous]
        else:
            wanted = list(self._select(order_hint, fetch))
        if self._options.verify == "sha256":
            self._soundness.digests = self._read_digests(wanted, fetch)
        self._make_room(wanted)
        _allow_descriptors(len(wanted) * _DESCRIPTORS + _OTHER_DESCRIPTORS)
        for each in wanted:
            if each.info.key not in self.fillings:
                self._begin(each.info, each.kind)
        self.fillings = {each.info.key: self.fillings[each.info.key] for each in wanted}
        entries = tuple(filling.entry() for filling in self.fillings.values())
        return StreamManifest(self._options.address, self._source.store, entries, self._options.tensors)

    # -- what ---------------------------------------------------------------------------------------------------------

    def _select(self, order_hint: Sequence[str], fetch: Callable[[Filling], None]) -> tuple[Wanted, ...]:
        with self._timeline.span("storage.list", "network") as span:
            listing = list_objects(self._source, connections=self._options.connections)
            span.add(objects=len(listing.objects), listed=listing.denied is None)
        found = find_checkpoint(
            self._source,
            listing,
            lambda info: self._read_index(info, fetch),
            address=self._options.address,
            order=order_hint,
        )
        selection = without_needless(found.selection, found.index, self._options.tensors)
        if selection.skipped:
            self._timeline.mark(
                "storage.skipped", "network", count=len(selection.skipped), names=", ".join(selection.skipped[:20])
            )
        return selection.wanted

    def _read_index(self, info: ObjectInfo, fetch: Callable[[Filling], None]) -> WeightIndex:
        if info.size_bytes > FILE_LIMIT_BYTES:
            raise WeightIndexError(
                f"{info.key} has {info.size_bytes} bytes: no weight index is so large", file=info.key
            )
        filling = self._bring(info, "index", fetch)
        index = parse_index(filling.read(filling.whole), file=info.key)
        filling.finish()
        return index

    def _read_digests(self, wanted: Sequence[Wanted], fetch: Callable[[Filling], None]) -> Mapping[str, str]:
        """SHA-256 by name; what is checked against them must be known before anything is taken from the cache."""
        found = next((each for each in wanted if each.info.key == DIGESTS_NAME), None)
        if found is None:
            raise ChecksumMismatch(
                f"{self._options.address} has no {DIGESTS_NAME}, which verify=sha256 asks for; "
                f"sha256sum * > {DIGESTS_NAME} makes one",
                file=DIGESTS_NAME,
            )
        filling = self._bring(found.info, found.kind, fetch)
        digests = parse_sha256(filling.read(filling.whole), file=DIGESTS_NAME)
        filling.finish()
        for each in wanted:
            if each.kind == "shard" and each.info.key not in digests:
                raise ChecksumMismatch(f"{DIGESTS_NAME} does not list {each.info.key}", file=each.info.key)
        return digests

    def _bring(self, info: ObjectInfo, kind: Kind, fetch: Callable[[Filling], None]) -> Filling:
        """A small object, all of it, not published yet if it is ours."""
        filling = self._begin(info, kind)
        if filling.hold is Hold.FOLLOWED:
            wait_for(
                lambda: filling.catch_up() or filling.take() or None,
                lambda: f"{info.key}, which another process is fetching",
                failure=self._cancelled,
                deadline=self._options.deadline,
            )
        if filling.hold is Hold.OURS:
            fetch(filling)
        return filling

    # -- where --------------------------------------------------------------------------------------------------------

    def _open_cache(self) -> None:
        """S-23: whether it can be written is known before anything is fetched."""
        try:
            self._cache.make()
        except CacheNotWritable as error:
            # a cache that is complete serves all the same
            self._read_only = error
        except CacheError as error:
            # what is somebody else's is not even read
            self._cache = self._fallback(error)

    def _fallback(self, error: CacheError) -> Cache:
        """The cache that is used when the one that was asked for cannot be; told once.

        Raises:
            CacheError: There is none; the error that was given.
        """
        fallback = self._cache.fallback
        if fallback is None:
            raise error
        if self.notice is None:
            try:
                fallback.make(in_public=True)
            except CacheError:
                raise error from None
            self.notice = (
                f"{error.message}; meanwhile what is not in it goes to {fallback.root}, which may not survive this "
                "replica (COLDSTART_CACHE_FALLBACK=none refuses to start instead)"
            )
            self._timeline.mark("cache.fallback", "network", path=str(fallback.root), reason=error.message)
        return fallback

    def _make_room(self, wanted: Iterable[Wanted]) -> None:
        """S-19: before anything is fetched, so that nothing has to be thrown away half-way."""
        cache, needed_bytes, keep = self._cache, 0, set()
        for each in wanted:
            slot = self._cache.slot(self._identity(each.info))
            if slot.trust() is Trust.NONE and self._read_only is not None:
                if self._cache.fallback is None:
                    return
                cache = self._fallback(self._read_only)
                slot = cache.slot(slot.identity)
            keep.add(slot.directory)
            if slot.trust() is Trust.NONE and not self._is_partial(each.kind):
                needed_bytes += slot.identity.size_bytes - slot.allocated_bytes()
        self._evict(cache, needed_bytes, keep)

    def make_room_for_parts(self) -> None:
        """The same for what is wanted of a shard, which its header told. From any thread.

        Raises:
            NoSpace: There is not so much room.
        """
        if not self._options.tensors:
            return
        with self._room_lock:
            missing = [gap for each in self.fillings.values() if each.sparse for gap in each.unfinished()]
            if missing:
                cache = self._cache if self._read_only is None else self._fallback(self._read_only)
                keep = {each.slot.directory for each in self.fillings.values()}
                self._evict(cache, sum(gap.length for gap in missing), keep)

    def _evict(self, cache: Cache, needed_bytes: int, keep: Collection[Path]) -> None:
        for gone in make_room(cache, needed_bytes, keep):
            self._timeline.mark("cache.evicted", "network", file=gone.title, bytes=gone.bytes_on_disk)

    def _is_partial(self, kind: Kind) -> bool:
        return kind == "shard" and bool(self._options.tensors)

    def _begin(self, info: ObjectInfo, kind: Kind) -> Filling:
        filling = self._filling(info, kind, self._cache)
        if self._take_published(filling, alone=self._read_only is not None):
            return filling
        if self._read_only is not None:
            filling = self._filling(info, kind, self._fallback(self._read_only))
            if self._take_published(filling):
                return filling
        names = self._previous_names(filling)
        begun_s = time.monotonic()
        try:
            wait_for(
                lambda: self._claim(filling, names, begun_s) or None,
                lambda: f"{info.key}, which another process is about to fill",
                failure=self._cancelled,
                deadline=self._options.deadline,
            )
        except OSError as error:
            if is_read_only(error):
                raise not_writable(filling.slot.directory, error) from error
            raise
        return filling

    def _filling(self, info: ObjectInfo, kind: Kind, cache: Cache) -> Filling:
        slot = cache.slot(self._identity(info))
        if self._is_partial(kind):
            filling: Filling = PartialFilling(info.key, kind, slot, self._options.tensors)
        else:
            filling = Filling(info.key, kind, slot)
        self.fillings[info.key] = filling
        filling.sha256 = self._soundness.digest(info.key)
        if self._options.verify != "size" and kind == "shard":
            filling.ask_checksum = partial(self._source.stored_checksum, info.key, version=info.version)
        return filling

    def _take_published(self, filling: Filling, *, alone: bool = False) -> bool:
        """Take it from the cache as it is, unless readers of an earlier manifest wait for a filling file."""
        if self._previous_names(filling) in filling.slot.parts():
            return False
        return self._soundness.usable(filling, alone=alone) and filling.done_before()

    def _claim(self, filling: Filling, names: PartNames | None, begun_s: float) -> bool:
        """Take it from the cache, fill it, or follow who does; False when that cannot be told yet."""
        slot = filling.slot
        # looked at before its record is: a record is written first, so a file without one is really without proof
        there = os.path.lexists(slot.published)
        if not filling.take():
            if self._soundness.usable(filling, alone=False):
                return filling.done_before()
            if not os.path.lexists(slot.published) and filling.adopt(names):
                filling.hold = Hold.FOLLOWED
            elif time.monotonic() - begun_s > self._options.stall_s:
                filling.go_on_without_lease()
                filling.create(names)
            else:
                return False
            return True
        if self._soundness.usable(filling, alone=True):
            if not slot.trusted():
                slot.prove()
            if names not in slot.parts():
                done = filling.done_before()
                filling.release()
                return done
            there = False
        with slot.remains() as remains:
            if there:
                slot.drop_published()
            if not self._go_on(filling, names):
                return False
            for descriptor, pieces in remains:
                filling.salvage(descriptor, pieces)
        slot.clean(keep=filling.names)
        return True

    def _go_on(self, filling: Filling, names: PartNames | None) -> bool:
        """A filling file, the one that is there or a new one; False when it cannot be told yet."""
        if filling.adopt(names) and not self._soundness.usable_part(filling):
            filling.drop()
        if filling.names is None:
            try:
                filling.create(names)
            except FileNotFoundError:
                # only where locks lie: another took it for a dead holder's, filled it and published it
                if not filling.slot.trusted():
                    raise
                filling.release()
                return False
        return True

    def _identity(self, info: ObjectInfo) -> Identity:
        key = f"{self._options.address.rstrip('/')}/{info.key}"
        return Identity(self._source.store, key, info.version, info.size_bytes)

    def _previous_names(self, filling: Filling) -> PartNames | None:
        previous = self._options.previous
        entry = previous.find(filling.name) if previous is not None else None
        if entry is None or entry.partial.parent != filling.slot.directory:
            return None
        return PartNames(entry.partial, entry.journal)

    def _ended(self) -> AdapterError | None:
        deadline = self._options.deadline
        if deadline is not None and deadline.passed:
            return InitTimeout("time is up while cached weights are verified", stage="cache.verify")
        return self._cancelled()

    def _cancelled(self) -> AdapterError | None:
        return InvocationCancelled("the stream was cancelled") if self._cancel.is_set() else None


def _allow_descriptors(count: int) -> None:
    """Raise the soft limit on open files, as far as it may be: the usual 1024 are few for a hundred shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
