"""Which tensors and rows are wanted, and which bytes of a file that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.checkpoint.header import Header, parse_header
from adapter.checkpoint.ranges import ByteRange, IntervalSet, coalesce_within
from adapter.checkpoint.tensor_filter import TensorFilter, rows_of
from adapter.errors import ConfigurationError, TensorMismatch
from tests.support.safetensors_files import safetensors_bytes

PAGE_BYTES = 4096


def header_of(
    tensors: Mapping[str, tuple[str, Sequence[int], int]], metadata: Mapping[str, str] | None = None
) -> Header:
    """The header of a file with these tensors: dtype, shape, bytes."""
    data = safetensors_bytes(
        {name: (kind, shape, bytes(size)) for name, (kind, shape, size) in tensors.items()}, metadata
    )
    return parse_header(data, file="x", file_bytes=len(data))


LAYERS = header_of({f"layers.{i}.{part}": ("F32", [16, 64], 4096) for i in range(4) for part in ("weight", "bias")})


@pytest.mark.parametrize(
    ("only", "skip", "names"),
    [
        ((), (), list(LAYERS.tensors)),
        (["layers.1.*"], (), ["layers.1.weight", "layers.1.bias"]),
        ("layers.3.bias", (), ["layers.3.bias"]),
        (["*.bias", "layers.0.*"], ["layers.[12].*"], ["layers.0.weight", "layers.0.bias", "layers.3.bias"]),
        ((), ["*.weight"], [f"layers.{i}.bias" for i in range(4)]),
        (["LAYERS.*"], (), []),
    ],
)
def test_what_only_names_and_skip_does_not_is_wanted(
    only: Sequence[str], skip: Sequence[str], names: list[str]
) -> None:
    wanted = TensorFilter(only, skip)
    narrowed = wanted.narrow(LAYERS, file="x")
    assert list(narrowed.tensors) == names
    assert [name for name in LAYERS.tensors if wanted.wants(name)] == names
    assert all(narrowed.tensors[name] == LAYERS.tensors[name] for name in names)
    assert narrowed.total_bytes == LAYERS.total_bytes


def test_rows_are_a_tensor_of_their_own() -> None:
    narrowed = TensorFilter(["*.0.weight[2:5]", "*.1.weight[:1]", "*.2.weight[15:]", "*.3.weight[:]"]).narrow(
        LAYERS, file="x"
    )
    found = {name: (info.shape, info.start, info.stop) for name, info in narrowed.tensors.items()}
    starts = {name: info.start for name, info in LAYERS.tensors.items()}
    assert found == {
        "layers.0.weight": ((3, 64), starts["layers.0.weight"] + 512, starts["layers.0.weight"] + 1280),
        "layers.1.weight": ((1, 64), starts["layers.1.weight"], starts["layers.1.weight"] + 256),
        "layers.2.weight": ((1, 64), starts["layers.2.weight"] + 3840, starts["layers.2.weight"] + 4096),
        "layers.3.weight": ((16, 64), starts["layers.3.weight"], starts["layers.3.weight"] + 4096),
    }


def test_the_first_pattern_that_fits_says_which_rows() -> None:
    narrowed = TensorFilter(["layers.0.*[0:4]", "layers.*.bias"]).narrow(LAYERS, file="x")
    assert {name: info.shape[0] for name, info in narrowed.tensors.items()} == {
        "layers.0.weight": 4,
        "layers.0.bias": 4,
        "layers.1.bias": 16,
        "layers.2.bias": 16,
        "layers.3.bias": 16,
    }


@pytest.mark.parametrize("rows", ["[0:17]", "[5:4]", "[17:]"])
def test_rows_that_are_not_there_are_refused_and_not_cut(rows: str) -> None:
    with pytest.raises(TensorMismatch, match=r"x: rows .* of tensor 'layers.0.weight' are wanted, it has 16"):
        TensorFilter([f"layers.0.weight{rows}"]).narrow(LAYERS, file="x")


def test_a_single_number_has_no_rows() -> None:
    with pytest.raises(TensorMismatch, match="is a single number"):
        TensorFilter(["*[0:1]"]).narrow(header_of({"s": ("F32", [], 4)}), file="x")


def test_rows_of_packed_numbers_lie_on_whole_bytes() -> None:
    packed = header_of({"p": ("F4", [8], 4), "q": ("F4", [3, 2], 3)}).tensors
    assert rows_of(packed["p"], 2, 6, file="x").length_bytes == 2
    assert rows_of(packed["q"], 1, 2, file="x").length_bytes == 1
    with pytest.raises(TensorMismatch, match="do not lie on whole bytes"):
        rows_of(packed["p"], 1, 3, file="x")


def test_a_tied_tensor_is_wanted_by_any_of_its_names() -> None:
    header = header_of({"embed": ("U8", [8], 8), "other": ("U8", [8], 8)}, {"head": "embed", "format": "pt"})
    assert list(TensorFilter(["head"]).narrow(header, file="x").tensors) == ["embed"]
    assert list(TensorFilter(["head"], ["embed"]).narrow(header, file="x").tensors) == ["embed"]
    assert list(TensorFilter((), ["embed"]).narrow(header, file="x").tensors) == ["embed", "other"]
    assert list(TensorFilter((), ["embed", "head"]).narrow(header, file="x").tensors) == ["other"]


def test_patterns_that_fit_nothing_are_told() -> None:
    wanted = TensorFilter(["layers.0.*", "embed.*[0:4]", "layers.9.*"])
    assert wanted.unused(LAYERS.tensors) == ("embed.*[0:4]", "layers.9.*")


@pytest.mark.parametrize(
    ("only", "skip"), [([""], ()), ("", ()), ([1], ()), ((), ["a[0:1]"])], ids=["empty", "empty text", "number", "rows"]
)
def test_what_cannot_be_meant_is_refused(only: Sequence[str], skip: Sequence[str]) -> None:
    with pytest.raises(ConfigurationError):
        TensorFilter(only, skip)


def test_the_bytes_are_the_header_and_whole_pages() -> None:
    """B7."""
    header = header_of({f"t{i}": ("U8", [100_000], 100_000) for i in range(20)})
    ranges = TensorFilter(["t7"]).ranges(header, PAGE_BYTES, file="x")
    info = header.tensors["t7"]
    assert ranges[0].start == 0
    assert ranges[0].contains(ByteRange(0, header.data_start))
    assert ranges[1].contains(info.range)
    assert ranges[1].start % PAGE_BYTES == ranges[1].stop % PAGE_BYTES == 0
    assert sum(each.length for each in ranges) <= header.data_start + info.length_bytes + 2 * PAGE_BYTES


def test_everything_is_the_whole_file_in_one_range() -> None:
    assert TensorFilter().ranges(LAYERS, PAGE_BYTES, file="x") == [ByteRange(0, LAYERS.total_bytes)]


spans = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 20)).map(lambda pair: ByteRange(pair[0], sum(pair))), max_size=30
)


@given(spans, st.integers(0, 100), st.integers(0, 30))
def test_closed_gaps_cost_no_more_than_may_be_spared(ranges: list[ByteRange], spare: int, gap: int) -> None:
    asked, found = IntervalSet(ranges), coalesce_within(ranges, spare, gap)
    assert sum(each.length for each in found) <= asked.total + spare
    assert not any(IntervalSet(found).missing(each) for each in ranges)
    assert all(hole.length <= gap for each in found for hole in asked.missing(each))
    assert len(found) <= len(asked)
