"""The objects of a checkpoint as a reader sees them: what of each is there, and how long one waited for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path

from adapter.checkpoint.header import Header, TensorInfo
from adapter.checkpoint.index import parse_index
from adapter.checkpoint.ranges import ByteRange
from adapter.device.tensors import MappedShard, check_dtypes
from adapter.errors import WeightIndexError
from adapter.streaming.manifest import ObjectEntry
from adapter.streaming.reader import ObjectReader
from adapter.streaming.waiting import Deadline, Failure, wait_for
from adapter.timeline import Timeline

_WAIT_WORTH_A_SPAN_S = 0.001
_logger = getLogger("adapter.weights")
_SEAL_S = 60.0
"""A complete file gets its final name at once; one that has none for so long lost its fetcher."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What bounds and records every wait for the stream."""

    failure: Failure | None = None
    deadline: Deadline | None = None
    timeline: Timeline = field(default_factory=lambda: Timeline("worker"))

    def seen(self, file: str, seconds: float, **fields: str | int) -> None:
        """Record a wait that just ended, if it is worth a span."""
        if seconds > _WAIT_WORTH_A_SPAN_S:
            now_ns = time.monotonic_ns()
            self.timeline.record("weights.wait", "cpu", now_ns - int(seconds * 1e9), now_ns, file=file, **fields)


class CheckpointObject:
    """One object of the checkpoint: what of it is there, and its tensors where it is a shard."""

    def __init__(self, entry: ObjectEntry, waiting: Waiting, owned: ExitStack) -> None:
        self.entry = entry
        self._waiting = waiting
        self._owned = owned
        self._lock = threading.Lock()
        # who streams enforces the limit on headers, and fails before a larger one is complete
        limit_bytes = entry.size_bytes
        self._reader = ObjectReader(entry, waiting.failure, waiting.deadline, header_limit_bytes=limit_bytes)
        self._header: Header | None = None
        self._shard: MappedShard | None = None
        owned.callback(self._reader.close)

    def header(self) -> Header:
        """Waits for it the first time."""
        if self._header is None:
            begun_s = time.monotonic()
            header = self._reader.header()
            self._waiting.seen(self.entry.name, time.monotonic() - begun_s, part="header")
            check_dtypes(header, file=self.entry.name)
            self._header = header
        return self._header

    def wait_for(self, info: TensorInfo) -> None:
        """Until every page that the tensor touches is there."""
        self._waiting.seen(self.entry.name, self._reader.wait(info.range), tensor=info.name, bytes=info.length_bytes)

    def mapped(self) -> MappedShard:
        """The shard; its file has its final size, its bytes may be missing."""
        header = self.header()
        with self._lock:
            if self._shard is None:
                self._shard = MappedShard(self._reader.open(), header, name=self.entry.name)
                self._owned.callback(self._shard.close)
            return self._shard

    def content(self) -> bytes:
        """All of it."""
        whole = ByteRange(0, self.entry.size_bytes)
        self._waiting.seen(self.entry.name, self._reader.wait(whole), bytes=whole.length)
        return self._reader.read(whole)

    def sealed(self) -> Path:
        """Its final name, once it has that."""
        self._waiting.seen(self.entry.name, self._reader.wait(None), bytes=self.entry.size_bytes)
        path = self.entry.published
        wait_for(
            lambda: path if path.exists() else None,
            lambda: f"the final name of {self.entry.name}",
            failure=self._waiting.failure,
            deadline=self._waiting.deadline or Deadline.after(_SEAL_S),
        )
        return path


def find_places(shards: Iterable[CheckpointObject], index_file: CheckpointObject | None) -> dict[str, CheckpointObject]:
    """Tensor → shard, in file order; waits for headers and the index.

    Raises:
        WeightIndexError: The index is malformed, or two shards hold a tensor of one name.
        NotSafetensors, HeaderError, UnsupportedDtype: A shard's header cannot be used.
        AdapterError, InitTimeout: The stream failed, or took too long.
    """
    places: dict[str, CheckpointObject] = {}
    total_bytes = 0
    for shard in shards:
        for name, info in shard.header().tensors.items():
            total_bytes += info.length_bytes
            other = places.setdefault(name, shard)
            if other is not shard:
                raise WeightIndexError(
                    f"tensor {name!r} is in {other.entry.name} and in {shard.entry.name}", tensor=name
                )
    if index_file is not None:
        note = parse_index(index_file.content(), file=index_file.entry.name).total_size_note(total_bytes)
        if note:
            _logger.warning("%s: %s", index_file.entry.name, note)
    return places
