"""Writing safetensors files, and reading them back with the reference reader to see that they hold what they should."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.checkpoint.writing import NewTensor, header_bytes
from adapter.device.tensors import as_bytes
from adapter.errors import CacheError, ChecksumMismatch, NoSpace

if TYPE_CHECKING:
    import torch

Tell = Callable[[int], None]
"""Hears how many bytes more are done."""

_WRITE_BYTES = 8 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_shard(
    path: Path,
    shard: Sequence[NewTensor],
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    tell: Tell = lambda _: None,
) -> None:
    """Write one file, durably.

    Args:
        path: A name that is not there yet.
        shard: The tensors in the order in which they are written.
        tensors: Their values.
        metadata: Texts of the header.
        tell: Hears of the progress.

    Raises:
        NoSpace: The disk is full.
        OSError: It failed otherwise.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        _write_all(descriptor, memoryview(header_bytes(shard, metadata)), lambda _: None)
        for entry in shard:
            with _memory_of(tensors[entry.name]) as data:
                _write_all(descriptor, data, tell)
        os.fsync(descriptor)
        # what is verified next should come from the disk, where it can
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        if error.errno not in _FULL:
            raise
        needed_bytes = sum(entry.length_bytes for entry in shard)
        raise no_space(path.parent, needed_bytes) from error
    finally:
        os.close(descriptor)


def verify_shard(
    path: Path, shard: Sequence[NewTensor], tensors: Mapping[str, torch.Tensor], tell: Tell = lambda _: None
) -> None:
    """Compare a written file with what it was made of, bit by bit, as the reference reader gives it.

    Raises:
        ChecksumMismatch: It differs, in names, dtypes, shapes or values.
    """
    import safetensors
    import torch

    with safetensors.safe_open(path, framework="pt") as file:
        if set(file.keys()) != {entry.name for entry in shard}:
            raise ChecksumMismatch(f"{path.name} does not hold the tensors that were written", file=path.name)
        for entry in shard:
            wanted, found = plain(tensors[entry.name]), file.get_tensor(entry.name)
            same = found.dtype == wanted.dtype and found.shape == wanted.shape
            if not same or not torch.equal(as_bytes(found), as_bytes(wanted)):
                raise ChecksumMismatch(
                    f"{path.name}: tensor {entry.name!r} was read back with other values than were written: the disk "
                    "or the memory of this machine is faulty",
                    file=path.name,
                    tensor=entry.name,
                )
            tell(entry.length_bytes)


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same values, contiguous, with lazy conjugation and negation done."""
    return tensor.resolve_conj().resolve_neg().contiguous()


def no_space(directory: Path, needed_bytes: int) -> NoSpace:
    """The error for a disk with too little room."""
    found = os.statvfs(directory)
    free = found.f_bavail * found.f_frsize
    return NoSpace(
        f"not enough disk space in {directory}: {needed_bytes} bytes are needed, {free} are free",
        path=str(directory),
        needed_bytes=needed_bytes,
        free_bytes=free,
    )


@contextmanager
def _memory_of(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The tensor's bytes, not copied where it is contiguous."""
    data = as_bytes(plain(tensor)) if tensor.numel() else None
    if data is None:
        yield memoryview(b"")
    else:
        yield memoryview((ctypes.c_ubyte * data.numel()).from_address(data.data_ptr())).cast("B")


def _write_all(descriptor: int, data: memoryview, tell: Tell) -> None:
    while data:
        written = os.write(descriptor, data[:_WRITE_BYTES])
        if written == 0:
            raise CacheError("the disk takes no more bytes")
        data = data[written:]
        tell(written)
