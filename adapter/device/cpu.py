"""The CPU: a tensor is a view on the mapped file, nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from adapter.device.tensors import MappedTensor

if TYPE_CHECKING:
    import torch


class CpuDevice:
    """The `Device` that every machine has."""

    @property
    def name(self) -> str:
        """`cpu`."""
        return "cpu"

    def place(self, tensor: MappedTensor) -> torch.Tensor:
        """The view on the file's private map."""
        return tensor.view()

    def finish(self) -> None:
        """Nothing is ever under way."""

    def describe(self) -> Mapping[str, str | int]:
        """Its name alone."""
        return {"name": self.name, "kind": "cpu"}
