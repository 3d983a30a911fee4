"""Tensors that were stored once under one of their names, as the reference's `save_model` does it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn

from adapter.checkpoint.ties import aliases
from adapter.errors import MissingTensor, TensorMismatch
from adapter.weights import Weights

STORED, FURTHER = "embed.weight", "head.weight"


class Pair(nn.Module):
    """Tied or not: the names are the same."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.embed.weight


@pytest.fixture
def pair() -> Pair:
    return Pair(tied=True)


@pytest.fixture
def weights(pair: Pair, tmp_path: Path) -> Iterator[Weights]:
    (tmp_path / "m").mkdir()
    save_model(pair, str(tmp_path / "m" / "model.safetensors"))
    with Weights.open(str(tmp_path / "m"), cache_dir=tmp_path / "cache") as weights:
        yield weights


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Weights]]:
    """Weights of one tensor `embed.weight` under these texts."""
    found: list[Weights] = []

    def open_it(metadata: dict[str, str]) -> Weights:
        (tmp_path / "m").mkdir()
        save_file({STORED: torch.ones(5, 3)}, tmp_path / "m" / "model.safetensors", metadata)
        found.append(Weights.open(str(tmp_path / "m"), cache_dir=tmp_path / "cache"))
        return found[-1]

    yield open_it
    for weights in found:
        weights.close()


def test_each_name_gives_the_tensor(weights: Weights, pair: Pair) -> None:
    assert set(weights) == {STORED, FURTHER}
    assert len(weights) == 2
    assert FURTHER in weights
    assert torch.equal(weights[STORED], pair.embed.weight)
    assert torch.equal(weights[FURTHER], pair.embed.weight)
    assert weights.info(FURTHER) == weights.info(STORED)


def test_a_model_that_ties_them_gets_one_parameter_and_it_is_asked_for_once(weights: Weights, pair: Pair) -> None:
    model = weights.into(lambda: Pair(tied=True))
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, pair.embed.weight)
    assert len(weights.use_order().tensors) == 1


def test_a_model_that_does_not_tie_them_gets_both(weights: Weights, pair: Pair) -> None:
    model = weights.into(lambda: Pair(tied=False))
    assert model.head.weight is not model.embed.weight
    assert torch.equal(model.embed.weight, pair.embed.weight)
    assert torch.equal(model.head.weight, pair.embed.weight)


def test_a_plain_load_finds_every_name(weights: Weights, pair: Pair) -> None:
    plain = Pair(tied=False)
    plain.load_state_dict(dict(weights))
    assert torch.equal(plain.head.weight, pair.head.weight)


def test_a_further_name_that_the_model_lacks_is_not_left_over(weights: Weights) -> None:
    weights.into(lambda: nn.ModuleDict({"embed": nn.Embedding(5, 3)}), ignore=["head.other"])


def test_a_prefix_changes_a_further_name_too(weights: Weights, pair: Pair) -> None:
    inner = weights.into(lambda: nn.ModuleDict({"inner": Pair(tied=False)}), prefix={"": "inner."})["inner"]
    assert torch.equal(inner.get_parameter(FURTHER), pair.embed.weight)


def test_a_further_name_stands_in_for_a_stored_one_that_is_ignored(weights: Weights, pair: Pair) -> None:
    stored, further = weights.info(STORED).name, ({STORED, FURTHER} - {weights.info(STORED).name}).pop()
    model = weights.into(lambda: Pair(tied=True), ignore=[stored])
    assert torch.equal(model.get_parameter(further), pair.embed.weight)


def test_texts_that_name_no_tensor_are_texts(opened: Callable[[dict[str, str]], Weights]) -> None:
    weights = opened({"format": "pt", "about": "embed"})
    assert list(weights) == [STORED]
    assert dict(weights.metadata) == {"format": "pt", "about": "embed"}


def test_strictness_is_not_weakened(opened: Callable[[dict[str, str]], Weights]) -> None:
    """S-25: a further name of a wrong shape, or one that leads nowhere, is refused like any other."""
    weights = opened({FURTHER: STORED})
    with pytest.raises(TensorMismatch, match="of another shape"):
        weights.into(lambda: nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(5, 5, bias=False)}))
    with pytest.raises(MissingTensor, match="tail"):
        weights.into(lambda: nn.ModuleDict({"embed": nn.Embedding(5, 3), "tail": nn.Linear(3, 5, bias=False)}))


def test_a_name_of_a_further_name_leads_nowhere() -> None:
    assert aliases({"c": "b", "b": "a", "x": "x"}, {"a"}) == {"b": "a"}
