"""The handler that `benchmarks/start.py` starts: a stack of linear layers of the size that is asked for."""

from __future__ import annotations

import torch

from adapter import Weights, coldstart_handler

WIDTH = 1024


class Stack(torch.nn.Module):
    """`depth` square layers, `WIDTH` wide."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, WIDTH) to (B, WIDTH)."""
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def load(weights: Weights) -> Stack:
    """The stack, as deep as the checkpoint."""
    return weights.into(lambda: Stack(int(weights.metadata["depth"])))


@coldstart_handler(weights="s3://models/stack/", load=load)
def answer(model: Stack, event: float) -> float:
    """A number that depends on every weight."""
    return float(model(torch.full((1, WIDTH), event)).sum())


answer.warm_up(0.5)
