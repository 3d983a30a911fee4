from __future__ import annotations

from collections.abc import Sequence

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from adapter.checkpoint.dtypes import DTYPES
from adapter.checkpoint.header import parse_header
from adapter.checkpoint.index import choose_shards, parse_index
from adapter.checkpoint.writing import NewTensor, header_bytes, index_bytes, plan_shards, shard_names

WIDE = [dtype for dtype in DTYPES.values() if dtype.bits >= 8]
TENSORS = st.lists(
    st.builds(
        lambda name, dtype, count: NewTensor(name, dtype, (count,), count * dtype.bits // 8),
        st.text(min_size=1).filter(lambda name: name != "__metadata__"),
        st.sampled_from(WIDE),
        st.integers(0, 50),
    ),
    unique_by=lambda tensor: tensor.name,
)


@given(TENSORS, st.integers(1, 500))
def test_every_tensor_is_in_one_shard_and_no_shard_is_too_long(tensors: Sequence[NewTensor], limit: int) -> None:
    shards = plan_shards(tensors, limit)
    assert sorted(t.name for shard in shards for t in shard) == sorted(t.name for t in tensors)
    for shard in shards:
        assert len(shard) <= 1 or sum(t.length_bytes for t in shard) <= limit
    assert all(shards) or not tensors
    numbers = {tensor.name: number for number, shard in enumerate(shards) for tensor in shard}
    order = [numbers[tensor.name] for tensor in tensors]
    assert order == sorted(order)


@given(TENSORS, st.dictionaries(st.text(), st.text(), max_size=3))
def test_a_header_is_aligned_and_read_by_us_and_the_reference(
    tensors: Sequence[NewTensor], metadata: dict[str, str]
) -> None:
    (shard,) = plan_shards(tensors, 10**9)
    begin = header_bytes(shard, metadata)
    data = begin + bytes(sum(t.length_bytes for t in shard))
    header = parse_header(data, file="f", file_bytes=len(data))
    assert header.data_start % 64 == 0
    assert header.metadata == metadata
    assert {n: (i.dtype, i.shape, i.length_bytes) for n, i in header.tensors.items()} == {
        t.name: (t.dtype, t.shape, t.length_bytes) for t in shard
    }
    assert all(info.start % (info.dtype.bits // 8) == 0 for info in header.tensors.values())
    reference = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    assert {name for name, _ in reference} == set(header.tensors)


def test_an_index_names_what_its_shards_hold() -> None:
    tensors = [NewTensor(name, DTYPES["F32"], (2,), 8) for name in "abc"]
    shards = dict(zip(shard_names(2), plan_shards(tensors, 16), strict=True))
    index = parse_index(index_bytes(shards), file="i")
    assert index.shards == ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    assert index.total_size_note(24) is None
    assert choose_shards(index.shards, index, file="i").shards == index.shards


def test_one_shard_has_the_plain_name() -> None:
    assert shard_names(1) == ["model.safetensors"]


def test_a_shard_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        plan_shards([], 0)
