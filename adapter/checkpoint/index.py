"""The weight index of a sharded checkpoint, which files make up a checkpoint, and which names from outside are safe."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath

from adapter.checkpoint.strict_json import JsonFaultError, RepeatedKeys, load_json, shown
from adapter.errors import Field, WeightIndexError

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_SUFFIX = ".safetensors"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

_COMPONENT_LIMIT_BYTES = 255  # NAME_MAX of every Linux file system in use
_NAME_LIMIT_BYTES = 1024  # longest key of an S3 object
_NAMES_SHOWN = 200
_OTHER_FORMATS = frozenset({".bin", ".pt", ".pth", ".ckpt", ".gguf", ".h5"})


class IndexRule(StrEnum):
    """What can be wrong with an index or a name, as the field `rule` of an error names it."""

    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    NO_WEIGHT_MAP = "no_weight_map"
    BAD_WEIGHT_MAP = "bad_weight_map"
    EMPTY_WEIGHT_MAP = "empty_weight_map"
    DUPLICATE_TENSOR = "duplicate_tensor"
    SHARD_NOT_TEXT = "shard_not_text"
    NOT_A_SHARD = "not_a_shard"
    UNSAFE_NAME = "unsafe_name"
    MISSING_SHARDS = "missing_shards"
    AMBIGUOUS_INDEX = "ambiguous_index"
    NO_SHARDS = "no_shards"


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """Which shard holds which tensor."""

    weight_map: Mapping[str, str]
    """Tensor → shard, in the index's order; shard names are safe and relative to the index."""
    shards: tuple[str, ...]
    """Each shard once, in the order in which the weight map first names it."""
    total_size: int | None
    """Bytes of all tensors as the index claims, or None where it claims nothing usable."""
    metadata: Mapping[str, object]

    def total_size_note(self, tensor_bytes: int) -> str | None:
        """A warning where the index's claim differs from the bytes that the shards' tensors have, else None."""
        if self.total_size is None or self.total_size == tensor_bytes:
            return None
        return f"the index says total_size {self.total_size}, the tensors have {tensor_bytes} bytes"


@dataclass(frozen=True, slots=True)
class ShardChoice:
    """Which files of a listing are the checkpoint."""

    shards: tuple[str, ...]
    stray: tuple[str, ...]
    """Safetensors files that lie there but belong to something else: neither fetched nor loaded."""


def parse_index(data: bytes, *, file: str) -> WeightIndex:
    """The index that `data` holds.

    Args:
        data: The whole index file.
        file: Its name for messages.

    Raises:
        WeightIndexError: It is no index, or names a file that it must not.
    """
    value = _load(data, file)
    weight_map = value.get("weight_map")
    if "weight_map" not in value:
        raise _error(IndexRule.NO_WEIGHT_MAP, "it has no weight_map", file=file)
    if not isinstance(weight_map, dict):
        raise _error(IndexRule.BAD_WEIGHT_MAP, "its weight_map is not an object", file=file)
    if not weight_map:
        raise _error(IndexRule.EMPTY_WEIGHT_MAP, "its weight_map is empty", file=file)
    if isinstance(weight_map, RepeatedKeys):
        tensor = weight_map.repeated[0]
        raise _error(IndexRule.DUPLICATE_TENSOR, f"it names tensor {shown(tensor)} more than once", file=file)
    checked: dict[str, str] = {}
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str):
            text = f"the shard of tensor {shown(tensor)} is not a file name: {shown(shard)}"
            raise _error(IndexRule.SHARD_NOT_TEXT, text, file=file, tensor=tensor)
        if shard not in checked:
            checked[shard] = _shard_name(shard, file)
    metadata = value.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    return WeightIndex(dict(weight_map), tuple(checked), _total_size(metadata), metadata)


def safe_name(name: str, *, file: str) -> str:
    """The name itself, given that it stays below whatever directory or prefix it is joined to.

    The one gate for every relative name from outside: shards of an index, keys of a listing. Nested names are fine.

    Args:
        name: Relative, with `/` between its components.
        file: Where the name was found, for messages.

    Raises:
        WeightIndexError: The name is empty, absolute, has an empty, `.` or `..` component, a backslash or a control
            character, is no UTF-8, or is too long for a file.
    """
    fault = _name_fault(name)
    if fault is not None:
        raise _error(IndexRule.UNSAFE_NAME, f"the name {shown(name)} is refused: {fault}", file=file, name=ascii(name))
    return name


def find_index(names: Iterable[str]) -> str | None:
    """The weight index among the names, or None; only one at the top counts, not one in a folder.

    Raises:
        WeightIndexError: There are several, none of them `model.safetensors.index.json`.
    """
    found = sorted(name for name in names if name.endswith(INDEX_SUFFIX) and "/" not in name)
    if INDEX_NAME in found:
        return INDEX_NAME
    if len(found) > 1:
        text = f"several weight indexes and none is {INDEX_NAME}: {', '.join(map(shown, found))}"
        raise _error(IndexRule.AMBIGUOUS_INDEX, text, file=found[0])
    return found[0] if found else None


def choose_shards(names: Iterable[str], index: WeightIndex | None, *, file: str) -> ShardChoice:
    """Which of the listed files are the checkpoint's shards.

    With an index: exactly its shards. Without: `model.safetensors`; else every safetensors file at the top; else
    every one in a folder. All others are stray.

    Args:
        names: Every name of the listing, relative to the address.
        index: The parsed index that `find_index` found, if it found one.
        file: The index, or the address where there is none, for messages.

    Raises:
        WeightIndexError: The index names files that are not there (all of them are listed), or there is no
            safetensors file at all.
    """
    listed = dict.fromkeys(names)
    candidates = sorted(name for name in listed if name.endswith(SHARD_SUFFIX))
    if index is not None:
        missing = [shard for shard in index.shards if shard not in listed]
        if missing:
            more = f" and {len(missing) - _NAMES_SHOWN} more" if len(missing) > _NAMES_SHOWN else ""
            some = ", ".join(map(shown, missing[:_NAMES_SHOWN])) + more
            text = f"{len(missing)} of {len(index.shards)} shards are missing: {some}"
            raise _error(IndexRule.MISSING_SHARDS, text, file=file, missing="\n".join(missing))
        shards = index.shards
    elif SINGLE_NAME in listed:
        shards = (SINGLE_NAME,)
    else:
        shards = tuple(name for name in candidates if "/" not in name) or tuple(candidates)
    if not shards:
        others = sorted({PurePosixPath(name).suffix for name in listed} & _OTHER_FORMATS)
        hint = f"; there are {', '.join(others)} files, which have to be converted first" if others else ""
        raise _error(IndexRule.NO_SHARDS, f"no {SHARD_SUFFIX} file is there{hint}", file=file)
    chosen = frozenset(shards)
    return ShardChoice(shards, tuple(name for name in candidates if name not in chosen))


def _load(data: bytes, file: str) -> dict[str, object]:
    try:
        value = load_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise _error(IndexRule.NOT_UTF8, f"it is not UTF-8: {error.reason} at byte {error.start}", file=file) from None
    except JsonFaultError as error:
        raise _error(IndexRule.NOT_JSON, f"it is not JSON: {error}", file=file) from None
    if not isinstance(value, dict):
        raise _error(IndexRule.NOT_AN_OBJECT, "it is not a JSON object", file=file)
    if isinstance(value, RepeatedKeys) and "weight_map" in value.repeated:
        raise _error(IndexRule.BAD_WEIGHT_MAP, "it has more than one weight_map", file=file)
    return value


def _shard_name(shard: str, file: str) -> str:
    name = safe_name(shard, file=file)
    if not name.endswith(SHARD_SUFFIX):
        raise _error(IndexRule.NOT_A_SHARD, f"{shown(name)} is not a {SHARD_SUFFIX} file", file=file)
    return name


def _total_size(metadata: Mapping[str, object]) -> int | None:
    claim = metadata.get("total_size")
    if isinstance(claim, float) and claim.is_integer():  # some writers put it down as 1.6e10
        claim = int(claim)
    return claim if type(claim) is int and claim >= 0 else None


def _name_fault(name: str) -> str | None:
    if not name:
        return "it is empty"
    if name.startswith("/"):
        return "it is absolute"
    if "\\" in name:
        return "it has a backslash"
    if any(unicodedata.category(letter) == "Cc" for letter in name):
        return "it has a control character"
    parts = name.split("/")
    if ".." in parts:
        return "it leads out of its directory (..)"
    if "." in parts or "" in parts:
        return "it has an empty component or a single dot"
    try:
        encoded = [part.encode("utf-8") for part in parts]
    except UnicodeEncodeError:
        return "it is not UTF-8"
    if max(map(len, encoded)) > _COMPONENT_LIMIT_BYTES or len(name.encode("utf-8")) > _NAME_LIMIT_BYTES:
        return "it is too long for a file name"
    return None


def _error(rule: IndexRule, text: str, *, file: str, **fields: Field) -> WeightIndexError:
    return WeightIndexError(f"{file}: {text} ({rule.value})", file=file, rule=rule.value, **fields)
