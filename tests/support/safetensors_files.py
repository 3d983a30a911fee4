"""Safetensors files written by hand: good ones, and one attack for each rule that a reader must hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def with_header(header: str | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file of this header, whatever it says; `length` makes the length field lie."""
    raw = header.encode("utf-8", "surrogatepass") if isinstance(header, str) else header
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw + data


def safetensors_bytes(
    tensors: Mapping[str, tuple[str, Sequence[int], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A good file: name → (dtype as the format names it, shape, data), laid out in this order."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header)
    return with_header(text + " " * (-len(text) % 8), b"".join(data for _, _, data in tensors.values()))


def entry(dtype: str, shape: str, offsets: str) -> str:
    """One tensor's entry, each field as raw JSON except the dtype."""
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}'


GOOD_ENTRY = '"a":' + entry("F32", "[2]", "[0,8]")
DATA = bytes(range(8))
GOOD = with_header("{" + GOOD_ENTRY + "}", DATA)


@dataclass(frozen=True)
class Attack:
    """A file that must be refused, and the rule it breaks."""

    name: str
    rule: str
    data: bytes
    tensor: str | None = None
    """The tensor that the refusal has to name."""
    reference_takes_it: bool = False
    """The reference reader is more lenient here."""


def _one(name: str, rule: str, raw_entry: str, data: bytes = DATA) -> Attack:
    return Attack(name, rule, with_header('{"a":' + raw_entry + "}", data), "a")


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


def _extra(raw_value: str) -> str:
    return '{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":' + raw_value + "}"


_FILE_ATTACKS = (
    Attack("no bytes", "file_too_small", b""),
    Attack("seven bytes", "file_too_small", b"\x10\0\0\0\0\0\0"),
    Attack("length of 2^64-1", "header_too_large", with_header("{" + GOOD_ENTRY + "}", DATA, length=2**64 - 1)),
    Attack("length just over the limit", "header_too_large", with_header("{}", length=100_000_001)),
    Attack("length of a million", "header_beyond_file", with_header("{" + GOOD_ENTRY + "}", DATA, length=10**6)),
    Attack("length one too much", "header_beyond_file", with_header("{}", length=3)),
    Attack("length of five", "not_json", with_header("{" + GOOD_ENTRY + "}", DATA, length=5)),
    Attack("empty header", "not_json", with_header("")),
    Attack("byte order mark", "not_json", with_header("\ufeff{" + GOOD_ENTRY + "}", DATA)),
    Attack("padded with zero bytes", "not_json", with_header("{" + GOOD_ENTRY + "}\0", DATA)),
    Attack("two values", "not_json", with_header("{}{}")),
    Attack("invalid UTF-8", "not_utf8", with_header(b'{"\xff":null}')),
    Attack("surrogate in UTF-8", "not_utf8", with_header('{"\ud800":null}')),
    Attack("array", "not_an_object", with_header("[]")),
    Attack("null", "not_an_object", with_header("null")),
    Attack("data that ends early", "file_too_short", with_header("{" + GOOD_ENTRY + "}", DATA[:4])),
    Attack("surplus data", "file_too_long", with_header("{" + GOOD_ENTRY + "}", DATA + b"more")),
    Attack("data without tensors", "file_too_long", with_header("{}", b"x")),
    Attack("deep in nothing", "nested_too_deep", with_header(_nested(100_000))),
    Attack("two metadata", "duplicate_metadata", with_header('{"__metadata__":null,"__metadata__":{}}')),
    Attack("metadata as a list", "metadata_not_an_object", with_header('{"__metadata__":[]}')),
    Attack("a number in the metadata", "metadata_not_text", with_header('{"__metadata__":{"v":1}}')),
    Attack("a hidden number in the metadata", "metadata_not_text", with_header('{"__metadata__":{"v":1,"v":"w"}}')),
    Attack("half a surrogate in the metadata", "lone_surrogate", with_header('{"__metadata__":{"v":"\\udc00"}}')),
    Attack(
        "half a surrogate as a name", "lone_surrogate", with_header('{"\\ud800":' + entry("U8", "[0]", "[0,0]") + "}")
    ),
    Attack(
        "the same name, another range",
        "duplicate_tensor",
        with_header('{"a":' + entry("F32", "[1]", "[0,4]") + ',"a":' + entry("F32", "[2]", "[0,8]") + "}", DATA),
        "a",
        reference_takes_it=True,
    ),
    Attack(
        "overlap",
        "overlap",
        with_header('{"a":' + entry("F32", "[2]", "[0,8]") + ',"b":' + entry("F32", "[2]", "[4,12]") + "}", bytes(12)),
        "b",
    ),
    Attack(
        "the same range twice",
        "overlap",
        with_header("{" + GOOD_ENTRY + ',"b":' + entry("F32", "[2]", "[0,8]") + "}", DATA),
        "b",
    ),
    Attack(
        "a hole between two",
        "hole",
        with_header("{" + GOOD_ENTRY + ',"b":' + entry("F32", "[2]", "[12,20]") + "}", bytes(20)),
        "b",
    ),
)

_TENSOR_ATTACKS = (
    _one("a hole at the beginning", "hole", entry("F32", "[1]", "[4,8]")),
    _one("null entry", "tensor_not_an_object", "null"),
    _one("number entry", "tensor_not_an_object", "1"),
    _one("list of four", "tensor_not_an_object", '["F32",[2],[0,8],1]'),
    _one("no dtype", "missing_field", '{"shape":[2],"data_offsets":[0,8]}'),
    _one("no shape", "missing_field", '{"dtype":"F32","data_offsets":[0,8]}'),
    _one("no offsets", "missing_field", '{"dtype":"F32","shape":[2]}'),
    _one("two shapes", "duplicate_field", '{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}'),
    _one("dtype as a number", "dtype_not_text", '{"dtype":16,"shape":[2],"data_offsets":[0,8]}'),
    _one("dtype as an object", "dtype_not_text", '{"dtype":{"F32":{}},"shape":[2],"data_offsets":[0,8]}'),
    _one("invented dtype beyond the file", "unknown_dtype", entry("Q9", "[2]", "[0,4096]")),
    _one("dtype in small letters", "unknown_dtype", entry("f32", "[2]", "[0,8]")),
    _one("shape as a number", "bad_shape", entry("F32", "2", "[0,8]")),
    _one("negative shape", "bad_shape", entry("F32", "[-2]", "[0,8]")),
    _one("shape of a float", "bad_shape", entry("F32", "[2.0]", "[0,8]")),
    _one("shape of a truth", "bad_shape", entry("F64", "[true]", "[0,8]")),
    _one("shape beyond 64 bits", "bad_shape", entry("F32", "[18446744073709551616,0]", "[0,0]"), b""),
    _one("three offsets", "bad_offsets", entry("F32", "[2]", "[0,8,8]")),
    _one("offsets as text", "bad_offsets", entry("F32", "[2]", '"08"')),
    _one("offsets of a truth", "bad_offsets", entry("U8", "[1]", "[false,true]"), b"1"),
    _one("offset of minus nothing", "bad_offsets", entry("F32", "[2]", "[-0,8]")),
    _one("offsets beyond 64 bits", "bad_offsets", entry("F32", "[2]", "[18446744073709551616,18446744073709551624]")),
    _one("negative offset", "negative_offset", entry("F32", "[1]", "[-4,0]")),
    _one("backward offsets", "backward_offsets", entry("F32", "[1]", "[4,0]")),
    _one("shape that wraps 64 bits", "size_overflow", entry("F32", "[4294967296,4294967296]", "[0,0]"), b""),
    _one("shape that wraps before a nought", "size_overflow", entry("F32", "[4294967296,4294967296,0]", "[0,0]"), b""),
    _one("bits that wrap 64 bits", "size_overflow", entry("F64", "[288230376151711744]", "[0,0]"), b""),
    _one("odd number of four bits", "partial_byte", entry("F4", "[3]", "[0,2]"), b"12"),
    _one("scalar of four bits", "partial_byte", entry("F4", "[]", "[0,1]"), b"1"),
    _one("six bits that fill no bytes", "partial_byte", entry("F6_E2M3", "[3]", "[0,3]"), b"123"),
    _one("range larger than the shape", "size_mismatch", entry("F32", "[2]", "[0,16]"), bytes(16)),
    _one("range smaller than the shape", "size_mismatch", entry("F32", "[2]", "[0,4]"), bytes(4)),
    _one("deep in an unknown field", "nested_too_deep", _extra(_nested(126))),
    _one("number beyond a double", "number_out_of_range", _extra("1e999")),
    _one("integer beyond a double", "number_out_of_range", _extra("1" + "0" * 400)),
    _one("hidden in a repeated unknown field", "number_out_of_range", _extra('-1e999,"x":1')),
    Attack("integer of 5000 digits", "number_out_of_range", with_header('{"a":' + _extra("1" * 5000) + "}", DATA)),
    Attack("not a number", "not_json", with_header('{"a":' + _extra("NaN") + "}", DATA)),
    Attack("infinity", "not_json", with_header('{"a":' + _extra("-Infinity") + "}", DATA)),
    Attack("control character", "not_json", with_header('{"a":' + _extra('"\x01"') + "}", DATA)),
    Attack(
        "half a surrogate deep inside", "lone_surrogate", with_header('{"a":' + _extra('[{"\\uD800":1}]') + "}", DATA)
    ),
)

ATTACKS: tuple[Attack, ...] = (*_FILE_ATTACKS, *_TENSOR_ATTACKS)

ODDITIES: Mapping[str, bytes] = {
    "no tensors": with_header("{}"),
    "metadata alone": with_header('{"__metadata__":{"k":"v"}}'),
    "metadata null": with_header('{"__metadata__":null,' + GOOD_ENTRY + "}", DATA),
    "metadata empty": with_header('{"__metadata__":{},' + GOOD_ENTRY + "}", DATA),
    "metadata repeats a key": with_header('{"__metadata__":{"k":"v","k":"w"},' + GOOD_ENTRY + "}", DATA),
    "metadata key escaped": with_header('{"\\u005f_metadata__":{"k":"v"},' + GOOD_ENTRY + "}", DATA),
    "space around": with_header(" \r\n\t{" + GOOD_ENTRY + "} \t\r\n", DATA),
    "entries out of order": with_header(
        '{"b":' + entry("U8", "[4]", "[8,12]") + "," + GOOD_ENTRY + "}", DATA + b"next"
    ),
    "misaligned": with_header(
        '{"a":' + entry("U8", "[3]", "[0,3]") + ',"b":' + entry("F32", "[1]", "[3,7]") + "}", bytes(7)
    ),
    "zero sizes": with_header(
        '{"z":' + entry("F32", "[0,5]", "[8,8]") + "," + GOOD_ENTRY + ',"y":' + entry("U8", "[0]", "[0,0]") + "}", DATA
    ),
    "nothing of very much": with_header('{"a":' + entry("F32", "[0,4294967296,4294967296]", "[0,0]") + "}"),
    "scalar": with_header('{"a":' + entry("F64", "[]", "[0,8]") + "}", DATA),
    "empty name": with_header('{"":' + entry("U8", "[1]", "[0,1]") + "}", b"x"),
    "name with zero byte": with_header('{"\\u0000":' + entry("U8", "[1]", "[0,1]") + "}", b"x"),
    "name beyond the basic plane": with_header('{"\\ud83d\\ude00":' + entry("U8", "[1]", "[0,1]") + "}", b"x"),
    "packed four bits with an odd last size": with_header('{"a":' + entry("F4", "[2,1]", "[0,1]") + "}", b"x"),
    "six bits": with_header('{"a":' + entry("F6_E3M2", "[4]", "[0,3]") + "}", b"abc"),
    "unknown field": with_header('{"a":' + _extra('{"y":[-0,1e308,"\\ud83d\\ude00"]}') + "}", DATA),
    "unknown field repeated": with_header('{"a":' + _extra('1,"x":2') + "}", DATA),
    "unknown field as deep as may be": with_header('{"a":' + _extra(_nested(125)) + "}", DATA),
    "entry as a list": with_header('{"a":["F32",[2],[0,8]]}', DATA),
    "dtype as an object of null": with_header('{"a":{"dtype":{"F32":null},"shape":[2],"data_offsets":[0,8]}}', DATA),
}
"""Strange, but good: the reference reader takes each of them."""
