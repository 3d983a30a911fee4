"""Views on mapped shard files: every dtype, every shape, nothing copied, nothing written back."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from adapter.checkpoint.dtypes import DTYPES
from adapter.checkpoint.header import Header, parse_header
from adapter.device.tensors import MappedShard, as_bytes
from adapter.errors import CacheError, UnsupportedDtype
from tests.support.safetensors_files import safetensors_bytes, with_header

Tensors = Mapping[str, tuple[str, Sequence[int], bytes]]


def header_of(data: bytes) -> Header:
    """The header of a whole file."""
    return parse_header(data[: 8 + int.from_bytes(data[:8], "little")], file="x", file_bytes=len(data))


def shard(directory: Path, tensors: Tensors) -> MappedShard:
    """A shard file with these tensors, opened."""
    path = directory / "model.safetensors"
    path.write_bytes(safetensors_bytes(tensors))
    return MappedShard.open(path, header_of(path.read_bytes()))


# Source: the torch binding of the reference reader, which every view is compared with
VIEWED = sorted(name for name, dtype in DTYPES.items() if hasattr(torch, dtype.torch_name))


@pytest.mark.parametrize("dtype", VIEWED)
def test_every_dtype_equals_the_reference_readers_tensor(tmp_path: Path, dtype: str) -> None:
    """S-07: bytes and dtypes are kept exactly."""
    size_bytes = 8 * DTYPES[dtype].bits // 8
    data = bytes(i % 2 for i in range(size_bytes)) if dtype == "BOOL" else os.urandom(size_bytes)
    mapped = shard(tmp_path, {"t": (dtype, [2, 4], data)})
    view = mapped.tensor("t").view()
    expected = load_file(tmp_path / "model.safetensors")["t"]
    assert (view.dtype, view.shape, view.stride()) == (expected.dtype, expected.shape, expected.stride())
    assert torch.equal(as_bytes(view), as_bytes(expected))
    assert bytes(as_bytes(view).tolist()) == data
    assert not mapped.copied


def test_packed_four_bit_numbers_have_half_the_last_dimension(tmp_path: Path) -> None:
    """S-07."""
    view = shard(tmp_path, {"t": ("F4", [2, 8], bytes(range(8)))}).tensor("t").view()
    assert view.dtype == torch.float4_e2m1fn_x2
    assert view.shape == (2, 4)


def test_an_odd_number_of_packed_elements_in_a_row_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedDtype, match=r"'t' has dtype F4 and shape \[2, 3\].*multiple of 2"):
        shard(tmp_path, {"t": ("F4", [2, 3], bytes(3))})


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - VIEWED))
def test_a_dtype_that_torch_lacks_is_refused_from_the_header_alone(tmp_path: Path, dtype: str) -> None:
    """S-07: naming tensor, dtype and torch version; the data need not be there."""
    data = safetensors_bytes({"t": (dtype, [8], bytes(DTYPES[dtype].bits))})
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(len(data))
    with pytest.raises(UnsupportedDtype) as caught:
        MappedShard.open(path, header_of(data))
    assert caught.value.fields["tensor"] == "t"
    assert caught.value.fields["dtype"] == dtype
    assert str(torch.__version__) in str(caught.value)


@pytest.mark.parametrize(("shape", "size_bytes"), [((), 4), ((0,), 0), ((3, 0, 2), 0), ((1, 1, 1), 4), ((2, 3), 24)])
def test_scalars_and_empty_tensors_keep_their_shape(tmp_path: Path, shape: tuple[int, ...], size_bytes: int) -> None:
    view = shard(tmp_path, {"t": ("F32", shape, bytes(size_bytes))}).tensor("t").view()
    assert view.shape == shape
    assert view.is_contiguous()


def test_a_file_of_empty_tensors_alone_needs_no_map(tmp_path: Path) -> None:
    assert shard(tmp_path, {"t": ("F32", [0], b"")}).tensor("t").view().tolist() == []


def test_a_misaligned_tensor_is_copied_once_and_counted(tmp_path: Path) -> None:
    """D7."""
    tensors = {"byte": ("U8", [1], b"\x01"), "odd": ("F32", [2], bytes(4) + b"\0\0\x80\x3f")}
    mapped = shard(tmp_path, tensors)
    view = mapped.tensor("odd").view()
    assert view.tolist() == [0, 1]
    assert view.data_ptr() % 4 == 0
    assert mapped.copied == {"odd": 8}
    view.zero_()
    assert mapped.tensor("odd").view().tolist() == [0, 0]
    mapped.tensor("byte").view()
    assert mapped.copied == {"odd": 8}


def test_a_header_that_is_not_padded_shifts_every_tensor(tmp_path: Path) -> None:
    header = '{"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    assert len(header) % 4
    path = tmp_path / "x"
    path.write_bytes(with_header(header, b"\0\0\x80\x3f"))
    mapped = MappedShard.open(path, header_of(path.read_bytes()))
    assert mapped.tensor("t").view().tolist() == [1]
    assert mapped.copied == {"t": 4}


def test_edits_stay_in_this_process_and_out_of_the_file(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {"t": ("U8", [4], bytes(4))})
    before = (tmp_path / "model.safetensors").read_bytes()
    mapped.tensor("t").view().fill_(7)
    assert mapped.tensor("t").view().tolist() == [7] * 4
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_a_read_only_file_can_be_mapped_and_edited(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {"t": ("U8", [4], bytes(4))})
    (tmp_path / "model.safetensors").chmod(0o444)
    assert mapped.tensor("t").view().add_(1).tolist() == [1] * 4


def test_a_view_has_a_storage_of_its_own_length_and_no_base(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {"a": ("F32", [2, 2], bytes(16)), "b": ("U8", [64], bytes(64))})
    view = mapped.tensor("a").view()
    assert view.untyped_storage().nbytes() == 16
    assert view._base is None
    assert not view.requires_grad
    assert not view.is_inference()


def test_views_outlive_the_shard_and_the_last_one_ends_the_map(tmp_path: Path) -> None:
    def maps() -> bool:
        return str(tmp_path / "model.safetensors") in Path("/proc/self/maps").read_text()

    mapped = shard(tmp_path, {"t": ("U8", [4], b"abcd")})
    view = mapped.tensor("t").view()
    mapped.close()
    (tmp_path / "model.safetensors").unlink()
    del mapped
    gc.collect()
    assert bytes(view.tolist()) == b"abcd"
    path = str(tmp_path / "model.safetensors")
    assert path in Path("/proc/self/maps").read_text()
    del view
    gc.collect()
    assert not maps()


def test_one_map_serves_all_tensors_of_a_shard(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {f"t{i}": ("U8", [4], b"abcd") for i in range(50)})
    views = [mapped.tensor(f"t{i}").view() for i in range(50)]
    assert Path("/proc/self/maps").read_text().count(str(tmp_path)) == 1
    assert len(views) == 50


def test_bytes_that_arrive_after_the_view_was_made_are_seen(tmp_path: Path) -> None:
    """A page that was not written to shows what its file holds."""
    mapped = shard(tmp_path, {"t": ("U8", [4], bytes(4))})
    view = mapped.tensor("t").view()
    path = tmp_path / "model.safetensors"
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.pwrite(descriptor, b"wxyz", path.stat().st_size - 4)
    finally:
        os.close(descriptor)
    assert bytes(view.tolist()) == b"wxyz"


def test_a_file_shorter_than_its_header_says_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {"t": ("U8", [8192], bytes(8192))})
    with (tmp_path / "model.safetensors").open("r+b") as file:
        file.truncate(4096)
    with pytest.raises(CacheError, match="has 4096 bytes where its header speaks of"):
        mapped.tensor("t").view()


def test_bytes_are_read_past_the_map(tmp_path: Path) -> None:
    mapped = shard(tmp_path, {"a": ("U8", [3], b"abc"), "t": ("U8", [6], b"defghi")})
    buffer = bytearray(4)
    mapped.tensor("t").read_into(1, memoryview(buffer))
    assert bytes(buffer) == b"efgh"
    with pytest.raises(CacheError, match="ends at byte"):
        mapped.tensor("t").read_into(4, memoryview(buffer))
    mapped.close()
    with pytest.raises(CacheError, match="was closed"):
        mapped.tensor("t").read_into(0, memoryview(buffer))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="cannot be opened: No such file"):
        MappedShard.open(tmp_path / "x", header_of(safetensors_bytes({})))
