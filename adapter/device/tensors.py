"""Tensors as views on a mapped shard file: no copy, no anonymous memory, and what is written never reaches the file."""

from __future__ import annotations

import errno
import mmap
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Self

from adapter.checkpoint.header import Header, TensorInfo
from adapter.errors import CacheError, UnsupportedDtype

if TYPE_CHECKING:
    import torch

_MAP_NORESERVE: int = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Private writable maps count as memory that may be needed; without this flag Linux refuses a map larger than RAM and
swap together although its pages are the file's. Source: linux/Documentation/mm/overcommit-accounting; the number is
that of x86-64 and arm64, Python names it from 3.14 on."""


def torch_dtype(info: TensorInfo, *, file: str) -> torch.dtype:
    """The dtype of the installed torch that holds this tensor, told from the header alone.

    Raises:
        UnsupportedDtype: There is none, or torch packs this dtype and cannot view this shape.
    """
    import torch

    found = getattr(torch, info.dtype.torch_name, None)
    if not isinstance(found, torch.dtype):
        raise UnsupportedDtype(
            f"{file}: tensor {info.name!r} has dtype {info.dtype.name}, which torch {torch.__version__} does not have "
            f"(it would be torch.{info.dtype.torch_name}); install a newer torch or convert the checkpoint",
            file=file,
            tensor=info.name,
            dtype=info.dtype.name,
            torch_version=str(torch.__version__),
        )
    if info.dtype.torch_shape(info.shape) is None:
        raise UnsupportedDtype(
            f"{file}: tensor {info.name!r} has dtype {info.dtype.name} and shape {list(info.shape)}: torch "
            f"{torch.__version__} packs {info.dtype.per_item} elements into one item along the last dimension, "
            f"which must be a multiple of {info.dtype.per_item}",
            file=file,
            tensor=info.name,
            dtype=info.dtype.name,
            torch_version=str(torch.__version__),
        )
    return found


def torch_shape(info: TensorInfo) -> tuple[int, ...]:
    """The shape torch gives the tensor: that of the header, its last dimension shorter where the dtype is packed."""
    return info.dtype.torch_shape(info.shape) or info.shape


def check_dtypes(header: Header, *, file: str) -> None:
    """Refuse a header that holds a tensor which the installed torch cannot have.

    Raises:
        UnsupportedDtype: It names the first such tensor.
    """
    plain: set[str] = set()  # dtypes that any shape goes with: looked up once, not for each of 200 000 tensors
    for info in header.tensors.values():
        if info.dtype.name not in plain:
            torch_dtype(info, file=file)
            if info.dtype.per_item == 1:
                plain.add(info.dtype.name)


class MappedShard:
    """One shard file, mapped privately once when its first tensor is viewed; thread-safe.

    The file must have its final size; bytes that are not there yet must not be asked for. Views keep the map alive
    after the shard is closed or forgotten. Every view has a storage of its own length, so that `copy.deepcopy` and
    `torch.save` of one tensor do not take the whole file along.

    Args:
        descriptor: The file, open for reading; the shard owns it and `close` gives it back.
        header: Its header.
        name: What messages call it.

    Raises:
        UnsupportedDtype: It holds a tensor that the installed torch cannot have; the descriptor is closed.
    """

    def __init__(self, descriptor: int, header: Header, *, name: str) -> None:
        self.header = header
        self.name = name
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._map: mmap.mmap | None = None
        self._copies: dict[TensorInfo, torch.Tensor] = {}
        try:
            check_dtypes(header, file=name)
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, path: Path, header: Header) -> Self:
        """The shard file under that name.

        Raises:
            UnsupportedDtype: As above.
            CacheError: The file cannot be opened.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CacheError(f"{path} cannot be opened: {error.strerror}", path=str(path)) from error
        return cls(descriptor, header, name=str(path))

    def tensor(self, name: str) -> MappedTensor:
        """The tensor of that name, neither mapped nor read yet.

        Raises:
            KeyError: The shard has none of that name.
        """
        return self.tensor_of(self.header.tensors[name])

    def tensor_of(self, info: TensorInfo) -> MappedTensor:
        """The tensor that an entry tells of, which may be some rows of one in the header."""
        return MappedTensor(self, info, torch_dtype(info, file=self.name), torch_shape(info))

    @property
    def copied(self) -> Mapping[str, int]:
        """Tensors that had to be copied since they are not aligned in the file, with their bytes."""
        with self._lock:
            return {info.name: tensor.nbytes for info, tensor in self._copies.items()}

    def view(self, tensor: MappedTensor) -> torch.Tensor:
        """A CPU tensor on the file's bytes; a copy, the same at each call, where they are not aligned for its dtype.

        Raises:
            CacheError: The file could not be mapped.
        """
        import torch

        info = tensor.info
        with torch.inference_mode(False), torch.no_grad():
            if info.start == info.stop:
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            mapped = self._mapped()
            if info.start % tensor.dtype.itemsize:
                return self._copy(tensor, mapped)
            count = prod(tensor.shape)
            flat = torch.frombuffer(mapped, dtype=tensor.dtype, count=count, offset=info.start)
            # in place and of equal length: it gets its shape without becoming a view with a base
            return flat.resize_(tensor.shape)

    def read_into(self, start: int, into: memoryview) -> None:
        """Read file bytes from `start` until the buffer is full, past the map.

        Raises:
            CacheError: The file could not be read, or is shorter.
        """
        done = 0
        while done < len(into):
            try:
                got = os.preadv(self._open_descriptor(), [into[done:]], start + done)
            except OSError as error:
                raise CacheError(f"{self.name} cannot be read: {error.strerror}", path=self.name) from error
            if not got:
                raise CacheError(f"{self.name} ends at byte {start + done}", path=self.name)
            done += got

    def close(self) -> None:
        """Give back the descriptor. Views stay good, new ones can be had only if the file was mapped before."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            self.close()

    def _open_descriptor(self) -> int:
        if self._descriptor < 0:
            raise CacheError(f"{self.name} was closed", path=self.name)
        return self._descriptor

    def _mapped(self) -> mmap.mmap:
        with self._lock:
            if self._map is None:
                self._map = _map_privately(self._open_descriptor(), self.header.total_bytes, self.name)
            return self._map

    def _copy(self, tensor: MappedTensor, mapped: mmap.mmap) -> torch.Tensor:
        import torch

        info = tensor.info
        with self._lock:
            if info not in self._copies:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype)
                raw = torch.frombuffer(mapped, dtype=torch.uint8, count=info.stop - info.start, offset=info.start)
                as_bytes(copy).copy_(raw)
                self._copies[info] = copy
            return self._copies[info]


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """One tensor of a mapped shard: what it is and how to get at its bytes."""

    shard: MappedShard
    info: TensorInfo
    dtype: torch.dtype
    shape: tuple[int, ...]
    """As torch has it."""

    @property
    def size_bytes(self) -> int:
        """Bytes in the file."""
        return self.info.stop - self.info.start

    def view(self) -> torch.Tensor:
        """The CPU tensor; see `MappedShard.view`."""
        return self.shard.view(self)

    def read_into(self, offset_bytes: int, into: memoryview) -> None:
        """Read its bytes from `offset_bytes` on until the buffer is full; see `MappedShard.read_into`."""
        self.shard.read_into(self.info.start + offset_bytes, into)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a contiguous tensor as a flat view (N,) of uint8."""
    import torch

    return tensor.reshape(-1).view(torch.uint8)


def _map_privately(descriptor: int, file_bytes: int, name: str) -> mmap.mmap:
    size_bytes = os.fstat(descriptor).st_size
    if size_bytes < file_bytes:
        # a touch behind the end of a mapped file kills the process
        raise CacheError(f"{name} has {size_bytes} bytes where its header speaks of {file_bytes}", path=name)
    flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
    access = mmap.PROT_READ | mmap.PROT_WRITE
    try:
        if sys.version_info >= (3, 13):
            return mmap.mmap(descriptor, file_bytes, flags=flags, prot=access, trackfd=False)
        return mmap.mmap(descriptor, file_bytes, flags=flags, prot=access)
    except OSError as error:
        advice = "; the limit on address space (ulimit -v) may be too small" if error.errno == errno.ENOMEM else ""
        raise CacheError(
            f"{name} ({file_bytes} bytes) cannot be mapped: {error.strerror}{advice}", path=name
        ) from error
