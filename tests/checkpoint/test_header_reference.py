"""Headers against the reference reader: the same verdict on good files and on any mutation of them."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, deserialize, safe_open

from adapter.checkpoint.dtypes import DTYPES
from adapter.checkpoint.header import Header, HeaderRule, parse_header
from adapter.errors import CheckpointError
from tests.support.safetensors_files import ATTACKS, GOOD, ODDITIES, Attack, safetensors_bytes, with_header

Tensors = dict[str, tuple[str, list[int], bytes]]
Verdict = tuple[Header | None, str | None]


def _ours(data: bytes) -> Verdict:
    try:
        return parse_header(data, file="x", file_bytes=len(data)), None
    except CheckpointError as error:
        rule = error.fields["rule"]
        assert isinstance(rule, str)
        return None, HeaderRule(rule).value


def _reference(data: bytes) -> dict[str, dict[str, object]] | None:
    try:
        return dict(deserialize(data))  # type: ignore[no-untyped-call]
    except SafetensorError:
        return None


def _agree(data: bytes) -> Header | None:
    """The header, given that both readers take the file and find the same in it; None where both refuse it."""
    header, rule = _ours(data)
    theirs = _reference(data)
    if rule == HeaderRule.DUPLICATE_TENSOR.value:
        return None  # stricter by intention: the format forbids it, the reference takes the last
    assert (header is None) == (theirs is None), f"ours: {rule or 'taken'}, reference: {'taken' if theirs else 'no'}"
    if header is None or theirs is None:
        return None
    assert set(header.tensors) == set(theirs)
    for name, info in header.tensors.items():
        assert theirs[name]["dtype"] == info.dtype.name
        assert theirs[name]["shape"] == list(info.shape)
        assert theirs[name]["data"] == data[info.start : info.stop]
    return header


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_the_reference_refuses_each_attack(attack: Attack) -> None:
    """S-01: we refuse nothing that the reference takes, but for a name given twice."""
    assert (_reference(attack.data) is not None) == attack.reference_takes_it


@pytest.mark.parametrize("name", ODDITIES)
def test_the_reference_takes_each_oddity(name: str) -> None:
    """S-06, S-07."""
    assert _agree(ODDITIES[name]) is not None


@pytest.mark.parametrize("name", [*DTYPES, "C128", "I4", "U4", "F4_E2M1", "F8_E3M4", "F128", "C32", "bf16", ""])
def test_the_table_of_dtypes_is_the_references(name: str) -> None:
    """S-07."""
    bits = DTYPES[name].bits if name in DTYPES else 8
    header = _agree(safetensors_bytes({"t": (name, [4, 2], bytes(bits))}))
    assert (header is not None) == (name in DTYPES)


@st.composite
def _tensors(draw: st.DrawFn) -> Tensors:
    found: Tensors = {}
    for name in draw(st.lists(st.text(max_size=8), max_size=5, unique=True)):
        dtype = draw(st.sampled_from(list(DTYPES)))
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        bits = DTYPES[dtype].bits
        for size in shape:
            bits *= size
        if bits % 8 or name == "__metadata__":
            continue
        found[name] = (dtype, shape, draw(st.binary(min_size=bits // 8, max_size=bits // 8)))
    return found


_METADATA = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3)


@given(tensors=_tensors(), metadata=_METADATA)
@settings(max_examples=150, deadline=None)
def test_good_files_are_read_as_the_reference_reads_them(tensors: Tensors, metadata: dict[str, str] | None) -> None:
    """S-06, S-07: names, dtypes, shapes, bytes and metadata."""
    data = safetensors_bytes(tensors, metadata)
    header = _agree(data)
    assert header is not None
    assert header.metadata == (metadata or {})
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "x.safetensors")
        path.write_bytes(data)
        with safe_open(path, framework="np") as theirs:
            assert (theirs.metadata() or {}) == header.metadata
            assert set(theirs.keys()) == set(header.tensors)


# Raw JSON, right and wrong, that takes the place of something in a good header.
_NUMBERS = ["0", "-0", "1", "2", "8", "-1", "1.0", "2e0", "1e308", "1e309", "-1e999", "18446744073709551615"]
_NUMBERS += ["18446744073709551616", "4294967296", "1" + "0" * 308, "1" + "0" * 309]
_OTHERS = [
    "true",
    "null",
    '"F32"',
    '"F4"',
    '"Q9"',
    '""',
    '"\\ud800"',
    '"\\udc00x"',
    '"\\ud83d\\ude00"',
    '"\\ud83d\\ud83d"',
]
_OTHERS += ['"\\u00e9"', '"\\/"', "[]", "{}", *("[" * depth + "]" * depth for depth in (120, 124, 125, 126, 127, 128))]
_NO_JSON = ["NaN", "Infinity", "01", "+1", ".5", "1.", "''", '"\\x"', '"\t"', '"\\u12"', "[1,]", "tru", ""]
_KEYS = st.sampled_from(['"a"', '"F32"', '"dtype"', '"\\ud83d\\ude00"'])


def _object(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"


def _array(items: list[str]) -> str:
    return "[" + ",".join(items) + "]"


_RAW = st.recursive(
    st.sampled_from(_NUMBERS + _OTHERS),
    lambda inner: st.lists(inner, max_size=3).map(_array) | st.lists(st.tuples(_KEYS, inner), max_size=3).map(_object),
    max_leaves=5,
)
_SIZES = st.lists(st.sampled_from(["0", "1", "2", "3", "8", *_NUMBERS]), max_size=3).map(_array)
_METADATA_VALUES = st.sampled_from(["null", "{}", '{"k":"v"}', '{"k":"v","k":"w"}', '{"k":1,"k":"w"}', "[]"]) | _RAW
_SPACE = st.sampled_from(["", " ", "\n", "\t", "\r", "\f", "\xa0", "\ufeff"])
_NAMES = ["a", "b", "-0", "", "\\u0061", "\\ud83d\\ude00", "x y"]

Pairs = list[tuple[str, str]]


@st.composite
def _mutated_entry(draw: st.DrawFn, pairs: Pairs) -> str:
    """A good entry with something wrong, or odd."""
    change = draw(st.sampled_from(["value", "value", "shape", "offset", "move", "drop", "more", "more", "list", "all"]))
    if change == "list":
        return _array([value for _, value in pairs])
    if change == "all":
        return draw(_RAW)
    at = draw(st.integers(0, 2))
    changed = list(pairs)
    if change == "value":
        changed[at] = (pairs[at][0], draw(_RAW | st.just('{"F32":null}')))
    elif change == "shape":
        changed[1] = (pairs[1][0], draw(_SIZES))
    elif change == "offset":
        offsets = json.loads(pairs[2][1])
        offsets[draw(st.integers(0, 1))] += draw(st.sampled_from([-8, -4, -1, 1, 4, 8, 1 << 63, 1 << 64]))
        changed[2] = (pairs[2][0], json.dumps(offsets))
    elif change == "move":
        by = draw(st.sampled_from([-4, -1, 1, 4]))
        changed[2] = (pairs[2][0], json.dumps([max(offset + by, 0) for offset in json.loads(pairs[2][1])]))
    elif change == "drop":
        changed.pop(at)
    else:
        keys = st.sampled_from(['"x"', '"dtype"', '"X"', '""', '"\\u0078"', '"sh\\u0061pe"'])
        changed += draw(st.lists(st.tuples(keys, _RAW), min_size=1, max_size=2))
    return _object(draw(st.permutations(changed)))


@st.composite
def _raw_file(draw: st.DrawFn) -> bytes:
    """A good file, mutated in one or two places or in none."""
    names = draw(st.lists(st.sampled_from(_NAMES), max_size=3, unique=draw(st.integers(0, 9)) > 0))
    mutated = draw(st.lists(st.integers(0, 3), max_size=2))
    entries: list[tuple[str, str]] = []
    position = 0
    for number, name in enumerate(names):
        dtype, bits = draw(st.sampled_from([("F32", 32), ("U8", 8), ("F4", 4), ("F6_E2M3", 6)]))
        shape = draw(st.lists(st.sampled_from([0, 1, 2, 4]), max_size=3))
        for size in shape:
            bits *= size
        end = position + bits // 8
        pairs = [('"dtype"', f'"{dtype}"'), ('"shape"', json.dumps(shape)), ('"data_offsets"', f"[{position},{end}]")]
        entries.append((f'"{name}"', draw(_mutated_entry(pairs)) if number in mutated else _object(pairs)))
        position = end
    if draw(st.integers(0, 3)) == 0:
        keys = st.sampled_from(['"__metadata__"', '"\\u005f_metadata__"'])
        entries += draw(st.lists(st.tuples(keys, _METADATA_VALUES), max_size=2))
    text = _object(draw(st.permutations(entries)))
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(_SPACE | st.sampled_from(_NO_JSON)) + text[at:]
    if 3 in mutated:
        position += draw(st.sampled_from([-8, -1, 1, 4]))
    return with_header(text, bytes(max(position, 0)))


@given(data=_raw_file())
@settings(max_examples=500, deadline=None)
def test_mutated_headers_get_the_references_verdict(data: bytes) -> None:
    """S-01, S-02, S-06, S-07."""
    _agree(data)


_SEEDS = [attack.data for attack in ATTACKS if len(attack.data) < 2_000] + list(ODDITIES.values()) + [GOOD]


@given(
    seed=st.sampled_from(_SEEDS), edits=st.lists(st.tuples(st.integers(0), st.integers(0, 2), st.binary(max_size=3)))
)
@settings(max_examples=500, deadline=None)
def test_edited_bytes_get_the_references_verdict(seed: bytes, edits: list[tuple[int, int, bytes]]) -> None:
    """S-01, S-02, S-03: bytes replaced, removed and put in anywhere, the length field too."""
    data = bytearray(seed)
    for place, removed, added in edits:
        at = place % (len(data) + 1)
        data[at : at + removed] = added
    _agree(bytes(data))


@given(tensors=_tensors(), change=st.integers(-3, 3))
@settings(max_examples=100, deadline=None)
def test_a_length_that_is_off_gets_the_references_verdict(tensors: Tensors, change: int) -> None:
    """S-03: the length field, off by a little."""
    data = safetensors_bytes(tensors)
    length = int.from_bytes(data[:8], "little") + change
    _agree(max(length, 0).to_bytes(8, "little") + data[8:])


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_end_in_a_typed_error_or_a_header(data: bytes) -> None:
    """S-03."""
    _agree(data)
    _agree(len(data).to_bytes(8, "little") + data)


def test_headers_of_real_writers_are_taken(tmp_path: Path) -> None:
    """What the reference writes, we read."""
    import torch
    from safetensors.torch import save_file

    tensors = {"x": torch.arange(6.0).reshape(2, 3), "y": torch.ones(3, dtype=torch.bfloat16), "z": torch.tensor(True)}
    path = tmp_path / "x.safetensors"
    save_file(tensors, path, {"format": "pt"})
    data = path.read_bytes()
    header = _agree(data)
    assert header is not None
    assert json.loads(data[8 : header.data_start])["__metadata__"] == header.metadata
