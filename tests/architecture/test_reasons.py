"""What is switched off says why, on the spot."""

from __future__ import annotations

import re
import tomllib

from tests.support.source_tree import FOLDERS, ROOT, sources

NOQA = re.compile(r"#\s*noqa\b(?::\s*[A-Z]+[0-9]+(?:,\s*[A-Z]+[0-9]+)*)?")


def reason(line: str) -> str:
    """What the comment on a line says beside the code of the rule."""
    before, after = NOQA.split(line, maxsplit=1)
    return before.partition("  #")[2] + after


def test_every_noqa_has_a_reason_beside_it() -> None:
    bare = [
        f"{source.name}:{number}"
        for source in sources(*FOLDERS)
        for number, line in enumerate(source.text.splitlines(), 1)
        if NOQA.search(line) and "NOQA" not in line and len(reason(line).strip(" #-:–()")) < 8
    ]
    assert bare == []


def test_every_lint_rule_that_is_off_has_a_reason_beside_it() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    rules = tomllib.loads(text)["tool"]["ruff"]["lint"]["ignore"]
    assert [rule for rule in rules if not re.search(rf'"{rule}",\s*# .{{8}}', text)] == []
