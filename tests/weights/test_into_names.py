"""What does not fit is refused with counts, examples and what may help (S-25)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import nn

from adapter.errors import MissingTensor, TensorMismatch
from adapter.weights import Weights

Open = Callable[[Mapping[str, torch.Tensor]], Weights]

FC = {"module.fc.weight": torch.ones(3, 2), "module.fc.bias": torch.zeros(3)}


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)


def test_another_prefix_fails_with_counts_examples_and_a_hint(saved: Open) -> None:
    """S-25."""
    with pytest.raises(MissingTensor) as caught:
        saved(FC).into(Classifier)
    text = str(caught.value)
    assert "wants 2 tensors, the checkpoint holds 2" in text
    assert "2 missing from the checkpoint: fc.weight, fc.bias" in text
    assert "2 in the checkpoint that the model does not have: module.fc.bias, module.fc.weight" in text
    assert "prefix='module.' would match 2 of them" in text
    assert caught.value.fields["missing"] == 2


@pytest.mark.parametrize("prefix", ["module.", {"module.": ""}, {"module.fc": "fc", "module.": "other."}])
def test_a_declared_prefix_fixes_it(saved: Open, prefix: str | dict[str, str]) -> None:
    """S-25."""
    assert saved(FC).into(Classifier, prefix=prefix).fc.weight.tolist() == [[1, 1]] * 3


def test_a_prefix_that_the_file_lacks_is_hinted_and_can_be_added(saved: Open) -> None:
    weights = saved({"weight": torch.ones(3, 2), "bias": torch.zeros(3)})
    with pytest.raises(MissingTensor, match=r"prefix=\{'': 'fc\.'\} would match 2"):
        weights.into(Classifier)
    assert weights.into(Classifier, prefix={"": "fc."}).fc.weight.tolist() == [[1, 1]] * 3


def test_two_names_that_become_one_are_refused(saved: Open) -> None:
    with pytest.raises(TensorMismatch, match=r"would both become 'fc\.bias'"):
        saved(FC | {"fc.bias": torch.zeros(3)}).into(Classifier, prefix="module.")


def test_the_opt_out_still_refuses_a_file_that_fits_nowhere(saved: Open) -> None:
    """S-25."""
    with pytest.raises(MissingTensor, match="2 missing"):
        saved(FC).into(Classifier, strict=False)
    with pytest.raises(MissingTensor):
        saved({}).into(Classifier, strict=False)


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, 3)
        self.other = nn.Linear(2, 2)
        nn.init.constant_(self.other.weight, 5)
        nn.init.constant_(self.other.bias, 6)


def test_half_the_names_fail_and_the_opt_out_keeps_the_constructors_values(
    saved: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """S-25: never uninitialised memory."""
    weights = saved({"fc.weight": torch.ones(3, 2), "fc.bias": torch.zeros(3), "extra": torch.zeros(1)})
    with pytest.raises(MissingTensor, match=r"2 missing .*: other.weight, other.bias; 1 in the checkpoint"):
        weights.into(Half)
    model = weights.into(Half, strict=False)
    assert model.fc.weight.tolist() == [[1, 1]] * 3
    assert model.other.weight.tolist() == [[5, 5]] * 2
    assert model.other.bias.tolist() == [6, 6]
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert "2 missing from the checkpoint: other.weight, other.bias" in caplog.text


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("shape", [(3, 3), (6,), (3, 2, 1), (2, 3)])
def test_another_shape_always_fails(saved: Open, strict: bool, shape: tuple[int, ...]) -> None:
    """S-25."""
    weights = saved({"fc.weight": torch.ones(shape), "fc.bias": torch.zeros(3)})
    with pytest.raises(TensorMismatch, match=r"1 of another shape: fc.weight \["):
        weights.into(Classifier, strict=strict)


def test_one_extra_name_fails_unless_it_is_ignored(saved: Open) -> None:
    """S-25."""
    weights = saved({"fc.weight": torch.ones(3, 2), "fc.bias": torch.zeros(3), "rope.0.inv_freq": torch.zeros(1)})
    with pytest.raises(TensorMismatch, match=r"1 in the checkpoint that the model does not have: rope.0.inv_freq"):
        weights.into(Classifier)
    assert weights.into(Classifier, ignore=["*.inv_freq"]).fc.bias.tolist() == [0, 0, 0]
    assert weights.into(Classifier, strict=False).fc.bias.tolist() == [0, 0, 0]


def test_a_model_without_tensors_and_a_file_without_tensors_fit(saved: Open) -> None:
    assert isinstance(saved({}).into(nn.Identity), nn.Identity)


def test_two_modules_from_one_checkpoint(saved: Open) -> None:
    weights = saved({"encoder.weight": torch.ones(2, 2), "decoder.weight": torch.zeros(3, 2)})
    encoder = weights.into(lambda: nn.Linear(2, 2, bias=False), prefix="encoder.", ignore=["decoder.*"])
    decoder = weights.into(lambda: nn.Linear(2, 3, bias=False), prefix="decoder.", ignore=["encoder.*"])
    assert encoder.weight.sum() == 4
    assert decoder.weight.sum() == 0
