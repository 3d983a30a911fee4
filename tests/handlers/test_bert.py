"""The encoder against the reference implementation, on the real weights."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from handlers.bert import BertConfig, BertEncoder, mean_pool
from tests.support.minilm import minilm_directory


@pytest.fixture(scope="module")
def directory() -> Path:
    return minilm_directory()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def config(directory: Path) -> dict[str, Any]:
    value = json.loads((directory / "config.json").read_text())
    assert isinstance(value, dict)
    return value


@pytest.fixture(scope="module")
def tensors(directory: Path) -> dict[str, Tensor]:
    return load_file(directory / "model.safetensors")


@pytest.fixture(scope="module")
def encoder(config: Mapping[str, Any], tensors: dict[str, Tensor]) -> BertEncoder:
    model = BertEncoder(BertConfig.from_json(config), stored=tensors)
    model.load_state_dict(tensors, strict=True, assign=True)
    return model


def _batch() -> tuple[Tensor, Tensor]:
    """Three rows of random ids of the lengths 512, 47 and 2, padded."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(1000, 30000, (3, 512), generator=generator)
    mask = torch.zeros(3, 512, dtype=torch.bool)
    for row, length in enumerate((512, 47, 2)):
        mask[row, :length] = True
    return ids * mask, mask


def test_every_tensor_of_the_checkpoint_has_its_place_and_no_other_is_wanted(
    encoder: BertEncoder, tensors: dict[str, Tensor]
) -> None:
    assert set(encoder.state_dict()) == set(tensors)


def test_hidden_states_equal_those_of_transformers(directory: Path, encoder: BertEncoder) -> None:
    """A2."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.BertModel.from_pretrained(directory).eval()
    ids, mask = _batch()
    expected = reference(ids, attention_mask=mask.long()).last_hidden_state
    torch.testing.assert_close(encoder(ids, mask)[mask], expected[mask], rtol=0, atol=1e-5)


def test_a_row_in_a_padded_batch_is_the_row_alone(encoder: BertEncoder) -> None:
    ids, mask = _batch()
    together = mean_pool(encoder(ids, mask), mask)
    for row, length in enumerate((512, 47, 2)):
        alone = mean_pool(encoder(ids[row : row + 1, :length]))
        torch.testing.assert_close(together[row], alone[0], rtol=0, atol=1e-5)


def test_pooled_vectors_have_length_one_and_leave_padding_out() -> None:
    hidden = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [1e9, -1e9]]])
    pooled = mean_pool(hidden, torch.tensor([[True, True, False]]))
    torch.testing.assert_close(pooled, torch.tensor([[0.6, 0.8]]))


def test_parts_that_do_not_change_the_output_are_there_only_if_stored(config: Mapping[str, Any]) -> None:
    small = BertConfig.from_json({**config, "num_hidden_layers": 1, "vocab_size": 10})
    names = set(BertEncoder(small).state_dict())
    assert "embeddings.position_ids" not in names
    assert not any(name.startswith("pooler") for name in names)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "model_type is 'gpt2'"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"hidden_act": "mish"}, "'mish' is none of gelu"),
        ({"num_attention_heads": 7}, "hidden_size is not a multiple"),
    ],
)
def test_a_configuration_it_cannot_do_is_refused_by_name(
    config: Mapping[str, Any], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        BertConfig.from_json({**config, **change})


def test_a_configuration_that_lacks_a_field_is_refused_by_name(config: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="lacks vocab_size"):
        BertConfig.from_json({name: value for name, value in config.items() if name != "vocab_size"})
