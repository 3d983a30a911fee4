"""What is tied stays tied; buffers come from the file or are computed, and nothing is left without values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from torch import nn

from adapter.errors import MissingTensor, TensorMismatch
from adapter.weights import Weights
from tests.support.modules import assert_equal

Open = Callable[[Mapping[str, torch.Tensor]], Weights]

# -- ties -------------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.parametrize("names", [("embed.weight",), ("head.weight",), ("embed.weight", "head.weight")])
def test_tied_parameters_stay_tied_whichever_names_the_file_has(saved: Open, names: tuple[str, ...]) -> None:
    value = torch.randn(5, 3)
    model = saved(dict.fromkeys(names, value)).into(Tied)
    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, value)


def test_a_tied_parameter_that_the_file_lacks_is_missing_once(saved: Open) -> None:
    with pytest.raises(MissingTensor, match=r"1 missing from the checkpoint: embed\.weight;"):
        saved({"other": torch.zeros(1)}).into(Tied)


def test_two_values_for_one_tied_parameter_are_refused(saved: Open) -> None:
    weights = saved({"embed.weight": torch.zeros(5, 3), "head.weight": torch.ones(5, 3)})
    with pytest.raises(TensorMismatch, match=r"embed\.weight and head\.weight are one tensor in the model and two"):
        weights.into(Tied)


def test_not_a_number_in_both_of_two_tied_values_is_no_difference(saved: Open) -> None:
    value = torch.full((5, 3), float("nan"))
    assert saved({"embed.weight": value, "head.weight": value}).into(Tied).embed.weight.isnan().all()


class SharedData(nn.Module):
    """Two parameter objects around the same data: what `save_model` keeps only once."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3, bias=False)
        self.two = nn.Linear(3, 3, bias=False)
        self.two.weight = nn.Parameter(self.one.weight.data)


def test_parameters_that_share_data_are_tied(tmp_path: Path) -> None:
    twin = SharedData()
    save_model(twin, str(tmp_path / "model.safetensors"))
    with Weights.open(str(tmp_path), cache_dir=tmp_path / "cache") as weights:
        assert len({weights.info(name).start for name in weights}) == 1
        model = weights.into(SharedData)
    assert_equal(model, twin)
    assert model.one.weight.data_ptr() == model.two.weight.data_ptr()


class SharedModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.again = self.first


@pytest.mark.parametrize("names", [("first",), ("again",), ("first", "again")])
def test_one_module_under_two_names_is_filled_once(saved: Open, names: tuple[str, ...]) -> None:
    twin = nn.Linear(2, 2)
    model = saved({f"{name}.{key}": value for name in names for key, value in twin.state_dict().items()}).into(
        SharedModule
    )
    assert model.first is model.again
    assert_equal(model.first, twin)


# -- buffers ----------------------------------------------------------------------------------------------------------


class Buffered(nn.Module):
    ids: torch.Tensor
    mask: torch.Tensor
    nothing: torch.Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2))
        self.register_buffer("ids", torch.arange(4))
        self.register_buffer("mask", torch.ones(2, 2).tril().bool(), persistent=False)
        self.register_buffer("nothing", None)


def test_a_persistent_buffer_comes_from_the_file(saved: Open) -> None:
    model = saved({"weight": torch.ones(2), "ids": torch.tensor([9, 8, 7, 6])}).into(Buffered)
    assert model.ids.tolist() == [9, 8, 7, 6]
    assert torch.equal(model.mask, torch.ones(2, 2).tril().bool())
    assert model.nothing is None
    assert set(model.state_dict()) == {"weight", "ids"}


def test_a_persistent_buffer_that_the_file_lacks_is_missing(saved: Open) -> None:
    with pytest.raises(MissingTensor, match="1 missing from the checkpoint: ids"):
        saved({"weight": torch.ones(2)}).into(Buffered)


def test_a_computed_buffer_that_an_old_file_still_holds_is_named_with_advice(saved: Open) -> None:
    tensors = {"weight": torch.ones(2), "ids": torch.arange(4), "mask": torch.zeros(2, 2)}
    weights = saved(tensors)
    with pytest.raises(TensorMismatch, match=r"The model computes mask itself: name them in `ignore`"):
        weights.into(Buffered)
    assert weights.into(Buffered, ignore=["mask"]).mask.dtype == torch.bool


class ComputedFromParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("total", self.weight.sum(), persistent=False)


def test_a_buffer_computed_from_parameters_is_refused_by_name(saved: Open) -> None:
    """S-24: what cannot be rebuilt is a failure that names it, before any data is waited for."""
    with pytest.raises(MissingTensor, match=r"total \(buffer\) would have no values"):
        saved({"weight": torch.ones(3)}).into(ComputedFromParameter)


class AttributeFromParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.heads = {"first": [self.weight[:1]]}


def test_a_plain_attribute_computed_from_parameters_is_refused_by_name(saved: Open) -> None:
    with pytest.raises(MissingTensor, match=r"heads\['first'\]\[0\] \(attribute\)"):
        saved({"weight": torch.ones(3)}).into(AttributeFromParameter)


class ValueOfParameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.scale = float(self.weight.detach().sum())


def test_a_constructor_that_reads_parameters_fails_with_advice(saved: Open) -> None:
    with pytest.raises(RuntimeError, match="meta") as caught:
        saved({"weight": torch.ones(3)}).into(ValueOfParameter)
    assert "model.load_state_dict(dict(weights))" in caught.value.__notes__[0]


def test_the_advice_for_such_a_constructor_works(saved: Open) -> None:
    model = ValueOfParameter()
    model.load_state_dict(dict(saved({"weight": torch.zeros(3)})))
    assert not model.weight.any()


class Listed(nn.Module):
    """Parameters that plain attributes hold as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.empty(2))
        self.b = nn.Parameter(torch.empty(2))
        self.both = [self.a, self.b]
        self.by_name = {"b": self.b}


def test_plain_attributes_hold_the_filled_parameters(saved: Open) -> None:
    model = saved({"a": torch.zeros(2), "b": torch.ones(2)}).into(Listed)
    assert model.both[0] is model.a
    assert model.both[1] is model.b is model.by_name["b"]
    assert model.b.tolist() == [1, 1]
