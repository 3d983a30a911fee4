"""Which objects are streamed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from adapter.checkpoint.index import parse_index
from adapter.errors import WeightIndexError
from adapter.storage.base import ObjectInfo
from adapter.streaming.selection import FILE_LIMIT_BYTES, Selection, select

INDEX = parse_index(b'{"weight_map": {"b": "2.safetensors", "a": "1.safetensors"}}', file="i")
INDEX_NAME = "model.safetensors.index.json"


def chosen(names: Sequence[str], *, order: Sequence[str] = (), size_bytes: int = 1) -> Selection:
    listing = {name: ObjectInfo(name, size_bytes, "v") for name in names}
    indexed = INDEX_NAME in names
    return select(
        listing, INDEX if indexed else None, INDEX_NAME if indexed else None, address="memory://m", order=order
    )


def kinds(selection: Selection) -> dict[str, str]:
    return {wanted.info.key: wanted.kind for wanted in selection.wanted}


def test_shards_of_the_index_then_the_files_beside_them() -> None:
    """S-04: a stray shard is neither fetched nor loaded."""
    found = chosen([INDEX_NAME, "1.safetensors", "2.safetensors", "model.safetensors", "config.json", "a/b.txt"])
    assert kinds(found) == {
        "2.safetensors": "shard",
        "1.safetensors": "shard",
        INDEX_NAME: "index",
        "config.json": "file",
        "a/b.txt": "file",
    }
    assert list(kinds(found))[:2] == ["2.safetensors", "1.safetensors"]
    assert found.skipped == ("model.safetensors",)


def test_hidden_files_are_nobodys_model() -> None:
    found = chosen(["model.safetensors", "a.json", ".gitattributes", ".cache/huggingface/a.json", "b/.x", ".hidden/c"])
    assert set(kinds(found)) == {"model.safetensors", "a.json"}


def test_the_order_hint_reorders_and_adds_nothing() -> None:
    found = chosen([INDEX_NAME, "1.safetensors", "2.safetensors"], order=["1.safetensors", "gone.safetensors"])
    assert [wanted.info.key for wanted in found.wanted if wanted.kind == "shard"] == ["1.safetensors", "2.safetensors"]


def test_missing_shards_are_all_named() -> None:
    """S-04"""
    with pytest.raises(WeightIndexError) as caught:
        chosen([INDEX_NAME])
    assert "1.safetensors" in caught.value.message
    assert "2.safetensors" in caught.value.message


def test_the_same_weights_in_other_formats_stay_where_they_are() -> None:
    names = ["pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "MODEL.GGUF", "rust_model.ot", "m.msgpack"]
    found = chosen(["model.safetensors", *names])
    assert kinds(found) == {"model.safetensors": "shard"}
    assert set(found.skipped) == set(names)


def test_large_files_and_unsafe_names_are_left_out() -> None:
    """S-05"""
    unsafe = ["../up.json", "a\\b.json", "x/../../y.json", "nul\0.json"]
    found = chosen(["model.safetensors", *unsafe])
    assert kinds(found) == {"model.safetensors": "shard"}
    assert set(found.skipped) == set(unsafe)
    assert chosen(["model.safetensors", "big.json"], size_bytes=FILE_LIMIT_BYTES + 1).skipped == ("big.json",)


def test_a_shard_whose_name_leads_out_is_refused() -> None:
    """S-05"""
    with pytest.raises(WeightIndexError, match="refused"):
        chosen(["../other.safetensors"])
