"""Tensors as the reference reader gives them, bit for bit: every dtype, every kind of shape, wherever they lie."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors import deserialize
from safetensors.torch import load_file

from adapter.checkpoint.dtypes import DTYPES
from adapter.device.tensors import as_bytes
from adapter.weights import Weights
from tests.support.safetensors_files import safetensors_bytes, with_header

Tensors = Mapping[str, tuple[str, Sequence[int], bytes]]

VIEWED = sorted(name for name, dtype in DTYPES.items() if hasattr(torch, dtype.torch_name))
SHAPES: Sequence[Sequence[int]] = ([], [1], [0], [2, 0, 4], [3, 4], [1, 1, 6], [37, 130])
"""Scalar, a single one, none of one and of three dimensions, small ones, and one of several pages."""


def every_kind(seed: int) -> dict[str, tuple[str, Sequence[int], bytes]]:
    """A tensor of each dtype and shape, of random bits, in random order."""
    chance = random.Random(seed)
    made: dict[str, tuple[str, Sequence[int], bytes]] = {}
    for dtype in VIEWED:
        for shape in SHAPES:
            count = 1
            for size in shape:
                count *= size
            if DTYPES[dtype].torch_shape(tuple(shape)) is None or count * DTYPES[dtype].bits % 8:
                continue  # half a byte of packed numbers
            size_bytes = count * DTYPES[dtype].bits // 8
            data = bytes(chance.randrange(2) for _ in range(size_bytes)) if dtype == "BOOL" else None
            made[f"{dtype}{list(shape)}"] = (dtype, shape, data or chance.randbytes(size_bytes))
    names = list(made)
    chance.shuffle(names)
    return {name: made[name] for name in names}


def assert_equal_to_the_reference(weights: Weights, content: bytes) -> None:
    """Every tensor: dtype, shape and bits."""
    raw = dict(deserialize(content))  # type: ignore[no-untyped-call]
    assert set(weights) == set(raw)
    for name, tensor in weights.items():
        dtype = DTYPES[raw[name]["dtype"]]
        assert tensor.dtype == getattr(torch, dtype.torch_name)
        assert tuple(tensor.shape) == dtype.torch_shape(tuple(raw[name]["shape"]))
        assert tensor.is_contiguous()
        assert bytes(as_bytes(tensor).tolist()) == bytes(raw[name]["data"]), name


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shift", [0, 1, 4])
def test_every_dtype_and_shape_equals_the_reference_readers(tmp_path: Path, seed: int, shift: int) -> None:
    """B9: in any order, and with data that begins anywhere; while they arrive, and out of the cache."""
    padded = safetensors_bytes(every_kind(seed))
    start = 8 + int.from_bytes(padded[:8], "little")
    content = with_header(padded[8:start] + b" " * shift, padded[start:])
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(content)
    for _ in ("streamed", "cached"):
        with Weights.open(str(model), cache_dir=tmp_path / "cache", connections=2) as weights:
            assert_equal_to_the_reference(weights, content)
            weights.path("model.safetensors")


def test_every_dtype_that_torch_has_equals_the_reference_readers_tensor(tmp_path: Path) -> None:
    """B9: as torch's own binding of the reference reads them, aligned as it wants them."""
    model = tmp_path / "model"
    model.mkdir()
    kinds = sorted(every_kind(0).items(), key=lambda each: -DTYPES[each[1][0]].bits)
    (model / "model.safetensors").write_bytes(safetensors_bytes(dict(kinds)))
    expected = load_file(model / "model.safetensors")
    with Weights.open(str(model), cache_dir=tmp_path / "cache") as weights:
        assert set(weights) == set(expected)
        for name, tensor in weights.items():
            other = expected[name]
            assert (tensor.dtype, tensor.shape, tensor.stride()) == (other.dtype, other.shape, other.stride()), name
            assert torch.equal(as_bytes(tensor), as_bytes(other)), name
