"""The objects of a checkpoint as a reader sees them: what of each is there, and how long one waited for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from logging import getLogger
from pathlib import Path

from adapter.checkpoint.header import Header
from adapter.checkpoint.index import parse_index
from adapter.checkpoint.ranges import ByteRange
from adapter.checkpoint.tensor_filter import TensorFilter, rows_of
from adapter.device.names import examples
from adapter.device.tensors import MappedShard, MappedTensor, check_dtypes
from adapter.errors import CacheError, MissingTensor, WeightIndexError
from adapter.streaming.manifest import ObjectEntry
from adapter.streaming.reader import ObjectReader
from adapter.streaming.waiting import Deadline, Failure, wait_for
from adapter.timeline import Timeline

_WAIT_WORTH_A_SPAN_S = 0.001
_logger = getLogger("adapter.weights")
_SEAL_S = 60.0
"""A complete file gets its final name at once; one that has none for so long lost its fetcher."""


class TensorNotFound(MissingTensor, KeyError):
    """The checkpoint has no tensor of that name; as a mapping's missing key, so that `get` and `in` work."""


@dataclass(frozen=True, slots=True)
class UseOrder:
    """What was asked for first, first: a hint for the next start's stream."""

    shards: tuple[str, ...]
    tensors: tuple[str, ...]


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

    def __init__(self, entry: ObjectEntry, waiting: Waiting, owned: ExitStack, tensors: TensorFilter) -> None:
        self.entry = entry
        self._tensors = tensors
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
        """The header, with what is wanted alone; waits for it the first time."""
        if self._header is None:
            begun_s = time.monotonic()
            header = self._tensors.narrow(self._reader.header(), file=self.entry.name)
            self._waiting.seen(self.entry.name, time.monotonic() - begun_s, part="header")
            check_dtypes(header, file=self.entry.name)
            self._header = header
        return self._header

    def all_names(self) -> Iterable[str]:
        """Names of the tensors in the file, wanted or not."""
        return self._reader.header().tensors

    def tensor(self, name: str, rows: tuple[int, int] | None = None) -> MappedTensor:
        """A tensor, or rows of it, once every page of it is there.

        Raises:
            TensorMismatch: It does not have these rows.
        """
        info = self.header().tensors[name]
        if rows is not None:
            info = rows_of(info, *rows, file=self.entry.name)
        self._waiting.seen(self.entry.name, self._reader.wait(info.range), tensor=info.name, bytes=info.length_bytes)
        return self._mapped().tensor_of(info)

    def _mapped(self) -> MappedShard:
        """The shard; its file has its final size, its bytes may be missing."""
        header = self.header()
        with self._lock:
            if self._shard is None:
                self._shard = MappedShard(self._reader.open(), header, name=self.entry.name)
                self._owned.callback(self._shard.close)
            return self._shard

    def content(self) -> bytes:
        """All of it.

        Raises:
            CacheError: Only some of its tensors are fetched.
        """
        self._refuse_holes()
        whole = ByteRange(0, self.entry.size_bytes)
        self._waiting.seen(self.entry.name, self._reader.wait(whole), bytes=whole.length)
        return self._reader.read(whole)

    def sealed(self) -> Path:
        """Its final name, once it has that.

        Raises:
            CacheError: Only some of its tensors are fetched.
        """
        self._refuse_holes()
        self._waiting.seen(self.entry.name, self._reader.wait(None), bytes=self.entry.size_bytes)
        path = self.entry.published
        wait_for(
            lambda: path if path.exists() else None,
            lambda: f"the final name of {self.entry.name}",
            failure=self._waiting.failure,
            deadline=self._waiting.deadline or Deadline.after(_SEAL_S),
        )
        return path

    def _refuse_holes(self) -> None:
        if self._tensors and self.entry.kind == "shard" and not self._reader.complete:
            raise CacheError(
                f"{self.entry.name} is no whole file: only some of its tensors are fetched (only=, skip=)",
                path=str(self.entry.published),
            )


def refuse_unused(
    tensors: TensorFilter, places: Iterable[str], shards: Iterable[CheckpointObject], *, address: str
) -> None:
    """Refuse patterns that fit no tensor: a misspelt one must not give a model less than it needs.

    Raises:
        MissingTensor: One does not.
    """
    unused = tensors.unused(places)
    if unused:
        names = [name for shard in shards for name in shard.all_names()]
        raise TensorNotFound(
            f"the checkpoint {address} has no tensor that fits {', '.join(map(repr, unused))} in only=; "
            f"what was looked at holds {len(names)}: {examples(names)}",
            tensor=unused[0],
        )


def find_places(shards: Iterable[CheckpointObject], index_file: CheckpointObject | None) -> dict[str, CheckpointObject]:
    """Tensor → shard, in file order; waits for headers and the index.

    Args:
        shards: In their order.
        index_file: The index, where it is to be compared with the shards.

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
