"""What one start notes for the next."""

from __future__ import annotations

from pathlib import Path

from adapter.coldstart import InitRecord


def test_what_is_noted_is_read(tmp_path: Path) -> None:
    record = InitRecord("s3://b/m/", ("b", "a"), whole=False, tensors=("y", "x"))
    record.write(tmp_path / "starts" / "x.json")
    assert InitRecord.read(tmp_path / "starts" / "x.json") == record


def test_a_note_of_an_earlier_version_counts(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"address": "s3://b/m/", "use_order": ["a"]}')
    assert InitRecord.read(tmp_path / "x.json") == InitRecord("s3://b/m/", ("a",))


def test_what_is_no_note_counts_as_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"address": 1}', '{"address": "a", "use_order": ["a"], "tensors": 1}'):
        (tmp_path / "x.json").write_text(text)
        assert InitRecord.read(tmp_path / "x.json") is None
