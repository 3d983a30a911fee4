"""What a checkpoint holds, told from its index and headers alone: at most the beginning of each shard is read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from adapter.checkpoint.header import HEADER_LIMIT_BYTES, Header, TensorInfo
from adapter.checkpoint.index import SHARD_SUFFIX, WeightIndex, parse_index
from adapter.checkpoint.ranges import ByteRange
from adapter.checkpoint.strict_json import shown
from adapter.checkpoint.ties import aliases
from adapter.errors import ObjectChanged, ObjectNotFound, WeightIndexError
from adapter.storage.base import ObjectInfo, RangeSource
from adapter.streaming.listing import find_checkpoint, list_objects, probe
from adapter.streaming.reader import read_header
from adapter.streaming.selection import FILE_LIMIT_BYTES

FIRST_BYTES = 64 << 10
"""Read of each shard before its header's length is known: the whole header of some 500 tensors in one trip."""
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class InspectedShard:
    """One shard, as its header describes it."""

    info: ObjectInfo
    header: Header


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint, as its index and headers describe it."""

    store: str
    shards: tuple[InspectedShard, ...]
    files: tuple[ObjectInfo, ...] = ()
    """What is streamed beside the shards, the index included."""
    skipped: tuple[str, ...] = ()
    """Objects that lie there and are not streamed."""
    index_name: str | None = None
    index: WeightIndex | None = None

    @property
    def tensors(self) -> tuple[tuple[TensorInfo, InspectedShard], ...]:
        """Every tensor and its shard, in file order."""
        return tuple((info, shard) for shard in self.shards for info in shard.header.tensors.values())

    @property
    def metadata(self) -> dict[str, str]:
        """The texts of all headers; where several have the same key, the first one's."""
        merged: dict[str, str] = {}
        for shard in self.shards:
            merged = dict(shard.header.metadata) | merged
        return merged

    @property
    def tied(self) -> dict[str, str]:
        """Further name → the name under which the tensor is stored."""
        return aliases(self.metadata, frozenset(info.name for info, _ in self.tensors))

    def notes(self) -> tuple[str, ...]:
        """What a start would refuse, warn of or pay for, a sentence each."""
        return (*self._duplicate_notes(), *self._index_notes(), *self._alignment_notes())

    @property
    def twice(self) -> dict[str, tuple[str, ...]]:
        """Tensors that are in several shards, and in which: no start takes them."""
        places: dict[str, tuple[str, ...]] = {}
        for info, shard in self.tensors:
            places[info.name] = (*places.get(info.name, ()), shard.info.key)
        return {name: keys for name, keys in places.items() if len(keys) > 1}

    def _duplicate_notes(self) -> list[str]:
        twice = [f"{shown(name)} in {' and '.join(keys)}" for name, keys in self.twice.items()]
        return [f"refused at load: {_some(twice)}: a tensor may be in one shard only"] if twice else []

    def _index_notes(self) -> list[str]:
        if self.index is None:
            return []
        held = {info.name: shard.info.key for info, shard in self.tensors}
        tied = self.tied
        wrong = [
            shown(name)
            for name, shard in self.index.weight_map.items()
            if held.get(name, held.get(tied.get(name, ""))) != shard
        ]
        unnamed = [shown(name) for name in held if name not in self.index.weight_map]
        notes = [f"{self.index_name} names {_some(wrong)}, not held by the shard it names"] if wrong else []
        notes += [f"{self.index_name} does not name {_some(unnamed)}"] if unnamed else []
        size_note = self.index.total_size_note(sum(info.length_bytes for info, _ in self.tensors))
        return notes + ([size_note] if size_note else [])

    def _alignment_notes(self) -> list[str]:
        copied = [info for info, _ in self.tensors if misaligned(info)]
        if not copied:
            return []
        size_bytes = sum(info.length_bytes for info in copied)
        note = (
            f"{len(copied)} tensors ({size_bytes} bytes) do not lie at a multiple of their dtype's width and are "
            "copied when they are loaded; `coldstart convert` writes them aligned"
        )
        return [note]


def misaligned(info: TensorInfo) -> bool:
    """Whether no view on the mapped file can be this tensor."""
    return info.start % max(1, info.dtype.bits // 8) != 0 and info.length_bytes > 0


def inspect_checkpoint(
    source: RangeSource, address: str, *, connections: int = 16, header_limit_bytes: int = HEADER_LIMIT_BYTES
) -> Inspection:
    """What the checkpoint under the source's address holds.

    Args:
        source: Opened at the address.
        address: For messages.
        connections: Headers that are read at a time.
        header_limit_bytes: Largest header to accept.

    Raises:
        StorageError: The store could not be read.
        CheckpointError: There is no complete checkpoint, or a shard is no safetensors file.
    """
    listing = list_objects(source, connections=connections)
    found = find_checkpoint(source, listing, lambda info: read_index(source, info), address=address)
    wanted = found.selection.wanted
    shards = [each.info for each in wanted if each.kind == "shard"]
    with ThreadPoolExecutor(max(1, min(connections, len(shards)))) as pool:
        headers = list(pool.map(lambda info: remote_header(source, info, header_limit_bytes), shards))
    return Inspection(
        source.store,
        tuple(InspectedShard(info, header) for info, header in zip(shards, headers, strict=True)),
        tuple(each.info for each in wanted if each.kind != "shard"),
        found.selection.skipped,
        found.index_name,
        found.index,
    )


def inspect_file(source: RangeSource, name: str, *, header_limit_bytes: int = HEADER_LIMIT_BYTES) -> Inspection:
    """What one safetensors file of a source holds, whatever lies beside it.

    Raises:
        StorageError: The store could not be read, or there is no such file.
        CheckpointError: It is no safetensors file.
    """
    found = probe(source, (name,), connections=1).get(name)
    if found is None:
        raise ObjectNotFound(f"{source.store}: {name} does not exist, or may not be read", key=name, store=source.store)
    return Inspection(source.store, (InspectedShard(found, remote_header(source, found, header_limit_bytes)),))


def split_file_address(address: str) -> tuple[str, str] | None:
    """Address of the directory and name of the file, where an address names one local safetensors file.

    Sources of stores know such addresses themselves.
    """
    base, _, name = address.rpartition("/")
    if not name.endswith(SHARD_SUFFIX) or name == SHARD_SUFFIX or "://" in address.removeprefix("file://"):
        return None
    return (f"{base}/" if "/" in address else "."), name


def remote_header(source: RangeSource, info: ObjectInfo, limit_bytes: int = HEADER_LIMIT_BYTES) -> Header:
    """The header of a shard, in one read where it is short, else in two.

    Raises:
        StorageError: It could not be read.
        NotSafetensors, HeaderError: It is not one.
    """
    return read_header(_beginning(source, info), info.key, info.size_bytes, limit_bytes)


def _beginning(source: RangeSource, info: ObjectInfo) -> Callable[[ByteRange], bytes]:
    """Reads from an object's beginning, no byte of it twice."""
    have = bytearray()

    def read(wanted: ByteRange) -> bytes:
        if wanted.stop > len(have):
            stop = min(max(wanted.stop, FIRST_BYTES), info.size_bytes)
            more = bytearray(stop - len(have))
            answer = source.read_into(info.key, len(have), memoryview(more), version=info.version)
            if answer.length_bytes < len(more) or answer.info.size_bytes != info.size_bytes:
                raise ObjectChanged(f"{info.key} has another size than it was listed with", key=info.key)
            have.extend(more)
        return bytes(have[wanted.start : wanted.stop])

    return read


def read_index(source: RangeSource, info: ObjectInfo) -> WeightIndex:
    """The weight index that an object holds.

    Raises:
        StorageError: It could not be read.
        WeightIndexError: It is none.
    """
    if info.size_bytes > FILE_LIMIT_BYTES:
        raise WeightIndexError(f"{info.key} has {info.size_bytes} bytes: no weight index is so large", file=info.key)
    data = bytearray(info.size_bytes)
    if data:
        source.read_into(info.key, 0, memoryview(data), version=info.version)
    return parse_index(bytes(data), file=info.key)


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _EXAMPLES} more" if len(texts) > _EXAMPLES else ""
    return ", ".join(texts[:_EXAMPLES]) + more
