"""Checkpoints of given tensors, opened in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adapter.weights import Weights


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Callable[[Mapping[str, torch.Tensor]], Weights]]:
    """Makes weights of a checkpoint that holds these tensors."""
    opened: list[Weights] = []

    def save(tensors: Mapping[str, torch.Tensor]) -> Weights:
        model = tmp_path / f"model-{len(opened)}"
        model.mkdir()
        copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
        save_file(copies, model / "model.safetensors")
        opened.append(Weights.open(str(model), cache_dir=tmp_path / "cache"))
        return opened[-1]

    yield save
    for weights in opened:
        weights.close()
