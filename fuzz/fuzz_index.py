"""Any bytes as a weight index: an index of safe names or a typed error."""

from __future__ import annotations

import os.path

from adapter.checkpoint.index import IndexRule, WeightIndex, choose_shards, find_index, parse_index
from adapter.errors import WeightIndexError

SEEDS = [
    b'{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"unet/x.safetensors"}}',
    b'{"weight_map":{"a":"../x.safetensors"}}',
    b'{"weight_map":{"a":"/etc/x.safetensors","a":null}}',
    b'{"weight_map":{"\\ud800":"x\\u0000.safetensors"},"metadata":null}',
    b'{"weight_map":{}}',
]
DICTIONARY = ["weight_map", "metadata", "total_size", ".safetensors", "../", "/", "..", "\\u0000", "\\ud800", "null"]


def check(data: bytes) -> None:
    """Raise AssertionError where a name leads elsewhere; any untyped error passes through."""
    try:
        index = parse_index(data, file="fuzz")
    except WeightIndexError as error:
        refusal = error
    else:
        _check_index(index)
        return
    assert IndexRule(str(refusal.fields["rule"]))
    assert len(str(refusal)) < 4_096


def _check_index(index: WeightIndex) -> None:
    assert set(index.shards) == set(index.weight_map.values())
    for shard in index.shards:
        path = os.path.normpath(os.path.join("/base/model", shard))
        assert path == f"/base/model/{shard}"
    choice = choose_shards([*index.shards, "stray-file.txt"], index, file="fuzz")
    assert choice.shards == index.shards
    assert find_index(index.shards) is None
