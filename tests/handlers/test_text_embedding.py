"""The text embedding handler on the real model, in one process."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from adapter import Weights
from adapter.errors import InvalidEvent
from handlers.bert import BertConfig, BertEncoder
from handlers.text_embedding import CHARACTERS_LIMIT, TEXTS_LIMIT, TextEmbedder, embed, load
from tests.support.minilm import minilm_directory

TEXTS = [
    "A man is eating food.",
    "",
    "naïve café 東京 🙂 \t\n end",
    "word " * 1000,
    "The cat sits outside",
]
Call = Callable[[Mapping[str, Any]], dict[str, Any]]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TextEmbedder]:
    directory = minilm_directory()
    with Weights.open(str(directory), cache_dir=tmp_path_factory.mktemp("cache")) as weights:
        yield load(weights)


@pytest.fixture
def call(model: TextEmbedder) -> Call:
    return embed.bind(model)


def test_embeddings_equal_bit_for_bit_those_of_the_file_loaded_at_once(model: TextEmbedder) -> None:
    """A2: streamed and mapped, the parameters are the very bytes of the file."""
    directory = minilm_directory()
    tensors = load_file(directory / "model.safetensors")
    encoder = BertEncoder(BertConfig.from_json(json.loads((directory / "config.json").read_text())), stored=tensors)
    encoder.load_state_dict(tensors, assign=True)
    plain = TextEmbedder(encoder, Tokenizer.from_file(str(directory / "tokenizer.json")), 256)
    assert torch.equal(model.encode(TEXTS).vectors, plain.encode(TEXTS).vectors)


def test_embeddings_equal_those_of_transformers(model: TextEmbedder) -> None:
    """A2, with the tokens of transformers' own tokenizer: the same text in, the same vector out."""
    transformers = pytest.importorskip("transformers")
    directory = minilm_directory()
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    reference = transformers.BertModel.from_pretrained(directory).eval()
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=256, return_tensors="pt")
    hidden = reference(**tokens).last_hidden_state
    weight = tokens["attention_mask"][..., None].float()
    expected = torch.nn.functional.normalize((hidden * weight).sum(1) / weight.sum(1), dim=-1)
    torch.testing.assert_close(model.encode(TEXTS).vectors, expected, rtol=0, atol=1e-5)


def test_a_text_gives_a_unit_vector_of_numbers(call: Call) -> None:
    answer = call({"text": "A man is eating food."})
    assert answer.keys() == {"embedding", "truncated"}
    assert len(answer["embedding"]) == 384
    assert all(type(value) is float for value in answer["embedding"])
    assert math.hypot(*answer["embedding"]) == pytest.approx(1, abs=1e-5)


def test_several_texts_give_the_vectors_of_each_in_their_order(call: Call) -> None:
    """More than one batch, lengths mixed."""
    texts = TEXTS * 15
    together = call({"texts": texts})["embeddings"]
    assert len(together) == len(texts)
    for index in (0, 3, 4, 37, 74):
        assert together[index] == pytest.approx(call({"text": texts[index]})["embedding"], abs=1e-5)


def test_no_texts_give_no_vectors(call: Call) -> None:
    assert call({"texts": []}) == {"embeddings": [], "truncated": []}


def test_a_text_longer_than_the_model_reads_is_cut_and_says_so(call: Call) -> None:
    assert call({"texts": ["word " * 254, "word " * 255]})["truncated"] == [False, True]


def test_near_sentences_are_nearer_than_far_ones(model: TextEmbedder) -> None:
    eating, pasta, cheetah = model.encode(
        ["A man is eating food.", "A man is eating pasta.", "A cheetah is running behind its prey."]
    ).vectors
    assert eating @ pasta > 0.7
    assert eating @ cheetah < 0.2


@pytest.mark.parametrize(
    ("event", "says"),
    [
        ("a text", "an event is an object with either"),
        (None, "an event is an object with either"),
        ({}, "an event is an object with either"),
        ({"text": "a", "texts": ["b"]}, "an event is an object with either"),
        ({"text": None}, '"text" must be a string, not null'),
        ({"text": 5}, '"text" must be a string, not a number'),
        ({"texts": "a"}, '"texts" must be a list of strings, not a string'),
        ({"texts": ["a", {}]}, r'"texts\[1\]" must be a string, not an object'),
        ({"texts": ["a"] * (TEXTS_LIMIT + 1)}, f"holds {TEXTS_LIMIT + 1} texts, at most {TEXTS_LIMIT}"),
        ({"text": "a" * (CHARACTERS_LIMIT + 1)}, f"at most {CHARACTERS_LIMIT}"),
    ],
)
def test_a_wrong_event_is_refused_with_what_is_wrong(call: Call, event: Any, says: str) -> None:
    with pytest.raises(InvalidEvent, match=says):
        call(event)


def test_every_recorded_warm_up_call_answers(call: Call) -> None:
    assert len(embed.recorded) == 3
    for recorded in embed.recorded:
        assert call(recorded.fresh_event())


def test_nothing_of_the_model_is_left_to_load_later(model: TextEmbedder) -> None:
    tensors = model.encoder.state_dict()
    assert set(tensors) == set(load_file(minilm_directory() / "model.safetensors"))
    assert all(tensor.device.type == "cpu" for tensor in tensors.values())


def test_a_checkpoint_that_pools_otherwise_is_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "1_Pooling").mkdir(parents=True)
    source = minilm_directory()
    for name in ("config.json", "tokenizer.json", "sentence_bert_config.json", "model.safetensors"):
        (checkpoint / name).write_bytes((source / name).read_bytes())
    (checkpoint / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    with (
        Weights.open(str(checkpoint), cache_dir=tmp_path / "cache") as weights,
        pytest.raises(ValueError, match="does not ask for mean pooling"),
    ):
        load(weights)
