"""The way of a tensor to a GPU, on a CUDA that does nothing before it is waited for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from adapter.checkpoint.header import parse_header
from adapter.device.base import Device
from adapter.device.cpu import CpuDevice
from adapter.device.cuda import CudaDevice
from adapter.device.tensors import MappedShard
from adapter.errors import CacheError, DeviceError, DeviceUnavailable
from tests.support.fake_cuda import FakeCuda
from tests.support.safetensors_files import safetensors_bytes

MEBIBYTE = 1 << 20


@pytest.fixture
def shard(tmp_path: Path) -> MappedShard:
    """Tensors shorter and longer than all pinned buffers together, misaligned, empty, scalar."""
    data = safetensors_bytes(
        {
            "long": ("U8", [45 * MEBIBYTE + 123], os.urandom(45 * MEBIBYTE + 123)),
            "odd": ("F32", [2, 3], os.urandom(24)),
            "scalar": ("I64", [], bytes(range(8))),
            "empty": ("F32", [0, 2], b""),
            "packed": ("F4", [2, 8], bytes(range(8))),
        }
    )
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    header = parse_header(data[: 8 + int.from_bytes(data[:8], "little")], file="x", file_bytes=len(data))
    return MappedShard.open(path, header)


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_a_placed_tensor_has_the_files_bytes_after_finish(shard: MappedShard, kind: str) -> None:
    cuda = FakeCuda()
    device: Device = CpuDevice() if kind == "cpu" else CudaDevice(0, cuda, cuda.memory())
    placed = {name: device.place(shard.tensor(name)) for name in shard.header.tensors}
    device.finish()
    for name, tensor in placed.items():
        expected = shard.tensor(name).view()
        found = tensor.as_subclass(torch.Tensor)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)), name


def test_copies_run_on_a_stream_of_their_own_behind_the_callers_work(shard: MappedShard) -> None:
    cuda = FakeCuda()
    device = CudaDevice(0, cuda, cuda.memory())
    device.place(shard.tensor("odd"))
    assert cuda.calls.index("stream.wait_stream") > cuda.calls.index("empty cuda:0 [2, 3]")
    assert not cuda.current.queue


def test_a_ring_of_four_pinned_buffers_serves_any_length(shard: MappedShard) -> None:
    cuda = FakeCuda()
    device = CudaDevice(0, cuda, cuda.memory())
    assert "pinned" not in cuda.calls
    for _ in range(3):
        device.place(shard.tensor("long"))
    device.finish()
    assert cuda.calls.count("pinned") == 4


def test_a_file_that_cannot_be_read_ends_the_copies_before_their_memory_goes(shard: MappedShard) -> None:
    cuda = FakeCuda()
    device = CudaDevice(0, cuda, cuda.memory())
    tensor = shard.tensor("long")
    shard.close()
    with pytest.raises(CacheError):
        device.place(tensor)
    assert cuda.calls[-1] == "stream.synchronize"


def test_a_full_device_is_a_device_error_that_names_the_tensor(shard: MappedShard) -> None:
    cuda = FakeCuda()
    memory = cuda.memory()

    def full(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nSee the documentation.")

    device = CudaDevice(1, cuda, type(memory)(memory.pinned, full))
    with pytest.raises(DeviceError, match=r"'odd' could not be copied to cuda:1: CUDA out of memory. Tried .*GiB\.$"):
        device.place(shard.tensor("odd"))


def test_it_says_what_it_is() -> None:
    device = CudaDevice(3, FakeCuda(4))
    assert device.describe() == {"name": "cuda:3", "kind": "Fake H200", "memory_bytes": 2 << 30}
    assert CpuDevice().describe()["name"] == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_where_torch_has_no_cuda_the_device_is_unavailable() -> None:
    with pytest.raises(DeviceUnavailable, match="cuda:0 could not be initialised"):
        CudaDevice(0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_real_device_the_bytes_arrive(shard: MappedShard) -> None:
    device = CudaDevice(0)
    placed = {name: device.place(shard.tensor(name)) for name in shard.header.tensors}
    device.finish()
    for name, tensor in placed.items():
        assert tensor.device.type == "cuda"
        view = shard.tensor(name).view()
        assert torch.equal(tensor.cpu().reshape(-1).view(torch.uint8), view.reshape(-1).view(torch.uint8)), name
