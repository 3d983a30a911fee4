"""Headers: every rule of the format has a file that breaks it, and what is odd but good is taken."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from adapter.checkpoint.dtypes import DTYPES
from adapter.checkpoint.header import HEADER_LIMIT_BYTES, HeaderRule, header_length, parse_header
from adapter.checkpoint.ranges import ByteRange
from adapter.errors import AdapterError, CheckpointError, HeaderError, NotSafetensors
from tests.support.safetensors_files import (
    ATTACKS,
    DATA,
    GOOD,
    GOOD_ENTRY,
    ODDITIES,
    Attack,
    entry,
    safetensors_bytes,
    with_header,
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_each_attack_is_refused_by_its_rule_and_names_file_and_tensor(attack: Attack) -> None:
    """S-01, S-02, S-03, S-06, S-07."""
    with pytest.raises(CheckpointError) as caught:
        parse_header(attack.data, file="model/x.safetensors", file_bytes=len(attack.data))
    error = caught.value
    assert error.fields["rule"] == attack.rule
    assert error.fields["file"] == "model/x.safetensors"
    assert "model/x.safetensors" in str(error)
    if attack.tensor is not None:
        assert error.fields["tensor"] == attack.tensor
        assert repr(attack.tensor) in str(error)


def test_every_rule_has_an_attack() -> None:
    """S-01: no rule without a file that breaks it, no file without a known rule."""
    assert {attack.rule for attack in ATTACKS} == {rule.value for rule in HeaderRule}


@pytest.mark.parametrize("name", ODDITIES)
def test_odd_but_good_files_are_taken(name: str) -> None:
    """S-06, S-07: misaligned, empty, scalar, null metadata and the like."""
    data = ODDITIES[name]
    assert parse_header(data, file=name, file_bytes=len(data)).total_bytes == len(data)


def test_a_header_tells_where_each_tensor_lies_in_the_file() -> None:
    data = safetensors_bytes({"w": ("F32", [2, 3], bytes(24)), "b": ("BF16", [3], bytes(6))}, {"format": "pt"})
    header = parse_header(memoryview(data), file="x", file_bytes=len(data))
    assert list(header.tensors) == ["w", "b"]
    weight, bias = header.tensors["w"], header.tensors["b"]
    assert (weight.dtype, weight.shape) == (DTYPES["F32"], (2, 3))
    assert weight.range == ByteRange(header.data_start, header.data_start + 24)
    assert bias.range == ByteRange(weight.stop, len(data))
    assert bias.length_bytes == 6
    assert header.metadata == {"format": "pt"}
    assert header.total_bytes == len(data)


def test_tensors_come_in_the_order_of_the_file_not_of_the_json() -> None:
    """S-01: the order of the entries does not matter."""
    header = parse_header(ODDITIES["entries out of order"], file="x")
    assert list(header.tensors) == ["a", "b"]


def test_bytes_behind_the_header_are_not_needed_and_not_looked_at() -> None:
    header_end = len(GOOD) - len(DATA)
    only_header = parse_header(GOOD[:header_end], file="x", file_bytes=len(GOOD))
    assert only_header == parse_header(GOOD, file="x", file_bytes=len(GOOD))
    assert only_header == parse_header(GOOD + b"whatever", file="x")


@pytest.mark.parametrize("have", [0, 5, 7, 8, 20])
def test_too_few_bytes_of_a_longer_file_are_the_callers_mistake(have: int) -> None:
    with pytest.raises(ValueError, match="are needed"):
        parse_header(GOOD[:have], file="x", file_bytes=len(GOOD))


def test_a_short_file_is_found_by_its_size_alone() -> None:
    """S-02: both counts, and the likely reason."""
    header = with_header('{"w":' + entry("F32", "[1000,1000]", "[0,4000000]") + "}")
    with pytest.raises(HeaderError) as caught:
        parse_header(header, file="m.safetensors", file_bytes=len(header) + 4)
    assert caught.value.fields["expected_bytes"] == len(header) + 4_000_000
    assert caught.value.fields["found_bytes"] == len(header) + 4
    assert f"{len(header) + 4_000_000} bytes expected, {len(header) + 4} found" in str(caught.value)
    assert "incomplete download?" in str(caught.value)


def test_surplus_bytes_are_counted() -> None:
    """S-02, the twin."""
    with pytest.raises(HeaderError, match="4 surplus bytes"):
        parse_header(GOOD, file="x", file_bytes=len(GOOD) + 4)


FOREIGN = {
    "HTML page": b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>",
    "HTML": b"\n  <html><body>Sign in</body></html>",
    "XML document": b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>NoSuchKey</Code></Error>',
    "git-LFS pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n",
    "zip archive": b"PK\x03\x04\x00\x00\x08\x08" + bytes(22) + b"archive/data.pklFB" + bytes(100),
    "pickle": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
    "GGUF": b"GGUF\x03\x00\x00\x00" + bytes(48),
    "JSON": b'{"error": {"code": 403, "message": "no"}}',
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00",
    "plain text": b"Moved permanently. See the other place for it.",
    "never filled in": bytes(64),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(8),
    "NumPy": b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}",
    "empty": b"",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_is_called_what_it_looks_like(what: str) -> None:
    """S-03."""
    data = FOREIGN[what]
    with pytest.raises(NotSafetensors) as caught:
        parse_header(data, file="x.safetensors", file_bytes=len(data))
    assert what in str(caught.value)
    assert "not a safetensors file" in str(caught.value)
    assert caught.value.fields["rule"] in {rule.value for rule in HeaderRule}


@pytest.mark.parametrize("what", ["HTML page", "git-LFS pointer", "zip archive", "pickle", "JSON", "XML document"])
def test_eight_bytes_are_enough_to_tell_common_foreign_files(what: str) -> None:
    """S-03: the length field alone is read before anything else is asked for."""
    with pytest.raises(NotSafetensors, match=what):
        header_length(FOREIGN[what][:8], file="x", file_bytes=300)


def test_a_damaged_safetensors_file_is_not_taken_for_something_else() -> None:
    """A header of 640 bytes spells the beginning of a pickle, one of 67 MB that of a zip archive."""
    broken = "{" + GOOD_ENTRY + ",}"
    for length in (640, 0x8B1F, 0x04034B50):
        data = with_header(broken + " " * (length - len(broken)), DATA)
        with pytest.raises(HeaderError) as caught:
            parse_header(data, file="x", file_bytes=len(data))
        assert caught.value.fields["rule"] == "not_json"


def test_the_claimed_length_is_never_allocated() -> None:
    """S-03."""
    tracemalloc.start()
    try:
        for length in (2**64 - 1, HEADER_LIMIT_BYTES + 1, 10**7):
            with pytest.raises(CheckpointError):
                parse_header(with_header("{}", length=length), file="x", file_bytes=10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_the_limit_can_be_raised_and_lowered() -> None:
    """S-03."""
    first = with_header("", length=HEADER_LIMIT_BYTES + 1)
    with pytest.raises(HeaderError, match="COLDSTART_HEADER_LIMIT_BYTES"):
        header_length(first, file="x", file_bytes=2 * HEADER_LIMIT_BYTES)
    big = header_length(first, file="x", file_bytes=2 * HEADER_LIMIT_BYTES, limit_bytes=2 * HEADER_LIMIT_BYTES)
    assert big == HEADER_LIMIT_BYTES + 1
    with pytest.raises(HeaderError, match="over the limit of 10"):
        parse_header(GOOD, file="x", file_bytes=len(GOOD), limit_bytes=10)


def test_a_file_of_200_000_tensors_is_read() -> None:
    """S-03, the reverse: a long header is no fault."""
    count = 200_000
    tensors = {f"t.{i}": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(count)}
    text = json.dumps(tensors)
    header = parse_header(with_header(text), file="x", file_bytes=8 + len(text) + count)
    assert len(header.tensors) == count
    assert header.tensors["t.199999"].stop == header.total_bytes


@pytest.mark.parametrize("raw", ["", '"__metadata__":{},', '"__metadata__":null,'])
def test_absent_empty_and_null_metadata_are_the_same(raw: str) -> None:
    """S-06."""
    header = parse_header(with_header("{" + raw + GOOD_ENTRY + "}", DATA), file="x", file_bytes=None)
    assert header.metadata == {}
    assert list(header.tensors) == ["a"]


def test_a_number_in_the_metadata_is_refused_by_its_key() -> None:
    """S-06."""
    with pytest.raises(HeaderError, match="'v'") as caught:
        parse_header(with_header('{"__metadata__":{"k":"x","v":1}}'), file="x")
    assert caught.value.fields["key"] == "v"


def test_a_file_of_metadata_alone_has_no_tensors() -> None:
    """S-06."""
    header = parse_header(ODDITIES["metadata alone"], file="x", file_bytes=len(ODDITIES["metadata alone"]))
    assert header.tensors == {}
    assert header.metadata == {"k": "v"}


def test_every_dtype_is_read_with_its_logical_shape() -> None:
    """S-07."""
    tensors = {name: (name, [2, 8], bytes(2 * 8 * dtype.bits // 8)) for name, dtype in DTYPES.items()}
    data = safetensors_bytes(tensors)
    header = parse_header(data, file="x", file_bytes=len(data))
    assert {info.dtype.name for info in header.tensors.values()} == set(DTYPES)
    assert all(info.shape == (2, 8) for info in header.tensors.values())
    assert header.tensors["F4"].length_bytes == 8


def test_packed_four_bits_have_half_the_last_size_in_torch() -> None:
    """S-07."""
    four_bits = DTYPES["F4"]
    assert four_bits.torch_shape((2, 8)) == (2, 4)
    assert four_bits.torch_shape((2, 1)) is None
    assert DTYPES["F6_E2M3"].torch_shape((2, 3)) == (2, 3)
    assert DTYPES["F32"].torch_shape(()) == ()


def test_torch_names_and_widths_are_those_of_torch() -> None:
    """S-07: each name that the installed torch knows has the width that the format says."""
    import torch

    known = 0
    for dtype in DTYPES.values():
        found = getattr(torch, dtype.torch_name, None)
        if found is not None:
            known += 1
            assert found.itemsize * 8 == dtype.bits * dtype.per_item
    assert known >= 19


def test_an_error_stays_small_however_long_the_name() -> None:
    name = "n" * 1_000_000
    data = with_header('{"' + name + '":' + entry("Q9", "[" + "1," * 100_000 + "1]", "[0,0]") + "}")
    with pytest.raises(HeaderError) as caught:
        parse_header(data, file="x", file_bytes=len(data))
    assert len(json.dumps(caught.value.to_dict())) < 5_000
    again = AdapterError.from_dict(json.loads(json.dumps(caught.value.to_dict())))
    assert isinstance(again, HeaderError)


def test_a_refusal_of_a_long_value_is_short() -> None:
    for raw in ("[" + "-1," * 100_000 + "1]", '{"a":1,' + '"b":[1],' * 50_000 + '"c":1}', '"' + "x" * 100_000 + '"'):
        data = with_header('{"a":' + entry("F32", raw, "[0,8]") + "}", DATA)
        with pytest.raises(HeaderError) as caught:
            parse_header(data, file="x", file_bytes=len(data))
        assert len(str(caught.value)) < 1_000
