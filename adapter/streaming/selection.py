"""Which objects of a listing make up a checkpoint, and what is left where it is (S-04, S-05)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from adapter.checkpoint.index import SHARD_SUFFIX, WeightIndex, choose_shards, safe_name
from adapter.checkpoint.tensor_filter import TensorFilter
from adapter.errors import WeightIndexError
from adapter.storage.base import ObjectInfo
from adapter.streaming.manifest import Kind

FILE_LIMIT_BYTES = 64 << 20
"""Largest file beside the shards that is taken along: tokenizers and configurations stay far below it."""
OTHER_WEIGHTS = frozenset(
    {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".onnx_data", ".gguf", ".ot", ".tflite", ".pb"}
)
"""The same weights in another format: public repositories hold several side by side, each as large as the shards."""
WELL_KNOWN = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "preprocessor_config.json",
    "modules.json",
    "1_Pooling/config.json",
)
"""Files that are asked for by name where the store does not let us list."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An object that is streamed."""

    info: ObjectInfo
    kind: Kind


@dataclass(frozen=True, slots=True)
class Selection:
    """What is streamed, shards first, and which names were left out."""

    wanted: tuple[Wanted, ...]
    skipped: tuple[str, ...]


def select(
    listing: Mapping[str, ObjectInfo],
    index: WeightIndex | None,
    index_name: str | None,
    *,
    address: str,
    order: Sequence[str] = (),
) -> Selection:
    """The objects of one checkpoint.

    Args:
        listing: Key to object, keys relative to the address.
        index: The weight index, if there is one.
        index_name: Its key.
        address: For messages.
        order: Shards that are wanted first; a hint.

    Raises:
        WeightIndexError: Shards are missing, there are none, or a shard's name leads out of its directory.
    """
    choice = choose_shards(listing, index, file=index_name or address)
    hinted = [name for name in dict.fromkeys(order) if name in choice.shards]
    shards = [safe_name(name, file=address) for name in dict.fromkeys((*hinted, *choice.shards))]
    wanted = [Wanted(listing[name], "shard") for name in shards]
    skipped: list[str] = []
    for name, info in listing.items():
        if name in choice.shards:
            continue
        if belongs(name, info):
            wanted.append(Wanted(info, "index" if name == index_name else "file"))
        else:
            skipped.append(name)
    return Selection(tuple(wanted), tuple(skipped))


def without_needless(selection: Selection, index: WeightIndex | None, tensors: TensorFilter) -> Selection:
    """The same without the shards of which the index says that they hold no tensor that is wanted.

    Where the index does not name all that is asked for (a further name of a tied tensor), no shard is left out.
    """
    if index is None or not tensors or tensors.unused(index.weight_map):
        return selection
    needed = {shard for name, shard in index.weight_map.items() if tensors.wants(name)}
    left_out = [each for each in selection.wanted if each.kind == "shard" and each.info.key not in needed]
    return Selection(
        tuple(each for each in selection.wanted if each not in left_out),
        (*selection.skipped, *(each.info.key for each in left_out)),
    )


def belongs(name: str, info: ObjectInfo) -> bool:
    """Whether an object that is no shard is taken along: of sensible size and name, not hidden, no other weights."""
    if info.size_bytes > FILE_LIMIT_BYTES or name.endswith(SHARD_SUFFIX):
        return False
    if any(part.startswith(".") for part in name.split("/")):
        return False  # notes of version control and of downloaders, ours too
    if PurePosixPath(name).suffix.lower() in OTHER_WEIGHTS:
        return False
    try:
        safe_name(name, file="")
    except WeightIndexError:
        return False
    return True
