"""One CUDA device: its context, and a pinned ring through which tensors go to it on a stream of their own.

Tensors are read from the page cache into pinned buffers with `pread` and copied from there while the next buffer is
being read. Copying from a mapped file instead goes page by page through the driver's own staging.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from adapter.device.tensors import MappedTensor, as_bytes
from adapter.errors import CacheError, DeviceError, DeviceUnavailable, ForkedContext

if TYPE_CHECKING:
    import torch

_SLOT_BYTES = 8 << 20
"""One pinned buffer: long enough that a copy's fixed cost (some 10 µs) vanishes beside its 0.3 ms at 25 GB/s."""
_SLOTS = 4
"""One is read into, one is copied from, two bridge what the two speeds differ for a while; 32 MiB stay pinned."""

FORK_ADVICE = (
    "a CUDA context cannot be used after a fork: start the process with the spawn method, or use the device only "
    "after the fork"
)


@dataclass(frozen=True, slots=True)
class CudaMemory:
    """How memory for tensors is had: the seam at which a test puts a device that is not there."""

    pinned: Callable[[int], torch.Tensor]
    """Page-locked bytes (N,) on the host."""
    empty: Callable[[tuple[int, ...], torch.dtype, str], torch.Tensor]
    """A tensor of that shape and dtype on the device of that name."""


class _Slot:
    """One pinned buffer and the event that says its last copy is over."""

    def __init__(self, memory: CudaMemory, cuda: Any) -> None:
        self.buffer = memory.pinned(_SLOT_BYTES)
        raw = (ctypes.c_char * _SLOT_BYTES).from_address(self.buffer.data_ptr())
        self.view = memoryview(raw).cast("B")
        self.copied = cuda.Event()


class CudaDevice:
    """The `Device` for one GPU. Making it makes the context.

    Args:
        index: Which GPU.
        cuda: `torch.cuda`, or a fake with the members used here.
        memory: How memory is had; torch's own by default.

    Raises:
        DeviceUnavailable: There is no such GPU, or its context could not be made.
        ForkedContext: The parent of this process had made a context before it forked.
    """

    def __init__(self, index: int, cuda: Any = None, memory: CudaMemory | None = None) -> None:
        import torch

        self._cuda = torch.cuda if cuda is None else cuda
        self._memory = memory or CudaMemory(_pinned, _empty)
        self._index = index
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ring: deque[_Slot] = deque()
        with _Mapped(f"{self.name} could not be initialised", DeviceUnavailable):
            self._cuda.init()
            self._cuda.synchronize(index)  # the first call that needs the context makes it
            self._stream = self._cuda.Stream(index)

    @property
    def name(self) -> str:
        """`cuda:0` and so on."""
        return f"cuda:{self._index}"

    def place(self, tensor: MappedTensor) -> torch.Tensor:
        """A copy on this GPU, under way until `finish`.

        Raises:
            ForkedContext, DeviceError, CacheError: See `Device.place`.
        """
        self._check_process()
        with self._lock, _Mapped(f"tensor {tensor.info.name!r} could not be copied to {self.name}", DeviceError):
            target = self._memory.empty(tensor.shape, tensor.dtype, self.name)
            if not tensor.size_bytes:
                return target
            # the allocator may give memory that kernels queued on the caller's stream still use
            self._stream.wait_stream(self._cuda.current_stream(self._index))
            try:
                self._copy(tensor, as_bytes(target))
            except BaseException:
                self._stream.synchronize()  # the memory of `target` must not be given away while copies run
                raise
            return target

    def finish(self) -> None:
        """Wait for the copies; then every stream may use what was placed.

        Raises:
            ForkedContext, DeviceError: See `Device.finish`.
        """
        self._check_process()
        with _Mapped(f"copies to {self.name} failed", DeviceError):
            self._stream.synchronize()

    def describe(self) -> Mapping[str, str | int]:
        """Name, kind of chip, and all of its memory."""
        self._check_process()
        with _Mapped(f"{self.name} does not answer", DeviceError):
            _, total_bytes = self._cuda.mem_get_info(self._index)
            return {
                "name": self.name,
                "kind": str(self._cuda.get_device_name(self._index)),
                "memory_bytes": int(total_bytes),
            }

    def _copy(self, tensor: MappedTensor, target: torch.Tensor) -> None:
        for offset in range(0, tensor.size_bytes, _SLOT_BYTES):
            length = min(_SLOT_BYTES, tensor.size_bytes - offset)
            slot = self._next_slot()
            slot.copied.synchronize()
            tensor.read_into(offset, slot.view[:length])
            with self._cuda.stream(self._stream):
                target[offset : offset + length].copy_(slot.buffer[:length], non_blocking=True)
                slot.copied.record(self._stream)

    def _next_slot(self) -> _Slot:
        slot = self._ring.popleft() if len(self._ring) == _SLOTS else _Slot(self._memory, self._cuda)
        self._ring.append(slot)
        return slot

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ForkedContext(
                f"{self.name} was initialised in process {self._pid} and is used in its child {os.getpid()}: "
                f"{FORK_ADVICE}",
                device=self.name,
            )


class _Mapped:
    """Turns torch's errors inside a `with` block into ours."""

    def __init__(self, what: str, kind: type[DeviceError]) -> None:
        self._what = what
        self._kind = kind

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        # torch raises AssertionError where it was built without CUDA, RuntimeError (also OutOfMemoryError) otherwise
        if not isinstance(value, (RuntimeError, AssertionError)) or isinstance(value, (CacheError, DeviceError)):
            return
        first_line = (str(value).splitlines() or [""])[0]
        if "fork" in first_line.lower():
            raise ForkedContext(f"{self._what}: {FORK_ADVICE} ({first_line})") from value
        raise self._kind(f"{self._what}: {first_line}", cause=type(value).__name__) from value


def _pinned(length_bytes: int) -> torch.Tensor:
    import torch

    return torch.empty(length_bytes, dtype=torch.uint8, pin_memory=True)


def _empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
    import torch

    return torch.empty(shape, dtype=dtype, device=device)
