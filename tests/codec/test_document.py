"""The document says what the codec does."""

from __future__ import annotations

from pathlib import Path

from adapter.runtime import codec

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "results.md"


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_documented_table_is_the_codecs_own() -> None:
    """D16, S-30: one table."""
    assert rows(DOCUMENT.read_text()) == rows(codec.__doc__ or "")
