"""From pickles to safetensors and into a model, bit for bit; what is refused, and what is left behind: nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, load_model
from torch import nn

from adapter.checkpoint.dtypes import DTYPES
from adapter.checkpoint.header import Header, parse_header
from adapter.checkpoint.writing import NewTensor
from adapter.conversion.convert import Converted, ConvertOptions, convert
from adapter.conversion.shards import verify_shard, write_shard
from adapter.conversion.state import Choice
from adapter.errors import (
    ChecksumMismatch,
    ConfigurationError,
    HeaderError,
    NotConvertible,
    WeightIndexError,
)
from adapter.storage.files import FileSource
from adapter.streaming.inspection import inspect_checkpoint
from adapter.weights import Weights
from tests.support.safetensors_files import safetensors_bytes


def header_of(path: Path) -> Header:
    return parse_header(path.read_bytes(), file=path.name, file_bytes=path.stat().st_size)


def saved(directory: Path, value: Any, name: str = "pytorch_model.bin", **how: Any) -> Path:
    directory.mkdir(exist_ok=True)
    torch.save(value, directory / name, **how)
    return directory / name


def converted(source: Path, target: Path, **choice: Any) -> Converted:
    shard_bytes = choice.pop("shard_bytes", 5 * 10**9)
    return convert(source, target, ConvertOptions(shard_bytes, Choice(**choice)))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit."""
    raw = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*raw)


def every_dtype() -> dict[str, torch.Tensor]:
    """A tensor of random bytes of each dtype that torch and the format share, NaNs with payloads among them."""
    found = {}
    for dtype in DTYPES.values():
        known = getattr(torch, dtype.torch_name, None)
        if known is not None:
            high = 2 if dtype.name == "BOOL" else 256
            found[dtype.name] = torch.randint(0, high, (3, 16), dtype=torch.uint8).view(known)
    assert len(found) >= 19
    return found


# -- values -----------------------------------------------------------------------------------------------------------


def test_every_dtype_arrives_bit_for_bit(tmp_path: Path) -> None:
    """B9: as the reference reader and as our weights give it."""
    tensors = every_dtype() | {"scalar": torch.tensor(3.0), "empty": torch.zeros(0, 4)}
    converted(saved(tmp_path / "in", tensors), tmp_path / "out")
    reference = load_file(tmp_path / "out" / "model.safetensors")
    with Weights.open(str(tmp_path / "out"), cache_dir=tmp_path / "cache") as weights:
        assert set(reference) == set(weights) == set(tensors)
        for name, tensor in tensors.items():
            assert same(reference[name], tensor), name
            assert same(weights[name], tensor), name


def test_what_lies_oddly_in_memory_is_written_as_its_values(tmp_path: Path) -> None:
    base = torch.randn(4, 6)
    tensors = {
        "transposed": base.T,
        "slice": base[1:3, ::2],
        "expanded": torch.ones(1, 3).expand(5, 3),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "channels": torch.randn(1, 2, 3, 4).to(memory_format=torch.channels_last),
        "parameter": nn.Parameter(torch.randn(2)),
    }
    converted(saved(tmp_path / "in", tensors), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {name for name in tensors if not torch.equal(found[name], tensors[name])} == set()


def test_data_begins_aligned_and_each_tensor_at_a_multiple_of_its_width(tmp_path: Path) -> None:
    """D7: nothing of it is copied when it is loaded."""
    tensors = {"flag": torch.ones(3, dtype=torch.bool), "half": torch.ones(3).half(), "long": torch.ones(3).long()}
    converted(saved(tmp_path / "in", tensors), tmp_path / "out")
    header = header_of(tmp_path / "out" / "model.safetensors")
    assert header.data_start % 64 == 0
    assert [(info.name, info.start % (info.dtype.bits // 8)) for info in header.tensors.values()] == [
        ("long", 0),
        ("half", 0),
        ("flag", 0),
    ]


def test_misaligned_safetensors_are_aligned(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    odd = safetensors_bytes({"odd": ("U8", [1], b"x"), "a": ("F32", [2], b"\1" * 8)}, {"format": "pt", "by": "me"})
    (tmp_path / "in" / "model.safetensors").write_bytes(odd)
    converted(tmp_path / "in", tmp_path / "out")
    for name, notes in (("in", 1), ("out", 0)):
        with FileSource(tmp_path / name) as source:
            assert len(inspect_checkpoint(source, name).notes()) == notes
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("in", "out"))
    assert all(same(before[name], after[name]) for name in before)
    assert header_of(tmp_path / "out" / "model.safetensors").metadata == {"format": "pt", "by": "me"}


def test_shards_have_an_index_and_keep_the_order(tmp_path: Path) -> None:
    tensors = {f"layer.{number}": torch.full((256,), float(number)) for number in range(10)}
    done = converted(saved(tmp_path / "in", tensors), tmp_path / "out", shard_bytes=3 * 1024)
    assert done.shards == tuple(f"model-{number:05}-of-00004.safetensors" for number in range(1, 5))
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 10 * 1024}
    assert list(index["weight_map"]) == list(tensors)
    with Weights.open(str(tmp_path / "out"), cache_dir=tmp_path / "cache") as weights:
        assert list(weights) == list(tensors)
        assert all(same(weights[name], tensors[name]) for name in tensors)


# -- ties -------------------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    """For us by either name, and for the reference's own `load_model`."""
    model = Pair()
    done = converted(saved(tmp_path / "in", model.state_dict()), tmp_path / "out")
    assert done.tied == {"head.weight": "embed.weight"}
    path = tmp_path / "out" / "model.safetensors"
    assert list(load_file(path)) == ["embed.weight"]
    with Weights.open(str(tmp_path / "out"), cache_dir=tmp_path / "cache") as weights:
        loaded = weights.into(Pair)
        assert loaded.head.weight is loaded.embed.weight
        assert same(loaded.embed.weight, model.embed.weight)
        assert same(weights["head.weight"], model.head.weight)
    other = Pair()
    missing, unexpected = load_model(other, path)
    assert (list(missing), list(unexpected)) == ([], [])
    assert same(other.head.weight, model.head.weight)


def test_ties_survive_being_cut_anew(tmp_path: Path) -> None:
    tensors = {"embed": torch.randn(300), "other": torch.randn(300)}
    converted(saved(tmp_path / "in", tensors | {"head": tensors["embed"]}), tmp_path / "one")
    done = converted(tmp_path / "one", tmp_path / "two", shard_bytes=1200)
    assert (len(done.shards), done.tied) == (2, {"head": "embed"})
    with Weights.open(str(tmp_path / "two"), cache_dir=tmp_path / "cache") as weights:
        assert same(weights["head"], tensors["embed"])


def test_equal_values_and_overlapping_views_are_no_ties(tmp_path: Path) -> None:
    base = torch.randn(6)
    tensors = {
        "a": base[:4],
        "b": base[2:],
        "c": base[:4].clone(),
        "d": base[:4].view(2, 2),
    }
    assert converted(saved(tmp_path / "in", tensors), tmp_path / "out").tied == {}
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert all(same(found[name], tensors[name]) for name in tensors)


# -- what is refused --------------------------------------------------------------------------------------------------


class Thing:
    pass


REFUSED = {
    "number": ({"a": torch.ones(1), "step": 3}, "'step' is an int, not a tensor"),
    "nothing": ({"a": torch.ones(1), "b": None}, "'b' is a NoneType, not a tensor"),
    "nested": ({"state_dict": {"a": torch.ones(1)}, "epoch": 1}, "--key state_dict"),
    "sparse": ({"s": torch.eye(2).to_sparse()}, "'s' is sparse_coo, not dense"),
    "quantized": ({"q": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, "'q' is quantized (qint8)"),
    "dtype": ({"z": torch.ones(2, dtype=torch.complex128)}, "'z' has the dtype complex128, which the format lacks"),
    "meta": ({"m": torch.ones(2, device="meta")}, "'m' has no values"),
    "name": ({1: torch.ones(1)}, "1 is a name of type int"),
    "reserved": ({"__metadata__": torch.ones(1)}, "'__metadata__' is a name that the format does not allow"),
    "surrogate": ({"\ud800": torch.ones(1)}, "is a name that the format does not allow"),
    "a tensor": (torch.ones(3), "holds a Tensor, not a dict of tensors"),
    "a list": ([torch.ones(3)], "holds a list, not a dict of tensors"),
    "empty": ({}, "holds no tensor that is wanted"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_represented_is_refused_by_name(case: str, tmp_path: Path) -> None:
    value, said = REFUSED[case]
    with pytest.raises(NotConvertible) as caught:
        converted(saved(tmp_path / "in", value), tmp_path / "out")
    assert said in caught.value.message
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_every_refused_entry_is_named_at_once(tmp_path: Path) -> None:
    value = {"a": 1, "b": "x", "c": torch.ones(1), "d": [1]}
    with pytest.raises(NotConvertible, match=r"'a' is an int.*'b' is a str.*'d' is a list") as caught:
        converted(saved(tmp_path / "in", value), tmp_path / "out")
    assert caught.value.fields["count"] == 3


def test_entries_can_be_chosen_and_left_out(tmp_path: Path) -> None:
    value = {"state_dict": OrderedDict(a=torch.ones(2), step=3), "epoch": 1}
    done = converted(saved(tmp_path / "in", value), tmp_path / "out", key="state_dict", skip=("st*",))
    assert (done.tensors, done.skipped) == (1, ("step",))


def test_a_missing_key_says_which_there_are(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="no entry 'model'; there are 'a', 'b'"):
        converted(saved(tmp_path / "in", {"a": torch.ones(1), "b": 1}), tmp_path / "out", key="model")


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_pickle_is_never_run(tmp_path: Path, zipped: bool) -> None:
    path = saved(
        tmp_path / "in", {"a": torch.ones(1), "x": Evil(tmp_path / "owned")}, _use_new_zipfile_serialization=zipped
    )
    with pytest.raises(NotConvertible, match=r"holds an object of posix\.mkdir, which only running code"):
        converted(path, tmp_path / "out")
    assert not (tmp_path / "owned").exists()


def test_an_object_of_a_class_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotConvertible, match="Thing, which only running code"):
        converted(saved(tmp_path / "in", {"a": Thing()}), tmp_path / "out")


def test_the_old_form_is_read(tmp_path: Path) -> None:
    path = saved(tmp_path / "in", {"a": torch.arange(3)}, _use_new_zipfile_serialization=False)
    converted(path, tmp_path / "out")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["a"], torch.arange(3))


@pytest.mark.parametrize("cut", [0.1, 0.9])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_cut_file_is_damaged(tmp_path: Path, zipped: bool, cut: float) -> None:
    path = saved(tmp_path / "in", {"a": torch.randn(100, 100)}, _use_new_zipfile_serialization=zipped)
    os.truncate(path, int(path.stat().st_size * cut))
    with pytest.raises(NotConvertible, match="damaged or incomplete"):
        converted(path, tmp_path / "out")


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"<html></html>", "an HTML page"), (b"", "an empty file"), (b"version https://git-lfs.github.com", "git-LFS")],
)
def test_what_is_no_checkpoint_is_described(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(NotConvertible, match=said):
        converted(tmp_path / "x.bin", tmp_path / "out")


def test_a_safetensors_file_of_a_huge_claim_is_refused(tmp_path: Path) -> None:
    """S-03"""
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(HeaderError):
        converted(tmp_path / "model.safetensors", tmp_path / "out")


# -- directories ------------------------------------------------------------------------------------------------------


def parts(directory: Path, *names: str) -> Path:
    for number, name in enumerate(names):
        saved(directory, {f"t{number}": torch.full((2,), float(number))}, name)
    weight_map = {f"t{number}": name for number, name in enumerate(names)}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_parts_and_the_files_beside_them(tmp_path: Path) -> None:
    source = parts(tmp_path / "in", "pytorch_model-1.bin", "pytorch_model-2.bin")
    saved(source, {"state": 1}, "optimizer.pt")
    saved(source, {"args": 1}, "training_args.bin")
    (source / "config.json").write_text("{}")
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text("[]")
    done = converted(source, tmp_path / "out")
    assert sorted(done.files) == ["1_Pooling/config.json", "config.json"]
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"model.safetensors", *done.files}
    assert set(load_file(tmp_path / "out" / "model.safetensors")) == {"t0", "t1"}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    """S-04"""
    source = parts(tmp_path / "in", "a.bin", "b.bin")
    (source / "b.bin").unlink()
    with pytest.raises(WeightIndexError, match=r"1 of 2 parts are missing: b\.bin"):
        converted(source, tmp_path / "out")


def test_a_part_elsewhere_is_not_opened(tmp_path: Path) -> None:
    """S-05"""
    source = parts(tmp_path / "in", "a.bin")
    (source / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.bin"}}))
    with pytest.raises(WeightIndexError, match="leads out of its directory"):
        converted(source, tmp_path / "out")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    source = parts(tmp_path / "in", "a.bin", "b.bin")
    shutil.copy(source / "a.bin", source / "b.bin")
    with pytest.raises(NotConvertible, match=r"'t0' is in a\.bin and in b\.bin"):
        converted(source, tmp_path / "out")


def test_several_checkpoints_are_not_guessed_among(tmp_path: Path) -> None:
    for name in ("a.pt", "b.ckpt"):
        saved(tmp_path / "in", {"a": torch.ones(1)}, name)
    with pytest.raises(NotConvertible, match=r"holds several: a\.pt, b\.ckpt; name the one"):
        converted(tmp_path / "in", tmp_path / "out")
    (tmp_path / "in" / "model.safetensors").write_bytes(safetensors_bytes({"a": ("U8", [1], b"x")}))
    with pytest.raises(NotConvertible, match="holds safetensors"):
        converted(tmp_path / "in", tmp_path / "out")


# -- all or nothing ---------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    source = saved(tmp_path / "in", {"a": torch.ones(1)})
    (tmp_path / "out").mkdir()
    converted(source, tmp_path / "out")  # an empty one may be there: a mounted volume is
    before = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(ConfigurationError, match="nothing is overwritten"):
        converted(source, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == before


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    """A file that may not grow any further stands for a disk that fails."""
    source = saved(tmp_path / "in", {"a": torch.ones(10_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ConfigurationError, match="cannot be made"):
            converted(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(os.listdir(tmp_path)) == ["in"]


def test_a_path_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="gone does not exist"):
        converted(tmp_path / "gone", tmp_path / "out")


@pytest.mark.parametrize("at", [-1, 0, 20])
def test_a_flipped_bit_is_found_by_reading_back(tmp_path: Path, at: int) -> None:
    tensors = {"a": torch.randn(64), "b": torch.zeros(3)}
    shard = [NewTensor(name, DTYPES["F32"], tuple(value.shape), value.numel() * 4) for name, value in tensors.items()]
    path = tmp_path / "model.safetensors"
    write_shard(path, shard, tensors, {})
    verify_shard(path, shard, tensors)
    data = bytearray(path.read_bytes())
    data[at if at < 0 else header_of(path).data_start + at] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumMismatch, match="read back with other values"):
        verify_shard(path, shard, tensors)
