"""How tensors are laid out in new safetensors files: which in which shard, at which byte, under which header."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from adapter.checkpoint.dtypes import Dtype
from adapter.checkpoint.header import LENGTH_BYTES, METADATA_KEY
from adapter.checkpoint.index import SHARD_SUFFIX, SINGLE_NAME

DATA_ALIGNMENT_BYTES = 64
"""Where a file's data begins: a cache line, and the widest vector that a processor loads at once."""


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor that is to be written."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    """Logical shape, as the header says it."""
    length_bytes: int


def plan_shards(tensors: Sequence[NewTensor], shard_bytes: int) -> list[list[NewTensor]]:
    """Tensors by shard, in their order, each shard filled as far as it goes; one shard at least.

    Within a shard wider dtypes come first, so that each tensor lies at a multiple of its own width: the format allows
    no gaps. A tensor that is longer than a shard gets one of its own.

    Raises:
        ValueError: `shard_bytes` is not positive.
    """
    if shard_bytes <= 0:
        raise ValueError(f"shard_bytes must be positive, not {shard_bytes}")
    shards: list[list[NewTensor]] = [[]]
    filled_bytes = 0
    for tensor in tensors:
        if shards[-1] and filled_bytes + tensor.length_bytes > shard_bytes:
            shards.append([])
            filled_bytes = 0
        shards[-1].append(tensor)
        filled_bytes += tensor.length_bytes
    return [sorted(shard, key=lambda tensor: -tensor.dtype.bits) for shard in shards]


def shard_names(count: int) -> list[str]:
    """`model.safetensors`, or `model-00001-of-00003.safetensors` and so on."""
    if count == 1:
        return [SINGLE_NAME]
    return [f"model-{number:05}-of-{count:05}{SHARD_SUFFIX}" for number in range(1, count + 1)]


def header_bytes(tensors: Sequence[NewTensor], metadata: Mapping[str, str]) -> bytes:
    """Length field and header of a file whose data are these tensors one after the other.

    It is padded with spaces, so that the data begins at a multiple of 64.
    """
    entries: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    position = 0
    for tensor in tensors:
        stop = position + tensor.length_bytes
        entries[tensor.name] = {
            "dtype": tensor.dtype.name,
            "shape": list(tensor.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(LENGTH_BYTES + len(text)) % DATA_ALIGNMENT_BYTES)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def index_bytes(shards: Mapping[str, Sequence[NewTensor]]) -> bytes:
    """The weight index of these shards."""
    total_bytes = sum(tensor.length_bytes for shard in shards.values() for tensor in shard)
    weight_map = {tensor.name: name for name, shard in shards.items() for tensor in shard}
    value = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
