"""From a file or directory of weights to a directory of safetensors: whole and verified, or not there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.checkpoint.index import (
    INDEX_NAME,
    INDEX_SUFFIX,
    SHARD_SUFFIX,
    choose_shards,
    find_index,
    parse_index,
    safe_name,
)
from adapter.checkpoint.writing import NewTensor, index_bytes, plan_shards, shard_names
from adapter.conversion.shards import no_space, verify_shard, write_shard
from adapter.conversion.state import Choice, State, dtype_of, logical_shape, read_state
from adapter.errors import ConfigurationError, NotConvertible, WeightIndexError
from adapter.storage.base import ObjectInfo
from adapter.streaming.manifest import sync_directory
from adapter.streaming.selection import belongs

if TYPE_CHECKING:
    import torch

PICKLED_INDEX_SUFFIX = ".bin.index.json"
PICKLED = frozenset({".bin", ".pt", ".pth", ".ckpt"})
LEFTOVERS = ("optimizer.*", "scheduler.*", "scaler.*", "training_args.*", "rng_state*")
"""What training frameworks put beside weights, under the same suffixes."""
SHARD_BYTES = 5_000_000_000
"""Largest shard by default, as public checkpoints have it: under every store's limit for one upload."""


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """What is wanted."""

    shard_bytes: int = SHARD_BYTES
    choice: Choice = field(default_factory=Choice)
    tell: Callable[[int, int], None] = lambda done, total: None
    """Hears of bytes done and all there are, writing and verifying counted apart."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written."""

    tensors: int
    total_bytes: int
    shards: tuple[str, ...]
    files: tuple[str, ...]
    """Files beside the weights that were taken along."""
    tied: Mapping[str, str]
    """Further name → name under which a tensor is stored."""
    skipped: tuple[str, ...]


def convert(source: Path, target: Path, options: ConvertOptions) -> Converted:
    """Write the weights of a file or directory as safetensors into a new directory.

    Args:
        source: A checkpoint file, or a directory with one (in parts, with its index) and other files beside it.
        target: Must not exist, or be empty; it appears when everything in it is written and verified.
        options: What is wanted.

    Raises:
        NotConvertible: Something in it cannot be represented, or it is not clear what is meant; each named.
        CheckpointError: It is no checkpoint, or what was written was not read back the same.
        ConfigurationError: A path cannot be used.
        NoSpace: The disk has too little room.
    """
    weights = weight_files(source)
    state = _merged([(path, read_state(path, options.choice)) for path in weights])
    new = [_new_tensor(name, tensor) for name, tensor in state.tensors.items()]
    if not new:
        raise NotConvertible(f"{source} holds no tensor that is wanted", file=str(source))
    plan = plan_shards(new, options.shard_bytes)
    shards = dict(zip(shard_names(len(plan)), plan, strict=True))
    beside = _beside(source)
    with _appearing(target) as building:
        total_bytes = sum(tensor.length_bytes for tensor in new)
        _check_space(building, total_bytes)
        _write(building, shards, state, _Telling(options.tell, 2 * total_bytes))
        for name in beside:
            (building / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, building / name)
    return Converted(len(new), total_bytes, tuple(shards), tuple(beside), state.tied, state.skipped)


def weight_files(source: Path) -> list[Path]:
    """The files that hold the weights.

    Raises:
        NotConvertible: There is none, or several that are not parts of one.
        WeightIndexError: An index is malformed, or parts are missing.
        ConfigurationError: The path leads nowhere.
    """
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise ConfigurationError(f"{source} does not exist", path=str(source))
    names = sorted(entry.name for entry in os.scandir(source) if entry.is_file())
    pickled = [name for name in names if _is_pickled(name)]
    ready = [name for name in names if name.endswith(SHARD_SUFFIX)]
    if pickled and ready:
        raise NotConvertible(
            f"{source} holds safetensors ({ready[0]}) and pickled weights ({pickled[0]}): name the file to convert",
            file=str(source),
        )
    if ready:
        index_name = find_index(names)
        index = parse_index((source / index_name).read_bytes(), file=index_name) if index_name else None
        return [source / name for name in choose_shards(names, index, file=index_name or str(source)).shards]
    indexes = [name for name in names if name.endswith(PICKLED_INDEX_SUFFIX)]
    if len(indexes) == 1:
        return [source / name for name in _parts(source / indexes[0], names)]
    if "pytorch_model.bin" in pickled:
        return [source / "pytorch_model.bin"]
    if len(pickled) != 1:
        many = f"several: {', '.join(pickled[:10])}; name the one to convert" if pickled else "none"
        raise NotConvertible(f"of weight files ({', '.join(sorted(PICKLED))}) {source} holds {many}", file=str(source))
    return [source / pickled[0]]


def _is_pickled(name: str) -> bool:
    path = Path(name)
    return path.suffix in PICKLED and not any(path.match(pattern) for pattern in LEFTOVERS)


def _parts(index: Path, names: Iterable[str]) -> list[str]:
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        parts = [safe_name(part, file=index.name) for part in dict.fromkeys(weight_map.values())]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightIndexError(f"{index} is no weight index: {error}", file=str(index)) from None
    missing = [part for part in parts if part not in names]
    if missing:
        raise WeightIndexError(
            f"{index}: {len(missing)} of {len(parts)} parts are missing: {', '.join(missing[:10])}", file=str(index)
        )
    return parts


def _merged(states: Sequence[tuple[Path, State]]) -> State:
    places: dict[str, Path] = {}
    for path, state in states:
        for name in (*state.tensors, *state.tied):
            if (other := places.setdefault(name, path)) is not path:
                raise NotConvertible(f"tensor {name!r} is in {other.name} and in {path.name}", tensor=name)
    return State(
        {name: tensor for _, state in states for name, tensor in state.tensors.items()},
        {name: kept for _, state in states for name, kept in state.tied.items()},
        {key: text for _, state in reversed(states) for key, text in state.metadata.items()},
        tuple(name for _, state in states for name in state.skipped),
    )


def _new_tensor(name: str, tensor: torch.Tensor) -> NewTensor:
    dtype = dtype_of(tensor)
    assert dtype is not None, "what the format lacks was refused when it was read"
    return NewTensor(name, dtype, logical_shape(tensor, dtype), tensor.numel() * tensor.element_size())


class _Telling:
    """Adds up what is done."""

    def __init__(self, tell: Callable[[int, int], None], total_bytes: int) -> None:
        self._tell = tell
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def __call__(self, more_bytes: int) -> None:
        self._done_bytes += more_bytes
        self._tell(self._done_bytes, self._total_bytes)


def _write(directory: Path, shards: Mapping[str, Sequence[NewTensor]], state: State, tell: _Telling) -> None:
    for name, shard in shards.items():
        held = {tensor.name for tensor in shard}
        tied = {further: kept for further, kept in state.tied.items() if kept in held}
        write_shard(directory / name, shard, state.tensors, {"format": "pt"} | dict(state.metadata) | tied, tell)
    for name, shard in shards.items():
        verify_shard(directory / name, shard, state.tensors, tell)
    if len(shards) > 1:
        (directory / INDEX_NAME).write_bytes(index_bytes(shards))


def _check_space(directory: Path, needed_bytes: int) -> None:
    found = os.statvfs(directory)
    if found.f_bavail * found.f_frsize < needed_bytes:
        raise no_space(directory, needed_bytes)


def _beside(source: Path) -> list[str]:
    """Names of the files beside the weights that a start would stream."""
    if not source.is_dir():
        return []
    found = []
    for path in sorted(source.rglob("*")):
        name = path.relative_to(source).as_posix()
        if path.is_file() and not name.endswith((PICKLED_INDEX_SUFFIX, INDEX_SUFFIX)):
            if belongs(name, ObjectInfo(name, path.stat().st_size, "")):
                found.append(name)
    return found


@contextmanager
def _appearing(target: Path) -> Iterator[Path]:
    """A directory to fill, which gets the name `target` when the block ends well and is removed when it does not."""
    if os.path.lexists(target) and not (target.is_dir() and not target.is_symlink() and not any(target.iterdir())):
        raise ConfigurationError(f"{target} exists: nothing is overwritten, choose another name", path=str(target))
    building = target.parent / f".{target.name}.{os.urandom(4).hex()}.converting"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        yield building
        sync_directory(building)
        building.rename(target)
        sync_directory(target.parent)
    except OSError as error:
        place = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(target)
        raise ConfigurationError(f"{target} cannot be made: {place}: {error.strerror}", path=place) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
