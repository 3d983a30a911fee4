"""The weight index, the choice of shards, and which names from outside are let through."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.checkpoint.index import IndexRule, WeightIndex, choose_shards, find_index, parse_index, safe_name
from adapter.errors import WeightIndexError

SHARDS = [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
INDEX = "model.safetensors.index.json"


def _index(weight_map: object, **others: object) -> WeightIndex:
    return parse_index(json.dumps({"weight_map": weight_map, **others}).encode(), file=INDEX)


def _three() -> WeightIndex:
    return _index({"a": SHARDS[1], "b": SHARDS[0], "c": SHARDS[1], "d": SHARDS[2]}, metadata={"total_size": 40})


def test_an_index_names_its_shards_in_the_order_of_first_use() -> None:
    index = _three()
    assert index.shards == (SHARDS[1], SHARDS[0], SHARDS[2])
    assert index.weight_map["c"] == SHARDS[1]
    assert index.total_size == 40


@pytest.mark.parametrize("others", [{}, {"metadata": None}, {"metadata": {}}, {"metadata": []}, {"metadata": {"x": 1}}])
def test_metadata_may_be_absent(others: dict[str, object]) -> None:
    """S-04."""
    index = _index({"a": SHARDS[0]}, **others)
    assert index.total_size is None
    assert index.total_size_note(17) is None


@pytest.mark.parametrize(
    ("claim", "read"), [(40, 40), (1.6e10, 16_000_000_000), ("40", None), (-1, None), (True, None)]
)
def test_only_a_usable_total_size_counts(claim: object, read: int | None) -> None:
    """S-04."""
    assert _index({"a": SHARDS[0]}, metadata={"total_size": claim}).total_size == read


def test_a_wrong_total_size_is_a_note_and_no_error() -> None:
    """S-04."""
    note = _three().total_size_note(50)
    assert note is not None
    assert "40" in note
    assert "50" in note
    assert _three().total_size_note(40) is None


MALFORMED: dict[str, tuple[bytes, IndexRule]] = {
    "not UTF-8": (b'{"weight_map":{"\xff":"x.safetensors"}}', IndexRule.NOT_UTF8),
    "byte order mark": (b'\xef\xbb\xbf{"weight_map":{}}', IndexRule.NOT_JSON),
    "cut off": (b'{"weight_map":{"a":"x.safe', IndexRule.NOT_JSON),
    "empty file": (b"", IndexRule.NOT_JSON),
    "web page": (b"<html></html>", IndexRule.NOT_JSON),
    "not a number": (b'{"metadata":{"total_size":NaN},"weight_map":{"a":"x.safetensors"}}', IndexRule.NOT_JSON),
    "half a surrogate": (b'{"weight_map":{"\\ud800":"x.safetensors"}}', IndexRule.NOT_JSON),
    "very deep": (b"[" * 100_000, IndexRule.NOT_JSON),
    "list": (b"[]", IndexRule.NOT_AN_OBJECT),
    "no weight_map": (b'{"metadata":{}}', IndexRule.NO_WEIGHT_MAP),
    "weight_map null": (b'{"weight_map":null}', IndexRule.BAD_WEIGHT_MAP),
    "weight_map a list": (b'{"weight_map":["a"]}', IndexRule.BAD_WEIGHT_MAP),
    "two weight_maps": (b'{"weight_map":{"a":"x.safetensors"},"weight_map":{}}', IndexRule.BAD_WEIGHT_MAP),
    "weight_map empty": (b'{"weight_map":{}}', IndexRule.EMPTY_WEIGHT_MAP),
    "null shard": (b'{"weight_map":{"a":"x.safetensors","b":null}}', IndexRule.SHARD_NOT_TEXT),
    "number as shard": (b'{"weight_map":{"a":3}}', IndexRule.SHARD_NOT_TEXT),
    "tensor twice": (b'{"weight_map":{"a":"x.safetensors","a":"y.safetensors"}}', IndexRule.DUPLICATE_TENSOR),
    "pickled shard": (b'{"weight_map":{"a":"pytorch_model.bin"}}', IndexRule.NOT_A_SHARD),
    "shard outside": (b'{"weight_map":{"a":"../other/model.safetensors"}}', IndexRule.UNSAFE_NAME),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_index_is_refused_by_its_rule(name: str) -> None:
    """S-04, S-05."""
    data, rule = MALFORMED[name]
    with pytest.raises(WeightIndexError) as caught:
        parse_index(data, file="m/" + INDEX)
    assert caught.value.fields["rule"] == rule.value
    assert "m/" + INDEX in str(caught.value)


def test_a_null_shard_is_refused_by_its_tensor() -> None:
    """S-04."""
    with pytest.raises(WeightIndexError, match="'b'"):
        parse_index(MALFORMED["null shard"][0], file=INDEX)


ESCAPES = [
    "../other/model.safetensors",
    "/etc/hostname",
    "a/../../x.safetensors",
    "a/..",
    "..",
    ".",
    "./x.safetensors",
    "a//x.safetensors",
    "a/",
    "",
    "x\0.safetensors",
    "x\n.safetensors",
    "x\x7f.safetensors",
    "x\x85.safetensors",
    "..\\x.safetensors",
    "a\\b.safetensors",
    "x\ud800.safetensors",
    "x" * 256,
    "é" * 128,
    "/".join(["abc"] * 300),
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_that_leads_elsewhere_is_refused_by_name(name: str) -> None:
    """S-05."""
    with pytest.raises(WeightIndexError) as caught:
        safe_name(name, file=INDEX)
    assert caught.value.fields["rule"] == IndexRule.UNSAFE_NAME.value
    json.dumps(caught.value.to_dict()).encode()
    assert str(caught.value).isprintable()
    assert repr(name)[1:20] in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "unet/part-1.safetensors",
        "a b.safetensors",
        "a+b.safetensors",
        "a%2Bb.safetensors",
        "100%.safetensors",
        "한글.safetensors",
        "\u00e9.safetensors",
        "e\u0301.safetensors",
        "..a",
        "a..b/c",
        "...",
        "~/x",
        "x" * 255,
    ],
)
def test_an_innocent_name_is_kept_as_it_is(name: str) -> None:
    """S-05 (the nested control), S-12 (names that look strange and are distinct)."""
    assert safe_name(name, file=INDEX) == name


@given(
    st.text(max_size=30) | st.lists(st.sampled_from(["..", ".", "", "a", "b.x", "\0", "~"]), max_size=6).map("/".join)
)
def test_a_name_that_passes_stays_below_any_directory(name: str) -> None:
    """S-05."""
    try:
        safe_name(name, file="x")
    except WeightIndexError:
        return
    base = Path("/base/directory")
    joined = base / name
    assert Path(str(joined)).resolve().is_relative_to(base)
    assert joined != base
    assert str(PurePosixPath(name)) == name


def test_the_index_of_the_model_is_found() -> None:
    names = ["config.json", "model.fp16.safetensors.index.json", INDEX, "unet/model.safetensors.index.json"]
    assert find_index(names) == INDEX
    assert find_index(names[:2]) == "model.fp16.safetensors.index.json"
    assert find_index(["config.json", "unet/" + INDEX]) is None


def test_several_indexes_without_the_usual_one_are_ambiguous() -> None:
    with pytest.raises(WeightIndexError, match=r"a\.safetensors\.index\.json.*b\.safetensors\.index\.json"):
        find_index(["b.safetensors.index.json", "a.safetensors.index.json"])


def test_missing_shards_are_all_named() -> None:
    """S-04."""
    with pytest.raises(WeightIndexError) as caught:
        choose_shards([INDEX, SHARDS[2]], _three(), file=INDEX)
    assert SHARDS[0] in str(caught.value)
    assert SHARDS[1] in str(caught.value)
    assert SHARDS[2] not in str(caught.value)
    assert "2 of 3" in str(caught.value)
    assert caught.value.fields["missing"] == f"{SHARDS[1]}\n{SHARDS[0]}"


def test_files_beside_the_index_are_stray() -> None:
    """S-04: an unlisted file is neither fetched nor loaded."""
    names = [INDEX, *SHARDS, "model.safetensors", "consolidated.safetensors", "tokenizer.json"]
    choice = choose_shards(names, _three(), file=INDEX)
    assert choice.shards == (SHARDS[1], SHARDS[0], SHARDS[2])
    assert choice.stray == ("consolidated.safetensors", "model.safetensors")


def test_without_an_index_the_single_file_is_the_checkpoint() -> None:
    choice = choose_shards(["model.safetensors", "adapter.safetensors", "x.json"], None, file="s3://b/m/")
    assert choice.shards == ("model.safetensors",)
    assert choice.stray == ("adapter.safetensors",)


def test_without_an_index_and_single_file_all_safetensors_files_are() -> None:
    choice = choose_shards(
        ["b.safetensors", "a.safetensors", "old/c.safetensors", "a.safetensors.json"], None, file="x"
    )
    assert choice.shards == ("a.safetensors", "b.safetensors")
    assert choice.stray == ("old/c.safetensors",)
    assert choose_shards(["u/b.safetensors", "t/a.safetensors"], None, file="x").shards == (
        "t/a.safetensors",
        "u/b.safetensors",
    )


@pytest.mark.parametrize(
    ("names", "hint"), [(["pytorch_model.bin", "x.json"], r"\.bin"), (["readme.md"], "no .safetensors")]
)
def test_no_safetensors_file_at_all_is_an_error(names: list[str], hint: str) -> None:
    with pytest.raises(WeightIndexError, match=hint) as caught:
        choose_shards(names, None, file="s3://b/m/")
    assert caught.value.fields["rule"] == IndexRule.NO_SHARDS.value
