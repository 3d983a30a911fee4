"""Comparing modules."""

from __future__ import annotations

import torch
from torch import nn


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    """Every parameter and every buffer, saved or not, bit for bit, and nothing on meta."""
    mine, theirs = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (one, other))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert not tensor.is_meta, name
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name
    assert not any(parameter.requires_grad for parameter in one.parameters())
