"""The page on weights says what is there."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

import adapter.errors
from adapter.cli.main import COMMANDS
from adapter.errors import AdapterError
from adapter.settings import Settings
from tests.support.source_tree import ROOT

TEXT = (ROOT / "docs" / "weights.md").read_text()
ERRORS = {
    cls.code: cls.exit_code
    for cls in vars(adapter.errors).values()
    if isinstance(cls, type) and issubclass(cls, AdapterError)
}


def test_every_variable_that_it_names_is_a_setting() -> None:
    named = {name.lower() for name in re.findall(r"COLDSTART_([A-Z_]+)", TEXT)}
    assert named <= {field.name for field in fields(Settings)}


def test_every_command_that_it_shows_is_there() -> None:
    assert set(re.findall(r"coldstart ([a-z]+)", TEXT)) <= set(COMMANDS)


def test_every_error_has_the_exit_code_that_it_says() -> None:
    """Rows of one error: `code` | number."""
    rows = re.findall(r"^\| `([a-z._]+)` \| (\d+) \|", TEXT, re.MULTILINE)
    assert len(rows) >= 10
    assert {code: int(number) for code, number in rows} == {code: ERRORS.get(code) for code, _ in rows}
    assert set(re.findall(r"`((?:storage|checkpoint|cache)\.[a-z_]+)`", TEXT)) <= set(ERRORS)


@pytest.mark.parametrize("option", sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT))))
def test_every_option_that_it_names_is_one_of_a_command(option: str) -> None:
    commands = (ROOT / "adapter" / "cli").glob("*.py")
    assert option == "--help" or any(f'"{option}"' in path.read_text() for path in commands)
