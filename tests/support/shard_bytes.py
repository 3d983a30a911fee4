"""Small checkpoints made in the test: safetensors files as bytes, with contents that tell every position apart."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping


def shard(seed: int, data_bytes: int, tensors: int = 4, prefix: str = "t") -> bytes:
    """A safetensors file of U8 tensors with random content."""
    step = data_bytes // tensors
    header: dict[str, object] = {}
    for number in range(tensors):
        stop = data_bytes if number == tensors - 1 else (number + 1) * step
        header[f"{prefix}{number}"] = {
            "dtype": "U8",
            "shape": [stop - number * step],
            "data_offsets": [number * step, stop],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + random.Random(seed).randbytes(data_bytes)


def sharded(shards: int, shard_bytes: int, files: Mapping[str, bytes] | None = None) -> dict[str, bytes]:
    """A checkpoint of several shards with its index and a configuration."""
    objects: dict[str, bytes] = {}
    weight_map: dict[str, str] = {}
    for number in range(shards):
        name = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        objects[name] = shard(number, shard_bytes, prefix=f"s{number}.t")
        weight_map |= {f"s{number}.t{tensor}": name for tensor in range(4)}
    objects["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weight_map}).encode()
    objects["config.json"] = b'{"hidden_size": 8}'
    return objects | dict(files or {})
