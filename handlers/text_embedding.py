"""Sentence embeddings: a BERT encoder whose weights stream from object storage, served by `embed`.

    coldstart serve handlers.text_embedding:embed

Any checkpoint of the sentence-transformers layout with a BERT encoder and mean pooling will do (all-MiniLM-L6-v2,
multi-qa-MiniLM, e5, …): `COLDSTART_WEIGHTS` names another address than the one below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from adapter import Weights, coldstart_handler
from adapter.errors import InvalidEvent
from handlers.bert import BertConfig, BertEncoder, mean_pool

TEXTS_LIMIT = 256
"""Texts in one event; more belong in several events, which can then be spread over replicas."""
CHARACTERS_LIMIT = 100_000
"""Characters of one text: far above what any encoder reads, low enough that the tokenizer stays quick."""
BATCH = 32
"""Texts computed at a time: bounds the memory of attention, which grows with the batch and the longest text squared."""


@dataclass(frozen=True, slots=True)
class Embedding:
    """What a model made of some texts."""

    vectors: Tensor
    """Unit vectors (B, H) in float32 on the CPU, in the order of the texts."""
    truncated: tuple[bool, ...]
    """Whether a text had more tokens than the model reads; the rest was left out."""


class TextEmbedder:
    """An encoder and its tokenizer.

    Args:
        encoder: The network, in any device and dtype.
        tokenizer: Its tokenizer; padding and truncation are set here.
        tokens_limit: The longest text that the model reads, in tokens with the special ones.
    """

    def __init__(self, encoder: BertEncoder, tokenizer: Tokenizer, tokens_limit: int) -> None:
        self.encoder = encoder
        self.tokenizer = tokenizer
        # the published file asks for padding to a fixed 128 tokens, which would make short texts 10 times as slow
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(tokens_limit)

    def encode(self, texts: Sequence[str]) -> Embedding:
        """Unit vectors for some texts, in batches of texts of like length."""
        encodings = self.tokenizer.encode_batch(list(texts))
        order = sorted(range(len(encodings)), key=lambda index: len(encodings[index].ids))
        weight = self.encoder.embeddings.word_embeddings.weight
        vectors = torch.empty(len(encodings), weight.shape[1])
        for first in range(0, len(order), BATCH):
            batch = order[first : first + BATCH]
            ids, mask = _padded([encodings[index].ids for index in batch])
            ids, mask = ids.to(weight.device), None if mask is None else mask.to(weight.device)
            vectors[batch] = mean_pool(self.encoder(ids, mask).float(), mask).cpu()
        return Embedding(vectors, tuple(bool(encoding.overflowing) for encoding in encodings))


def load(weights: Weights) -> TextEmbedder:
    """The model: parameters are views on the mapped shards, filled while the stream still runs.

    Raises:
        ValueError: The checkpoint is not a BERT encoder with mean pooling.
    """
    config = BertConfig.from_json(weights.json("config.json"))
    pooling = weights.json("1_Pooling/config.json")
    if not pooling.get("pooling_mode_mean_tokens"):
        raise ValueError("1_Pooling/config.json does not ask for mean pooling, the only kind that this handler does")
    tokens_limit = weights.json("sentence_bert_config.json")["max_seq_length"]
    tokenizer = Tokenizer.from_file(str(weights.path("tokenizer.json")))
    encoder = weights.into(lambda: BertEncoder(config, stored=weights))
    return TextEmbedder(encoder, tokenizer, min(tokens_limit, config.max_position_embeddings))


@coldstart_handler(weights="s3://models/minilm/", load=load, device="auto")
def embed(model: TextEmbedder, event: Mapping[str, Any]) -> dict[str, Any]:
    """Embeddings of a text or of several.

    `{"text": "…"}` gives `{"embedding": [H numbers], "truncated": false}`,
    `{"texts": ["…", "…"]}` gives `{"embeddings": [[H numbers], …], "truncated": [false, …]}`.

    Raises:
        InvalidEvent: The event is neither, or over a limit; the message says which.
    """
    texts, single = _texts(event)
    found = model.encode(texts)
    if single:
        return {"embedding": found.vectors[0].tolist(), "truncated": found.truncated[0]}
    return {"embeddings": found.vectors.tolist(), "truncated": list(found.truncated)}


embed.warm_up({"text": "A sentence of the usual length, as people write them."})
embed.warm_up({"text": "A long text has more tokens than the model reads. " * 40})
embed.warm_up({"texts": ["Several texts of different lengths", "are computed together,", "padded, and under a mask."]})


def _texts(event: object) -> tuple[list[str], bool]:
    """The texts of an event, and whether it was a single one."""
    if not isinstance(event, Mapping) or ("text" in event) == ("texts" in event):
        raise InvalidEvent('an event is an object with either "text" (a string) or "texts" (a list of strings)')
    if "text" in event:
        return [_text(event["text"], "text")], True
    texts = event["texts"]
    if not isinstance(texts, list):
        raise InvalidEvent(f'"texts" must be a list of strings, not {_kind(texts)}', field="texts")
    if len(texts) > TEXTS_LIMIT:
        raise InvalidEvent(f'"texts" holds {len(texts)} texts, at most {TEXTS_LIMIT} are taken', field="texts")
    return [_text(text, f"texts[{index}]") for index, text in enumerate(texts)], False


def _text(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise InvalidEvent(f'"{field}" must be a string, not {_kind(value)}', field=field)
    if len(value) > CHARACTERS_LIMIT:
        raise InvalidEvent(f'"{field}" has {len(value)} characters, at most {CHARACTERS_LIMIT} are taken', field=field)
    return value


def _kind(value: object) -> str:
    """What a caller who writes JSON calls it."""
    if value is None:
        return "null"
    names = {bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def _padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor | None]:
    """Rows of token ids as one tensor (B, T), and where tokens are real (None: everywhere, which is faster)."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)  # what stands in the padding is masked: zero will do
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row)
        mask[index, : len(row)] = True
    return ids, None if mask.all() else mask
