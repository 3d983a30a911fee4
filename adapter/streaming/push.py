"""Which files of a directory go into a store, and in which order: the index last, when its shards are there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from adapter.checkpoint.header import HEADER_LIMIT_BYTES
from adapter.errors import WeightIndexError
from adapter.storage.base import ObjectInfo
from adapter.storage.files import FileSource
from adapter.streaming.inspection import Inspection, inspect_checkpoint


@dataclass(frozen=True, slots=True)
class PushPlan:
    """What is sent, in this order."""

    objects: tuple[ObjectInfo, ...]
    """Files beside the shards, then shards, then the index."""
    inspection: Inspection
    """What the checkpoint holds; its headers were checked."""

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes."""
        return sum(info.size_bytes for info in self.objects)


def plan_push(directory: Path, *, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> PushPlan:
    """The plan for a local checkpoint, checked as a start would check it.

    Raises:
        StorageError: The directory cannot be read.
        CheckpointError: A start would refuse this checkpoint.
    """
    with FileSource(directory) as source:
        found = inspect_checkpoint(source, str(directory), header_limit_bytes=header_limit_bytes)
    if found.twice:
        name, places = next(iter(found.twice.items()))
        raise WeightIndexError(f"{directory}: tensor {name!r} is in {' and '.join(places)}", tensor=name)
    beside = [info for info in found.files if info.key != found.index_name]
    index = [info for info in found.files if info.key == found.index_name]
    return PushPlan((*beside, *(shard.info for shard in found.shards), *index), found)
