"""Every setting is documented, and only settings are."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from adapter.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_setting_has_a_row_in_one_of_two_pages() -> None:
    text = (DOCS / "settings.md").read_text() + (DOCS / "weights.md").read_text()
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `COLDSTART_")]
    rows = {name.lower() for cell in cells for name in re.findall(r"`COLDSTART_(\w+)`", cell)}
    assert rows == {field.name for field in dataclasses.fields(Settings)}
