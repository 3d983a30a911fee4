"""A checkpoint by name, in one process: for notebooks, scripts and tests, without a replica around it.

    python examples/ex02_weights_in_one_process.py [ADDRESS]

ADDRESS is a directory or `s3://bucket/prefix/` with safetensors files; without one a small checkpoint is made first.
Tensors are there as soon as their own bytes are: the first can be used while the last are still on their way.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from adapter import Weights


def make_checkpoint(directory: Path) -> None:
    """A classifier of two layers, with random weights."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"0.weight": (64, 16), "0.bias": (64,), "2.weight": (4, 64), "2.bias": (4,)}
    save_file(
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()},
        directory / "model.safetensors",
    )


def show(address: str, cache: Path) -> None:
    """The first names of a checkpoint, with their shapes and means."""
    with Weights.open(address, cache_dir=cache) as weights:
        print(f"{len(weights)} tensors at {address}")
        for name in islice(weights, 5):
            tensor = weights[name]  # waits for the bytes of this tensor, not of the file
            print(f"  {name}  {tuple(tensor.shape)}  {tensor.dtype}  mean {tensor.float().mean():+.4f}")


def classify(address: str, cache: Path) -> Tensor:
    """A model from the checkpoint: its parameters are views on the mapped file, none is copied."""
    with Weights.open(address, cache_dir=cache) as weights, torch.inference_mode():
        model = weights.into(lambda: nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)))
        scores: Tensor = model(torch.ones(1, 16))
        return scores.softmax(dim=-1)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary) / "cache"
        if len(sys.argv) > 1:
            show(sys.argv[1], cache)
            return
        checkpoint = Path(temporary) / "classifier"
        checkpoint.mkdir()
        make_checkpoint(checkpoint)
        show(str(checkpoint), cache)
        print("probabilities:", [round(value, 3) for value in classify(str(checkpoint), cache)[0].tolist()])


if __name__ == "__main__":
    main()
