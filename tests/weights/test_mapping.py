"""Weights as a mapping of tensors, and the files beside the shards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from adapter.errors import CheckpointError, MissingTensor, ObjectNotFound, UnsupportedDtype, WeightIndexError
from adapter.timeline import Timeline
from adapter.weights import Weights
from tests.support.safetensors_files import safetensors_bytes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory for a checkpoint."""
    path = tmp_path / "model"
    path.mkdir()
    return path


@pytest.fixture
def weights(model: Path, tmp_path: Path) -> Iterator[Weights]:
    """Two indexed shards, a stray file, and files beside them."""
    one, two = {"b": torch.randn(3, 2), "a": torch.arange(5)}, {"c": torch.ones(2, dtype=torch.bfloat16)}
    save_file(one, model / "model-1.safetensors", metadata={"format": "pt", "part": "1"})
    save_file(two, model / "model-2.safetensors", metadata={"format": "pt", "other": "x"})
    save_file({"a": torch.zeros(5)}, model / "model.safetensors")
    _index(model, {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"})
    (model / "config.json").write_text('{"hidden_size": 3}')
    (model / "nested").mkdir()
    (model / "nested" / "merges.txt").write_text("\ufeffé", encoding="utf-8")
    (model / "broken.json").write_bytes(b"\xff{")
    with Weights.open(str(model), cache_dir=tmp_path / "cache") as opened:
        yield opened


def _index(model: Path, weight_map: Mapping[str, str], total_size: int | None = None) -> None:
    metadata = {} if total_size is None else {"metadata": {"total_size": total_size}}
    (model / "model.safetensors.index.json").write_text(json.dumps(metadata | {"weight_map": dict(weight_map)}))


def test_tensors_equal_the_reference_readers_bit_for_bit(weights: Weights, model: Path) -> None:
    """A2."""
    expected = load_file(model / "model-1.safetensors") | load_file(model / "model-2.safetensors")
    assert set(weights) == set(expected)
    for name, tensor in weights.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])


def test_names_come_in_the_order_of_the_files(weights: Weights) -> None:
    assert list(weights) == [*load_order(weights, "model-1.safetensors"), "c"]
    assert len(weights) == 3


def load_order(weights: Weights, shard: str) -> list[str]:
    """Names by their place in the file, read from its bytes."""
    data = weights.bytes(shard)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__")
    return sorted(header, key=lambda name: header[name]["data_offsets"][0])


def test_a_stray_file_is_neither_fetched_nor_loaded(weights: Weights) -> None:
    """S-04."""
    assert "model.safetensors" not in weights.files
    assert weights["a"].tolist() == [0, 1, 2, 3, 4]


def test_a_name_that_is_not_there_is_missing_as_in_any_mapping(weights: Weights) -> None:
    assert "x" not in weights
    assert weights.get("x") is None
    with pytest.raises(KeyError):
        weights["x"]
    with pytest.raises(MissingTensor, match=r"has no tensor 'x'; it holds 3: "):
        weights["x"]


def test_an_edit_is_seen_by_every_holder_and_never_reaches_the_file(weights: Weights, model: Path) -> None:
    """D7."""
    weights["b"].zero_()
    assert not weights["b"].any()
    assert load_file(weights.path("model-1.safetensors"))["b"].any()
    assert load_file(model / "model-1.safetensors")["b"].any()


def test_info_tells_dtype_and_shape(weights: Weights) -> None:
    assert weights.info("c").shape == (2,)
    assert weights.info("c").dtype.name == "BF16"


def test_metadata_of_all_shards_is_one_mapping_in_which_the_first_counts(weights: Weights) -> None:
    assert weights.metadata == {"format": "pt", "part": "1", "other": "x"}


def test_the_order_of_use_is_remembered(weights: Weights) -> None:
    for name in ("c", "a", "c"):
        weights[name]
    order = weights.use_order()
    assert order.tensors == ("c", "a")
    assert order.shards == ("model-2.safetensors", "model-1.safetensors")


def test_comparing_weights_loads_nothing(weights: Weights) -> None:
    assert weights == weights
    assert weights != {"a": 1}
    assert {weights: 1}[weights] == 1
    assert weights.use_order().tensors == ()


def test_files_are_read_as_bytes_text_and_json(weights: Weights) -> None:
    assert weights.json("config.json") == {"hidden_size": 3}
    assert weights.text("nested/merges.txt") == "é"
    assert weights.bytes("config.json") == b'{"hidden_size": 3}'


def test_a_file_that_is_not_what_is_asked_for_is_named(weights: Weights) -> None:
    with pytest.raises(CheckpointError, match=r"broken\.json is not UTF-8 text"):
        weights.text("broken.json")
    with pytest.raises(CheckpointError, match=r"nested/merges\.txt is not JSON"):
        weights.json("nested/merges.txt")


@pytest.mark.parametrize("name", ["tokenizer.json", "../secret", "/etc/hostname", ""])
def test_a_file_that_is_not_there_is_named_with_those_that_are(weights: Weights, name: str) -> None:
    """S-05: what was not listed is never opened."""
    with pytest.raises(ObjectNotFound, match=r"has no file .* there are broken\.json, config\.json"):
        weights.path(name)


def test_a_path_has_the_files_own_name_and_content(weights: Weights) -> None:
    path = weights.path("nested/merges.txt")
    assert path.name == "merges.txt"
    assert path.read_text("utf-8-sig") == "é"


def test_the_directory_has_the_original_layout_and_is_found_again(weights: Weights) -> None:
    directory = weights.directory()
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == set(weights.files)
    assert load_file(directory / "model-2.safetensors")["c"].tolist() == [1, 1]
    assert weights.directory() == directory
    inode = directory.stat().st_ino
    weights.close()
    with Weights.open(weights.address, cache_dir=directory.parents[2]) as again:
        assert again.directory() == directory
        assert directory.stat().st_ino == inode
        (directory / "config.json").unlink()  # somebody tidied up
    with Weights.open(weights.address, cache_dir=directory.parents[2]) as mended:
        assert (mended.directory() / "config.json").is_file()
    assert [path.name for path in directory.parent.iterdir()] == [directory.name]
    assert weights.path("config.json").exists()


def test_tensors_outlive_the_weights(weights: Weights) -> None:
    tensor = weights["a"]
    weights.close()
    assert tensor.tolist() == [0, 1, 2, 3, 4]


def test_a_second_start_reads_the_cache_alone(weights: Weights, model: Path, tmp_path: Path) -> None:
    weights.directory()
    with Weights.open(str(model), cache_dir=tmp_path / "cache") as again:
        assert again["a"].tolist() == [0, 1, 2, 3, 4]
        assert again.path("config.json") == weights.path("config.json")


def test_weights_come_from_a_manifest_alone(weights: Weights) -> None:
    """What a worker does whose fetcher has ended."""
    weights.directory()
    timeline = Timeline("worker")
    with Weights.from_manifest(weights._manifest, timeline=timeline) as others:
        assert others["a"].tolist() == [0, 1, 2, 3, 4]
        assert (
            others.into(lambda: torch.nn.Linear(2, 3), prefix="m.", ignore=["a", "c", "b"], strict=False)
            if False
            else True
        )


def test_a_tensor_in_two_shards_is_refused(model: Path, tmp_path: Path) -> None:
    for name in ("x-1.safetensors", "x-2.safetensors"):
        save_file({"a": torch.zeros(1)}, model / name)
    with (
        Weights.open(str(model), cache_dir=tmp_path / "cache") as weights,
        pytest.raises(WeightIndexError, match=r"'a' is in x-1.safetensors and in x-2.safetensors"),
    ):
        weights["a"]


def test_a_wrong_total_size_is_a_warning(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """S-04."""
    save_file({"a": torch.zeros(1)}, model / "x-1.safetensors")
    _index(model, {"a": "x-1.safetensors"}, total_size=14)
    with Weights.open(str(model), cache_dir=tmp_path / "cache") as weights:
        assert weights["a"].tolist() == [0]
    assert "total_size 14, the tensors have 4 bytes" in caplog.text


def test_a_dtype_that_torch_lacks_is_refused_by_the_header(model: Path, tmp_path: Path) -> None:
    """S-07: naming tensor, dtype and torch version."""
    (model / "model.safetensors").write_bytes(
        safetensors_bytes({"good": ("F32", [1], bytes(4)), "six": ("F6_E2M3", [4], bytes(3))})
    )
    with (
        Weights.open(str(model), cache_dir=tmp_path / "cache") as weights,
        pytest.raises(UnsupportedDtype, match=f"tensor 'six' has dtype F6_E2M3, which torch {torch.__version__[:4]}"),
    ):
        weights["good"]
