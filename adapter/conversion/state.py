"""The named tensors in a file, whatever its form; no code of a pickle is ever run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter.checkpoint.dtypes import DTYPES, Dtype
from adapter.checkpoint.foreign import describe_non_safetensors
from adapter.checkpoint.header import HEADER_LIMIT_BYTES, METADATA_KEY
from adapter.checkpoint.index import SHARD_SUFFIX
from adapter.checkpoint.strict_json import shown
from adapter.checkpoint.ties import aliases
from adapter.device.tensors import MappedShard
from adapter.errors import ConfigurationError, NotConvertible
from adapter.streaming.reader import read_header

if TYPE_CHECKING:
    import torch

_ZIP = b"PK\x03\x04"
_SHOWN = 10
_BY_TORCH_NAME: Mapping[str, Dtype] = {dtype.torch_name: dtype for dtype in DTYPES.values()}
_GLOBAL = re.compile(r"(?:GLOBAL|global) ([\w.]+)")


@dataclass(frozen=True, slots=True)
class State:
    """What was read."""

    tensors: Mapping[str, torch.Tensor]
    """Each once; their memory may be the file's, mapped."""
    tied: Mapping[str, str] = field(default_factory=dict)
    """Further name → the name in `tensors`."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    """Entries that were left out as asked."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a file is wanted."""

    key: str | None = None
    """Where its tensors are, if not at the top: `state_dict`."""
    skip: Sequence[str] = ()
    """Patterns of names to leave out."""

    def skips(self, name: object) -> bool:
        """Whether an entry of that name is left out."""
        return isinstance(name, str) and any(fnmatchcase(name, pattern) for pattern in self.skip)


def read_state(path: Path, choice: Choice) -> State:
    """The tensors of a file: safetensors, or what `torch.save` wrote.

    Raises:
        NotConvertible: It holds something that safetensors cannot represent, each named.
        CheckpointError: It is no checkpoint.
        ConfigurationError: It cannot be opened.
    """
    try:
        with path.open("rb") as file:
            first = file.read(512)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}", path=str(path)) from None
    if path.name.endswith(SHARD_SUFFIX):
        return _read_safetensors(path, choice)
    return state_of(_read_pickled(path, first), choice, file=str(path))


def dtype_of(tensor: torch.Tensor) -> Dtype | None:
    """The format's dtype for a tensor's; None where it has none."""
    return _BY_TORCH_NAME.get(str(tensor.dtype).removeprefix("torch."))


def logical_shape(tensor: torch.Tensor, dtype: Dtype) -> tuple[int, ...]:
    """The shape that a header says: longer than torch's where torch packs several elements into one item."""
    shape = tuple(tensor.shape)
    return shape if dtype.per_item == 1 else (*shape[:-1], shape[-1] * dtype.per_item)


def state_of(value: Any, choice: Choice, *, file: str) -> State:
    """The tensors of an unpickled value.

    Raises:
        NotConvertible: It holds something else, each named.
    """
    entries = _entries(value, choice, file)
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    skipped: list[str] = []
    faults: list[str] = []
    first_of: dict[object, str] = {}
    for name, item in entries.items():
        if choice.skips(name):
            skipped.append(name)
        elif (fault := _fault(name, item)) is not None:
            faults.append(f"{shown(name)} {fault}")
        elif (kept := first_of.setdefault(_memory(item, name), name)) != name:
            tied[name] = kept
        else:
            tensors[name] = item.detach()
    if faults:
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise NotConvertible(
            f"{file} holds what safetensors cannot represent: {'; '.join(faults[:_SHOWN])}{more}. "
            f"Leave entries out with --skip NAME{_key_hint(entries)}",
            file=file,
            count=len(faults),
        )
    return State(tensors, tied, {}, tuple(skipped))


def _entries(value: Any, choice: Choice, file: str) -> Mapping[Any, Any]:
    if choice.key is not None:
        if not isinstance(value, Mapping) or choice.key not in value:
            there = f"there are {', '.join(shown(name) for name in list(value)[:_SHOWN])}" if _is_mapping(value) else ""
            raise NotConvertible(f"{file} has no entry {choice.key!r}; {there or 'it is no dict'}", file=file)
        value = value[choice.key]
        file = f"{file} ({choice.key})"
    if not _is_mapping(value):
        raise NotConvertible(
            f"{file} holds {_article(type(value).__name__)}, not a dict of tensors by their names", file=file
        )
    entries: Mapping[Any, Any] = value
    return entries


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _key_hint(entries: Mapping[Any, Any]) -> str:
    """The likely reason: the tensors are one level further down."""
    import torch

    for name, item in entries.items():
        if _is_mapping(item) and any(isinstance(each, torch.Tensor) for each in item.values()):
            return f", or take the {len(item)} entries of {shown(name)} with --key {name}"
    return ""


def _fault(name: Any, item: Any) -> str | None:
    """Why an entry cannot be written, or None."""
    import torch

    if not isinstance(name, str):
        return f"is a name of type {type(name).__name__}, not a text"
    if name == METADATA_KEY or not _is_unicode(name):
        return "is a name that the format does not allow"
    if not isinstance(item, torch.Tensor):
        return f"is {_article(type(item).__name__)}, not a tensor"
    if type(item) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"is of the tensor class {type(item).__name__}"
    if item.is_meta:
        return "has no values (it is on the meta device)"
    if item.is_quantized:
        return f"is quantized ({str(item.dtype).removeprefix('torch.')}): its scales would be lost"
    if item.is_nested or item.layout != torch.strided:
        return f"is {'nested' if item.is_nested else str(item.layout).removeprefix('torch.')}, not dense"
    dtype = dtype_of(item)
    if dtype is None:
        return f"has the dtype {str(item.dtype).removeprefix('torch.')}, which the format lacks"
    if dtype.per_item > 1 and item.dim() == 0:
        return "is a packed scalar"
    return None


def _memory(tensor: torch.Tensor, name: str) -> object:
    """What two names of one tensor have in common: the very same elements of the same memory."""
    if tensor.numel() == 0:
        return name
    place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset())
    return (*place, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.is_conj(), tensor.is_neg())


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _article(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _read_pickled(path: Path, first: bytes) -> Any:
    import torch

    is_zip = first.startswith(_ZIP)
    looks = describe_non_safetensors(first)
    if not is_zip and (looks is None or "pickle" not in looks):
        raise NotConvertible(
            f"{path} is no PyTorch checkpoint: it looks like {looks or 'nothing known'}", file=str(path)
        )
    try:
        # only the zip form can be mapped, which keeps a checkpoint out of anonymous memory
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # noqa: BLE001 (a pickle can make the reader raise anything)
        found = _GLOBAL.search(str(error))
        if found is not None:
            message = (
                f"{path} holds an object of {found[1]}, which only running code from the file could make: that is "
                "never done. Save the plain tensors instead: torch.save(model.state_dict(), ...)"
            )
            raise NotConvertible(message, file=str(path), cause=found[1]) from None
        reason = str(error).partition("\n")[0][:200]
        raise NotConvertible(
            f"{path} cannot be read, it is damaged or incomplete: {type(error).__name__}: {reason}", file=str(path)
        ) from None


def _read_safetensors(path: Path, choice: Choice) -> State:
    if choice.key is not None:
        raise ConfigurationError(f"{path} is a safetensors file, which has no entry {choice.key!r}", path=str(path))
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header = read_header(
            lambda wanted: os.pread(file.fileno(), wanted.length, wanted.start),
            str(path),
            size_bytes,
            HEADER_LIMIT_BYTES,
        )
    tied = aliases(header.metadata, header.tensors)
    shard = MappedShard.open(path, header)
    try:
        chosen = [name for name in header.tensors if not choice.skips(name)]
        tensors = {name: shard.tensor(name).view() for name in chosen}
    finally:
        shard.close()
    skipped = tuple(name for name in header.tensors if choice.skips(name))
    kept = {name: target for name, target in tied.items() if target in tensors and not choice.skips(name)}
    metadata = {name: text for name, text in header.metadata.items() if name not in tied}
    return State(tensors, kept, metadata, skipped)
