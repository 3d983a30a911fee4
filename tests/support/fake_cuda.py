"""A CUDA that records every call and runs copies as late as it may: what is not waited for has not happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch

from adapter.device.cuda import CudaMemory


class FakeStream:
    """Work in order, done when somebody waits for it."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.queue: list[Callable[[], object]] = []

    def synchronize(self) -> None:
        """Do all of it."""
        self._cuda.calls.append("stream.synchronize")
        while self.queue:
            self.queue.pop(0)()

    def wait_stream(self, other: FakeStream) -> None:
        """Recorded only: what is waited for is not simulated."""
        self._cuda.calls.append("stream.wait_stream")


class FakeEvent:
    """A place in a stream."""

    def __init__(self) -> None:
        self._stream: FakeStream | None = None
        self._done = True

    def record(self, stream: FakeStream) -> None:
        """Put it behind all work of the stream."""
        self._stream, self._done = stream, False
        stream.queue.append(self._reach)

    def synchronize(self) -> None:
        """Do the work before it."""
        while not self._done and self._stream is not None:
            self._stream.queue.pop(0)()

    def _reach(self) -> None:
        self._done = True


class FakeCuda:
    """The members of `torch.cuda` that devices use.

    Args:
        count: How many devices there are.
        failure: Raised by `init`, once for each time it stands here.
    """

    def __init__(self, count: int = 1, failures: list[Exception] | None = None) -> None:
        self.calls: list[str] = []
        self.current = FakeStream(self)
        self._count = count
        self._failures = failures or []
        self._entered: list[FakeStream] = []
        self.Event = FakeEvent

    def device_count(self) -> int:
        """Allowed at any time."""
        self.calls.append("device_count")
        return self._count

    def init(self) -> None:
        """Makes the context."""
        self.calls.append("init")
        if self._failures:
            raise self._failures.pop(0)

    def synchronize(self, index: int) -> None:
        """Recorded."""
        self.calls.append(f"synchronize {index}")

    def Stream(self, index: int) -> FakeStream:  # noqa: N802 (torch's name)
        """A side stream."""
        self.calls.append(f"Stream {index}")
        return FakeStream(self)

    def current_stream(self, index: int) -> FakeStream:
        """The caller's."""
        return self.current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """What is queued in here goes to that stream."""
        self._entered.append(stream)
        try:
            yield
        finally:
            self._entered.pop()

    def mem_get_info(self, index: int) -> tuple[int, int]:
        """Free and all."""
        return 1 << 30, 2 << 30

    def get_device_name(self, index: int) -> str:
        """The chip."""
        return "Fake H200"

    def memory(self) -> CudaMemory:
        """Host memory that plays the device's; copies into it wait for their stream."""
        cuda = self

        class OnDevice(torch.Tensor):
            def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Self:
                assert non_blocking
                target = self.as_subclass(torch.Tensor)
                cuda._entered[-1].queue.append(lambda: target.copy_(source))
                return self

        def empty(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
            cuda.calls.append(f"empty {device} {list(shape)}")
            found: Any = torch.empty(shape, dtype=dtype).as_subclass(OnDevice)
            return found  # type: ignore[no-any-return]

        def pinned(length_bytes: int) -> torch.Tensor:
            cuda.calls.append("pinned")
            return torch.zeros(length_bytes, dtype=torch.uint8)

        return CudaMemory(pinned, empty)
