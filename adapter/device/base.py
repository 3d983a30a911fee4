"""What every device gives: tensors of a checkpoint, placed on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from adapter.device.tensors import MappedTensor

if TYPE_CHECKING:
    import torch


class Device(Protocol):
    """One place where tensors live and kernels run. Thread-safe."""

    @property
    def name(self) -> str:
        """As torch writes it: `cpu`, `cuda:0`."""
        ...

    def place(self, tensor: MappedTensor) -> torch.Tensor:
        """The tensor on this device; every byte of it must be in the file.

        On the CPU it is a view on the file's private map. On an accelerator it is a copy that may still be under way:
        it is to be used after `finish` only.

        Raises:
            ForkedContext: The device's context was made before a fork.
            DeviceError: The device failed; most often its memory is full.
            CacheError: The file could not be read.
        """
        ...

    def finish(self) -> None:
        """Wait until everything that was placed is there, for every stream and thread.

        Raises:
            DeviceError: A copy failed.
        """
        ...

    def describe(self) -> Mapping[str, str | int]:
        """What the start's report says about it: `name`, `kind` and, where known, `memory_bytes`."""
        ...
