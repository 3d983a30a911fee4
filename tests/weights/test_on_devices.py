"""Weights on a device other than the CPU, and what they cost on the CPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from adapter.device.pool import DevicePool
from adapter.errors import DeviceUnavailable
from adapter.weights import Weights
from tests.support.fake_cuda import FakeCuda

Open = Callable[[Mapping[str, torch.Tensor]], Weights]


def test_a_tensor_asked_for_by_name_is_waited_for_on_the_device(saved: Open) -> None:
    value = torch.randn(3, 5)
    cuda = FakeCuda()
    manifest = saved({"a": value})._manifest
    with Weights(manifest, device="cuda", pool=DevicePool(cuda, cuda.memory())) as weights:
        assert weights.device == "cuda:0"
        assert len(weights) == 1
        assert "init" not in cuda.calls, "names and devices are told without a context"
        assert torch.equal(weights["a"].as_subclass(torch.Tensor), value)
        assert torch.equal(weights["a"].as_subclass(torch.Tensor), value)
        assert cuda.calls.count("init") == 1
        assert cuda.calls.count("stream.synchronize") == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_told_before_anything_is_built(saved: Open) -> None:
    with pytest.raises(DeviceUnavailable):
        saved({"weight": torch.ones(1, 1)}).into(lambda: pytest.fail("built"), device="cuda")


class Mixed(nn.Module):
    """Tied parameters and a computed buffer."""

    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.two = nn.Linear(4, 4, bias=False)
        self.two.weight = self.one.weight
        self.register_buffer("table", torch.arange(4.0), persistent=False)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_module_on_a_real_device_equals_the_one_on_the_cpu(saved: Open) -> None:
    twin = Mixed()
    weights = saved(twin.state_dict())
    model = weights.into(Mixed, device="cuda")
    assert model.two.weight is model.one.weight
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        assert tensor.device.type == "cuda"
        assert torch.equal(tensor.cpu(), twin.get_buffer(name) if name == "table" else twin.get_parameter(name))


def test_a_model_on_the_cpu_adds_no_anonymous_memory(tmp_path: Path) -> None:
    """A4: its pages are the file's."""
    (tmp_path / "model").mkdir()
    save_file({"weight": torch.ones(4096, 4096), "bias": torch.ones(4096)}, tmp_path / "model" / "model.safetensors")
    code = f"""
import torch
from pathlib import Path
from adapter import Weights
def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/smaps_rollup") if line.startswith("Anonymous:"))
with Weights.open({str(tmp_path / "model")!r}, cache_dir={str(tmp_path / "cache")!r}) as weights:
    weights.directory()
    torch.ones(512, 512).sum()
    before = anonymous()
    model = weights.into(lambda: torch.nn.Linear(4096, 4096))
    total = model.weight.view(-1)[::512].sum().item()
    print(total, anonymous() - before)
"""
    total, added_kib = subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True).split()
    assert float(total) == 4096 * 8
    assert int(added_kib) < 16 << 10, "64 MiB of weights"
