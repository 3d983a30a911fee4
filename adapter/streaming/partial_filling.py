"""An object of which only some bytes are wanted: the file has its full size, and holes.

It is filled, journalled and adopted as any other. What differs is its end: once everything that is wanted is there it
gives the lease back and stays as it is, file and journal, never published. Readers find their bytes by the journal;
the next stream, which may want other bytes or all of them, goes on with the same file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from adapter.checkpoint.header import Header
from adapter.checkpoint.ranges import ByteRange
from adapter.checkpoint.tensor_filter import TensorFilter
from adapter.errors import CheckpointError
from adapter.streaming.filling import Filling, Hold
from adapter.streaming.integrity import Piece
from adapter.streaming.journal import JournalReader
from adapter.streaming.manifest import Kind
from adapter.streaming.reader import PAGE_BYTES, read_header
from adapter.streaming.slot import PartNames, Slot

FIRST_BYTES = 64 << 10
"""Read of a shard before its header is known: it has the header of some 500 tensors, and little else."""


class PartialFilling(Filling):
    """One shard, narrowed to some of its tensors.

    Args:
        name: The object's key relative to the address, safe as a file's name.
        kind: What it is.
        slot: Its place in the cache.
        tensors: What is wanted of it.
    """

    sparse: ClassVar[bool] = True

    def __init__(self, name: str, kind: Kind, slot: Slot, tensors: TensorFilter) -> None:
        super().__init__(name, kind, slot)
        self._tensors = tensors
        self._wanted: list[ByteRange] = [ByteRange(0, min(FIRST_BYTES, self.size_bytes))]
        self._planned = False
        self._there_bytes = 0

    @property
    def wanted_bytes(self) -> int:
        """How many bytes are wanted, as far as is known: the beginning, until the header is there."""
        return self.size_bytes if self.hold is Hold.DONE else sum(each.length for each in self._wanted)

    @property
    def done_bytes(self) -> int:
        """How many of these are there."""
        if self.hold is Hold.DONE or self._journal is None:
            return super().done_bytes
        with self._lock:
            return self.wanted_bytes - sum(gap.length for gap in self._gaps(self._journal))

    def plan(self, header: Header) -> None:
        """Take from the header what is wanted.

        Raises:
            TensorMismatch: A tensor does not have the rows that are wanted.
        """
        self._wanted = self._tensors.ranges(header, PAGE_BYTES, file=self.name)
        self._planned = True
        self.from_cache_bytes: int = min(self._there_bytes, self.done_bytes)

    def unfinished(self) -> list[ByteRange]:
        """What is wanted and not there yet."""
        with self._lock:
            if self._journal is None or self.hold is Hold.DONE:
                return []
            self._journal.poll()
            return self._gaps(self._journal)

    def settle(self) -> bool:
        """Whether everything that is wanted is there; from then on another may fill the rest."""
        if self.ended:
            return True
        if self._journal is None or not (self._planned or self._plan_by_what_is_there()) or self.unfinished():
            return False
        with self._lock:
            if self.ended:
                return True
            self.hold = Hold.ENOUGH
        self.release()
        return True

    def finish(self) -> bool:
        """Publish it if every byte is there, or settle; True when it has ended.

        Raises:
            CacheError, ChecksumMismatch: As `Filling.finish`.
        """
        return super().finish() or self.settle()

    def adopt(self, wanted: PartNames | None) -> bool:
        """As `Filling.adopt`."""
        adopted = super().adopt(wanted)
        self._remember()
        return adopted

    def salvage(self, descriptor: int, pieces: Iterable[Piece]) -> None:
        """As `Filling.salvage`.

        Raises:
            NoSpace: The disk is full.
        """
        super().salvage(descriptor, pieces)
        self._remember()

    def _gaps(self, journal: JournalReader) -> list[ByteRange]:
        return [gap for each in self._wanted for gap in journal.done.missing(each)]

    def _remember(self) -> None:
        self._there_bytes = self._journal.done.total if self._journal is not None else 0

    def _plan_by_what_is_there(self) -> bool:
        """Plan by the header that another process brought, if it is there."""

        class Missing(Exception):
            pass

        def read(wanted: ByteRange) -> bytes:
            if self._journal is None or self.missing(wanted):
                raise Missing
            return self.read(wanted)

        try:
            # who fills it holds it to the limit
            header = read_header(read, self.name, self.size_bytes, self.size_bytes)
        except (Missing, CheckpointError):
            return False
        self.plan(header)
        return True
