"""A safetensors header, believed only after every rule of the format was checked.

A file is 8 bytes (the header's length, little-endian), the header (a JSON object: name → dtype, shape, data_offsets;
texts under `__metadata__`), and the data. The data of all tensors together covers the rest of the file exactly.

The verdict is that of the reference reader, with one exception on the strict side: a tensor named twice is refused (the
format forbids it, the reference takes the last). Each refusal names its rule in the field `rule`.

Source: the format's description and `Metadata::validate` of the safetensors reference implementation 0.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

from adapter.checkpoint.dtypes import DTYPES, Dtype
from adapter.checkpoint.foreign import describe_non_safetensors
from adapter.checkpoint.ranges import ByteRange
from adapter.checkpoint.strict_json import (
    JsonFault,
    JsonFaultError,
    RepeatedKeys,
    check_value,
    load_json,
    pairs_of,
    shown,
)
from adapter.errors import Field, HeaderError, NotSafetensors

LENGTH_BYTES = 8
"""Bytes of the length field that a file begins with."""
HEADER_LIMIT_BYTES = 100_000_000
"""Largest header the reference reader takes."""
METADATA_KEY = "__metadata__"

_FIELDS = ("dtype", "shape", "data_offsets")
_FIELD_LIMIT = 1000  # a name may be as long as a header: an error must stay small enough to travel
_U64_MAX = (1 << 64) - 1  # the reference counts in 64 bits: what does not fit is refused, never wrapped


class HeaderRule(StrEnum):
    """The rules of the format, as the field `rule` of an error names them."""

    FILE_TOO_SMALL = "file_too_small"
    HEADER_TOO_LARGE = "header_too_large"
    HEADER_BEYOND_FILE = "header_beyond_file"
    NOT_UTF8 = "not_utf8"
    NOT_JSON = "not_json"
    NESTED_TOO_DEEP = "nested_too_deep"
    NUMBER_OUT_OF_RANGE = "number_out_of_range"
    LONE_SURROGATE = "lone_surrogate"
    NOT_AN_OBJECT = "not_an_object"
    DUPLICATE_TENSOR = "duplicate_tensor"
    DUPLICATE_METADATA = "duplicate_metadata"
    METADATA_NOT_AN_OBJECT = "metadata_not_an_object"
    METADATA_NOT_TEXT = "metadata_not_text"
    TENSOR_NOT_AN_OBJECT = "tensor_not_an_object"
    MISSING_FIELD = "missing_field"
    DUPLICATE_FIELD = "duplicate_field"
    DTYPE_NOT_TEXT = "dtype_not_text"
    UNKNOWN_DTYPE = "unknown_dtype"
    BAD_SHAPE = "bad_shape"
    BAD_OFFSETS = "bad_offsets"
    NEGATIVE_OFFSET = "negative_offset"
    BACKWARD_OFFSETS = "backward_offsets"
    SIZE_OVERFLOW = "size_overflow"
    PARTIAL_BYTE = "partial_byte"
    SIZE_MISMATCH = "size_mismatch"
    OVERLAP = "overlap"
    HOLE = "hole"
    FILE_TOO_SHORT = "file_too_short"
    FILE_TOO_LONG = "file_too_long"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies in its file, and what it is."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    """Logical shape, as the header writes it; see `Dtype.torch_shape` for the packed dtype."""
    start: int
    """First byte, counted from the beginning of the file."""
    stop: int

    @property
    def range(self) -> ByteRange:
        """The tensor's bytes in the file."""
        return ByteRange(self.start, self.stop)

    @property
    def length_bytes(self) -> int:
        """How many bytes the tensor has."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds."""

    tensors: Mapping[str, TensorInfo]
    """Name → tensor, in the order in which their data lies in the file."""
    metadata: Mapping[str, str]
    data_start: int
    """Where the data begins: the length field and the header lie before it."""
    total_bytes: int
    """Size that the whole file must have."""


def header_length(
    first: bytes | memoryview, *, file: str, file_bytes: int | None = None, limit_bytes: int = HEADER_LIMIT_BYTES
) -> int:
    """Bytes of the JSON header that follows the length field; checked before anything of that size is read.

    Args:
        first: Beginning of the file, 8 bytes or more (fewer only where the file has no more). More bytes make the
            description of a foreign file better.
        file: Name for messages.
        file_bytes: Size of the whole file, where it is known.
        limit_bytes: Largest header to accept.

    Raises:
        NotSafetensors: The file is recognisably something else, or too small to be one.
        HeaderError: The header is larger than the limit or than the file.
        ValueError: `first` is shorter than 8 bytes although the file is not.
    """
    found_bytes = len(first) if file_bytes is None else file_bytes
    if found_bytes < LENGTH_BYTES:
        looks = "it is empty" if not found_bytes else f"{found_bytes} bytes cannot hold one"
        raise NotSafetensors(
            f"{file}: not a safetensors file ({found_bytes} bytes): {looks}",
            file=file,
            rule=HeaderRule.FILE_TOO_SMALL.value,
            found_bytes=found_bytes,
        )
    if len(first) < LENGTH_BYTES:
        raise ValueError(f"{file}: {LENGTH_BYTES} bytes of the file are needed, not {len(first)}")
    length = int.from_bytes(first[:LENGTH_BYTES], "little")
    beyond = file_bytes is not None and length > file_bytes - LENGTH_BYTES
    if length > limit_bytes:
        advice = "" if beyond else "; if the file is good, raise the limit (COLDSTART_HEADER_LIMIT_BYTES)"
        message = f"the header would have {length} bytes, over the limit of {limit_bytes}{advice}"
        _refuse_start(first, HeaderRule.HEADER_TOO_LARGE, message, file=file, header_bytes=length)
    if beyond:
        end = LENGTH_BYTES + length
        message = f"the header should end at byte {end}, the file has {file_bytes} bytes: incomplete download?"
        _refuse_start(first, HeaderRule.HEADER_BEYOND_FILE, message, file=file, header_bytes=length)
    return length


def parse_header(
    data: bytes | memoryview, *, file: str, file_bytes: int | None = None, limit_bytes: int = HEADER_LIMIT_BYTES
) -> Header:
    """The header of a file, every rule checked.

    Args:
        data: Beginning of the file: the length field and the whole header; what follows is not looked at.
        file: Name for messages.
        file_bytes: Size of the whole file; None leaves the comparison with `Header.total_bytes` to the caller.
        limit_bytes: Largest header to accept.

    Raises:
        NotSafetensors: The file is recognisably something else, or too small to be one.
        HeaderError: A rule of the format is broken; the fields name file, tensor and rule.
        ValueError: `data` ends before the header although the file does not.
    """
    length = header_length(data, file=file, file_bytes=file_bytes, limit_bytes=limit_bytes)
    data_start = LENGTH_BYTES + length
    if len(data) < data_start:
        raise ValueError(f"{file}: {data_start} bytes of the file are needed, not {len(data)}")
    entries = _load(data, data_start, file)
    metadata: dict[str, str] = {}
    tensors: list[TensorInfo] = []
    reading = _Reading(file, data_start)
    for name, entry in entries.items():
        if name == METADATA_KEY:
            metadata = _metadata(entry, file)
        else:
            tensors.append(reading.tensor(name, entry))
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    total_bytes = _check_layout(tensors, data_start, file)
    if file_bytes is not None:
        check_file_size(total_bytes, file_bytes, file=file)
    return Header({tensor.name: tensor for tensor in tensors}, metadata, data_start, total_bytes)


def check_file_size(total_bytes: int, file_bytes: int, *, file: str) -> None:
    """Compare the size that the header promises with the file's.

    Raises:
        HeaderError: The file is shorter or longer.
    """
    if file_bytes == total_bytes:
        return
    if file_bytes < total_bytes:
        rule = HeaderRule.FILE_TOO_SHORT
        text = f"{total_bytes} bytes expected, {file_bytes} found: incomplete download?"
    else:
        rule = HeaderRule.FILE_TOO_LONG
        text = f"{total_bytes} bytes expected, {file_bytes} found: {file_bytes - total_bytes} surplus bytes at the end"
    raise _error(rule, text, file=file, expected_bytes=total_bytes, found_bytes=file_bytes)


def _error(rule: HeaderRule, text: str, *, file: str, tensor: str | None = None, **fields: Field) -> HeaderError:
    where = file if tensor is None else f"{file}: tensor {shown(tensor)}"
    name = None if tensor is None else tensor[:_FIELD_LIMIT]
    return HeaderError(f"{where}: {text} ({rule.value})", file=file, tensor=name, rule=rule.value, **fields)


def _refuse_start(first: bytes | memoryview, rule: HeaderRule, text: str, *, file: str, **fields: Field) -> NoReturn:
    looks = describe_non_safetensors(first)
    if looks is not None:
        message = f"{file}: not a safetensors file: it looks like {looks}"
        raise NotSafetensors(message, file=file, rule=rule.value, looks_like=looks, **fields)
    error = _error(rule, f"not a safetensors file, or a damaged one: {text}", file=file)
    error.fields.update(fields)
    raise error


def _load(data: bytes | memoryview, data_start: int, file: str) -> dict[str, object]:
    """The header's entries by name, no name twice."""
    try:
        value = load_json(str(memoryview(data)[LENGTH_BYTES:data_start], "utf-8"))
    except UnicodeDecodeError as error:
        text = f"the header is not UTF-8: {error.reason} at byte {LENGTH_BYTES + error.start}"
        _refuse_start(data, HeaderRule.NOT_UTF8, text, file=file)
    except JsonFaultError as error:
        if error.fault is JsonFault.SYNTAX:
            _refuse_start(data, HeaderRule.NOT_JSON, f"the header is not JSON: {error}", file=file)
        raise _error(HeaderRule(error.fault.value), f"the header is not JSON: {error}", file=file) from None
    if not isinstance(value, dict):
        raise _error(HeaderRule.NOT_AN_OBJECT, "the header is not a JSON object", file=file)
    if isinstance(value, RepeatedKeys):
        twice = value.repeated[0]
        if METADATA_KEY in value.repeated:
            raise _error(HeaderRule.DUPLICATE_METADATA, f"{METADATA_KEY} is there more than once", file=file)
        raise _error(HeaderRule.DUPLICATE_TENSOR, "the name is there more than once", file=file, tensor=twice)
    return value


def _metadata(entry: object, file: str) -> dict[str, str]:
    if entry is None:
        return {}
    if not isinstance(entry, dict):
        text = f"{METADATA_KEY} is not an object of texts"
        raise _error(HeaderRule.METADATA_NOT_AN_OBJECT, text, file=file)
    found: dict[str, str] = {}
    for key, value in pairs_of(entry):
        if not isinstance(value, str):
            text = f"{METADATA_KEY}: the value of key {shown(key)} is not text: {shown(value)}"
            raise _error(HeaderRule.METADATA_NOT_TEXT, text, file=file, key=key[:_FIELD_LIMIT])
        found[key] = value
    return found


@dataclass(frozen=True, slots=True)
class _Reading:
    """Reads one entry after the other of one header."""

    file: str
    data_start: int

    def tensor(self, name: str, entry: object) -> TensorInfo:
        """The tensor that the entry describes, each rule checked that concerns it alone."""
        dtype_value, shape_value, offsets_value = self._fields(name, entry)
        dtype = self._dtype(name, dtype_value)
        shape = self._shape(name, shape_value)
        start, stop = self._offsets(name, offsets_value)
        size_bytes = self._size_bytes(name, dtype, shape)
        if stop - start != size_bytes:
            size = f"{dtype.name} {shown(list(shape))} has {size_bytes} bytes"
            text = f"{size}, data_offsets [{start}, {stop}] have {stop - start}"
            raise self._error(HeaderRule.SIZE_MISMATCH, text, name)
        return TensorInfo(name, dtype, shape, self.data_start + start, self.data_start + stop)

    def _error(self, rule: HeaderRule, text: str, name: str) -> HeaderError:
        return _error(rule, text, file=self.file, tensor=name)

    def _fields(self, name: str, entry: object) -> tuple[object, object, object]:
        if isinstance(entry, list) and len(entry) == len(_FIELDS):
            return entry[0], entry[1], entry[2]  # the reference takes the three fields as a list, too
        if not isinstance(entry, dict):
            raise self._error(HeaderRule.TENSOR_NOT_AN_OBJECT, f"not an object: {shown(entry)}", name)
        if isinstance(entry, RepeatedKeys):
            for key in _FIELDS:
                if key in entry.repeated:
                    raise self._error(HeaderRule.DUPLICATE_FIELD, f"{key} is there more than once", name)
        for key in _FIELDS:
            if key not in entry:
                raise self._error(HeaderRule.MISSING_FIELD, f"{key} is missing", name)
        if len(entry) > len(_FIELDS):
            self._check_others(name, entry)
        return entry["dtype"], entry["shape"], entry["data_offsets"]

    def _check_others(self, name: str, entry: dict[str, object]) -> None:
        """Fields that the format does not know are passed over, as long as they are JSON."""
        try:
            for key, value in pairs_of(entry):
                if key not in _FIELDS:
                    check_value(value, depth=2)
        except JsonFaultError as error:
            raise self._error(HeaderRule(error.fault.value), f"the header is not JSON: {error}", name) from None

    def _dtype(self, name: str, value: object) -> Dtype:
        if isinstance(value, dict) and list(pairs_of(value)) == [(key := next(iter(value), ""), None)]:
            value = key  # the reference takes {"F32": null}, too
        if not isinstance(value, str):
            raise self._error(HeaderRule.DTYPE_NOT_TEXT, f"the dtype is not a name: {shown(value)}", name)
        dtype = DTYPES.get(value)
        if dtype is None:
            raise self._error(HeaderRule.UNKNOWN_DTYPE, f"no such dtype: {shown(value)}", name)
        return dtype

    def _shape(self, name: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not all(type(size) is int and 0 <= size <= _U64_MAX for size in value):
            text = f"the shape is not a list of whole numbers from 0 to 2^64-1: {shown(value)}"
            raise self._error(HeaderRule.BAD_SHAPE, text, name)
        return tuple(value)

    def _offsets(self, name: str, value: object) -> tuple[int, int]:
        if not isinstance(value, list) or len(value) != 2 or not all(type(offset) is int for offset in value):
            raise self._error(HeaderRule.BAD_OFFSETS, f"data_offsets are not two whole numbers: {shown(value)}", name)
        start: int = value[0]
        stop: int = value[1]
        if start < 0 or stop < 0:
            raise self._error(HeaderRule.NEGATIVE_OFFSET, f"data_offsets are negative: {shown(value)}", name)
        if start > _U64_MAX or stop > _U64_MAX:
            raise self._error(HeaderRule.BAD_OFFSETS, f"data_offsets are beyond 2^64-1: {shown(value)}", name)
        if stop < start:
            raise self._error(HeaderRule.BACKWARD_OFFSETS, f"data_offsets run backwards: {shown(value)}", name)
        return start, stop

    def _size_bytes(self, name: str, dtype: Dtype, shape: tuple[int, ...]) -> int:
        bits = 1
        for size in (*shape, dtype.bits):  # step by step: the reference refuses an overflow even where a 0 follows
            bits *= size
            if bits > _U64_MAX:
                text = f"{dtype.name} {shown(list(shape))} has more bits than a file can have"
                raise self._error(HeaderRule.SIZE_OVERFLOW, text, name)
        if bits % 8:
            text = f"{dtype.name} {shown(list(shape))} has {bits} bits, which is no whole number of bytes"
            raise self._error(HeaderRule.PARTIAL_BYTE, text, name)
        return bits // 8


def _check_layout(tensors: list[TensorInfo], data_start: int, file: str) -> int:
    """Where the data ends, given that the tensors (sorted) follow each other without hole or overlap."""
    end = data_start
    for tensor in tensors:
        if tensor.start != end:
            at = f"its data begins at byte {tensor.start - data_start}, the data before it ends at {end - data_start}"
            rule = HeaderRule.HOLE if tensor.start > end else HeaderRule.OVERLAP
            raise _error(rule, at, file=file, tensor=tensor.name)
        end = tensor.stop
    return end
