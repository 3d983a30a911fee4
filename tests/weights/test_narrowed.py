"""Weights of which only some tensors, or some rows, are wanted: what is read, what is held, what stays for later."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load
from torch import nn

from adapter.errors import CacheError, ConfigurationError, MissingTensor, TensorMismatch
from adapter.storage.memory import MemorySource, register_memory
from adapter.weights import Weights
from tests.support.safetensors_files import safetensors_bytes

MEBIBYTE = 1 << 20
LAYERS = 32
PAGE_BYTES = 4096
HEAD_BYTES = 64 << 10
"""Read of a shard before its header is known."""


def shard_bytes(tensors: Mapping[str, tuple[str, Sequence[int]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """A shard of random bytes."""
    chance = random.Random(json.dumps(sorted(tensors)))
    widths = {"F32": 4, "I32": 4, "U8": 1, "I16": 2}
    return safetensors_bytes(
        {
            name: (kind, shape, chance.randbytes(widths[kind] * math.prod(shape)))
            for name, (kind, shape) in tensors.items()
        },
        metadata,
    )


def layer(number: int) -> dict[str, tuple[str, Sequence[int]]]:
    """Half a MiB in four tensors."""
    return {f"layers.{number}.{part}": ("I16", [64, 1024]) for part in ("q", "k", "v", "o")}


@dataclass
class Store:
    """A checkpoint in memory, opened again and again with one cache."""

    objects: dict[str, bytes]
    cache: Path
    owned: ExitStack = field(default_factory=ExitStack)
    source: MemorySource = field(default_factory=lambda: MemorySource({}))

    def open(self, **choice: Sequence[str]) -> Weights:
        """Weights from this store; what was read before counts no more."""
        self.source = MemorySource(self.objects, name="narrowed")
        weights = Weights.open(register_memory("narrowed", self.source), cache_dir=self.cache, **choice)  # type: ignore[arg-type]
        return self.owned.enter_context(weights)

    @property
    def read_bytes(self) -> int:
        """What the latest weights read of the store."""
        return self.source.received_bytes

    def expected(self) -> dict[str, torch.Tensor]:
        """What the reference reader finds."""
        found: dict[str, torch.Tensor] = {}
        for name, content in self.objects.items():
            if name.endswith(".safetensors"):
                found |= load(content)
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Callable[[dict[str, bytes]], Store]]:
    """Makes a store of these objects."""
    with ExitStack() as owned:
        yield lambda objects: Store(objects, tmp_path / "cache", owned)


@pytest.fixture
def layers(store: Callable[[dict[str, bytes]], Store]) -> Store:
    """32 layers of half a MiB, an embedding of 4 MiB, in one shard of 20 MiB, and a configuration."""
    tensors: dict[str, tuple[str, Sequence[int]]] = {"embed": ("I32", [4096, 256])}
    for number in range(LAYERS):
        tensors |= layer(number)
    return store({"model.safetensors": shard_bytes(tensors), "config.json": b"{}"})


def all_read(weights: Weights) -> dict[str, torch.Tensor]:
    """Every tensor, waited for."""
    return dict(weights)


def test_one_layer_of_32_costs_little_more_than_its_bytes(layers: Store) -> None:
    """B7."""
    weights = layers.open(only=["layers.17.*"])
    found, expected = all_read(weights), layers.expected()
    assert list(found) == list(layer(17))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    layer_bytes = sum(tensor.nbytes for tensor in found.values())
    others = HEAD_BYTES + len(b"{}") + 2 * PAGE_BYTES
    assert layer_bytes < layers.read_bytes <= 1.1 * layer_bytes + others


def test_half_of_the_rows_costs_half_of_the_bytes(layers: Store) -> None:
    """B7."""
    weights = layers.open(only=["embed[2048:4096]"])
    expected = layers.expected()["embed"]
    assert weights.info("embed").shape == (2048, 256)
    assert torch.equal(weights["embed"], expected[2048:])
    assert layers.read_bytes <= 0.55 * expected.nbytes + HEAD_BYTES


def test_skip_leaves_out(layers: Store) -> None:
    weights = layers.open(skip=["layers.*", "nothing"])
    assert list(weights) == ["embed"]
    assert torch.equal(weights["embed"], layers.expected()["embed"])
    assert layers.read_bytes <= 1.05 * weights["embed"].nbytes + HEAD_BYTES


def test_what_is_left_out_is_missing(layers: Store) -> None:
    weights = layers.open(only=["layers.3.*"])
    assert "embed" not in weights
    with pytest.raises(MissingTensor, match="has no tensor 'embed'; it holds 4: layers.3.q"):
        weights["embed"]


def test_a_module_is_filled_with_its_layer_alone(layers: Store) -> None:
    weights = layers.open(only=["layers.5.*"])

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for part in ("q", "k", "v", "o"):
                self.register_buffer(part, torch.zeros(64, 1024, dtype=torch.int16))

    model = weights.into(Layer, prefix="layers.5.")
    assert torch.equal(model.get_buffer("v"), layers.expected()["layers.5.v"])


def test_a_pattern_that_fits_nothing_is_told(layers: Store) -> None:
    """A misspelt name must not give less than was meant."""
    weights = layers.open(only=["layers.3.*", "embedding"])
    with pytest.raises(MissingTensor, match=r"has no tensor that fits 'embedding' in only=; .* holds 129: embed"):
        list(weights)


def test_rows_that_are_not_there_are_refused(layers: Store) -> None:
    weights = layers.open(only=["embed[0:5000]"])
    with pytest.raises(TensorMismatch, match="rows 0 to 5000 of tensor 'embed' are wanted, it has 4096"):
        weights["embed"]


def test_the_next_start_reads_what_the_first_left_out_and_no_more(layers: Store) -> None:
    """A file with holes is not complete; what is in it counts."""
    all_read(layers.open(only=["layers.17.*"]))
    layers.owned.close()
    first_bytes = layers.read_bytes
    again = layers.open(only=["layers.17.*"])
    assert list(all_read(again)) == list(layer(17))
    assert layers.read_bytes == 0
    layers.owned.close()
    whole = layers.open()
    expected = layers.expected()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in all_read(whole).items())
    path = whole.path("model.safetensors")
    assert path.read_bytes() == layers.objects["model.safetensors"]
    assert layers.read_bytes + first_bytes == sum(map(len, layers.objects.values()))
    assert [each.name for each in path.parent.iterdir() if ".part-" in each.name] == []


def test_out_of_a_complete_cache_nothing_is_read(layers: Store) -> None:
    layers.open().path("model.safetensors")
    layers.owned.close()
    weights = layers.open(only=["layers.17.*"])
    assert list(all_read(weights)) == list(layer(17))
    assert weights.path("model.safetensors").exists()
    assert layers.read_bytes == 0


def test_a_file_with_holes_is_not_given_away_as_a_file(layers: Store) -> None:
    weights = layers.open(only=["layers.17.*"])
    all_read(weights)
    for ask in (weights.path, weights.bytes):
        with pytest.raises(CacheError, match=r"model\.safetensors is no whole file"):
            ask("model.safetensors")
    with pytest.raises(CacheError, match="is no whole file"):
        weights.directory()
    assert weights.json("config.json") == {}


def test_shards_without_a_wanted_tensor_are_not_even_looked_at(store: Callable[[dict[str, bytes]], Store]) -> None:
    """B7: the index says where the tensors are."""
    shards = {f"model-{number}.safetensors": layer(number) for number in range(4)}
    index = {"weight_map": {name: shard for shard, tensors in shards.items() for name in tensors}}
    made = store(
        {name: shard_bytes(tensors) for name, tensors in shards.items()}
        | {"model.safetensors.index.json": json.dumps(index).encode()}
    )
    weights = made.open(only=["layers.2.*"])
    expected = made.expected()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in all_read(weights).items())
    assert {read.key for read in made.source.reads} == {"model-2.safetensors", "model.safetensors.index.json"}


def test_a_tied_tensor_comes_with_all_its_names(store: Callable[[dict[str, bytes]], Store]) -> None:
    """Also where the index does not name what the header ties."""
    content = shard_bytes({"embed": ("I32", [64, 64]), "rest": ("I32", [512, 512])}, {"head": "embed"})
    index = {"weight_map": {"embed": "a.safetensors", "rest": "a.safetensors"}}
    made = store({"a.safetensors": content, "model.safetensors.index.json": json.dumps(index).encode()})
    weights = made.open(only=["head"])
    assert set(weights) == {"embed", "head"}
    assert torch.equal(weights["head"], made.expected()["embed"])


@pytest.mark.parametrize("kind", ["F32", "U8"])
def test_scattered_and_misaligned_rows_are_exact(store: Callable[[dict[str, bytes]], Store], kind: str) -> None:
    """Rows that share pages with what is not wanted, in place edits included (D7)."""
    tensors: dict[str, tuple[str, Sequence[int]]] = {"odd": ("U8", [1])}
    tensors |= {f"t{i}": (kind, [97, 31]) for i in range(40)}
    made = store({"model.safetensors": shard_bytes(tensors)})
    weights = made.open(only=[f"t{i}[{i}:{97 - i}]" for i in range(0, 40, 3)])
    expected = made.expected()
    for name in weights:
        weights[name].zero_()
        i = int(name[1:])
        assert not weights[name].any()
        assert weights[name].shape == expected[name][i : 97 - i].shape
    untouched = made.open(only=["t1", "t3[3:94]"])
    assert torch.equal(untouched["t1"].view(torch.uint8), expected["t1"].view(torch.uint8))
    assert torch.equal(untouched["t3"].view(torch.uint8), expected["t3"][3:94].view(torch.uint8))


def test_rows_are_what_slicing_gives(layers: Store) -> None:
    weights = layers.open()
    expected = layers.expected()["embed"]
    assert torch.equal(weights.rows("embed", 10, 20), expected[10:20])
    assert weights.rows("embed", 7, 7).shape == (0, 256)
    weights.rows("embed", 10, 20).zero_()
    assert not weights["embed"][10:20].any()
    with pytest.raises(TensorMismatch):
        weights.rows("embed", 0, 4097)


def test_rows_of_rows_are_counted_from_the_first_that_is_held(layers: Store) -> None:
    weights = layers.open(only=["embed[1000:2000]"])
    assert torch.equal(weights.rows("embed", 10, 20), layers.expected()["embed"][1010:1020])


def test_what_cannot_be_meant_is_refused_before_anything_is_read(layers: Store) -> None:
    with pytest.raises(ConfigurationError):
        layers.open(skip=["embed[0:10]"])
    with pytest.raises(TypeError, match="onyl"):
        layers.open(onyl=["embed"])
    assert layers.read_bytes == 0


def test_holes_take_no_room_on_the_disk(layers: Store) -> None:
    weights = layers.open(only=["layers.17.*"])
    all_read(weights)
    part = next(layers.cache.rglob("model.safetensors.part-*"))
    assert part.stat().st_size == len(layers.objects["model.safetensors"])
    assert part.stat().st_blocks * 512 < 2 * MEBIBYTE
