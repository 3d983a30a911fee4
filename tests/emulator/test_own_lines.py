"""A replica's lines are told from user code's."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from adapter.emulator.own_lines import EVENTS, own_line

ADAPTER = Path(__file__).resolve().parents[2] / "adapter"
HEAD = {"at": 1.5, "level": "info", "role": "worker", "event": "handler.failed"}


def test_a_line_of_a_role_is_its_own() -> None:
    assert own_line(json.dumps(HEAD | {"trace": "x"}, separators=(",", ":"))) == HEAD | {"trace": "x"}


@pytest.mark.parametrize(
    "line",
    [
        "a word",
        '{"at":',
        '{"at":' * 100_000,
        '{"event":"replica.start.failed","code":"x","message":"y"}',
        json.dumps({"event": "order.placed", "level": "info"}),
        json.dumps(HEAD | {"event": "order.placed"}, separators=(",", ":")),
        json.dumps(HEAD | {"event": ["handler.failed"]}, separators=(",", ":")),
        json.dumps(HEAD | {"role": "cook"}, separators=(",", ":")),
        json.dumps(HEAD | {"at": "now"}, separators=(",", ":")),
        json.dumps({name: HEAD[name] for name in ("at", "role", "level", "event")}, separators=(",", ":")),
    ],
)
def test_any_other_line_is_user_codes(line: str) -> None:
    assert own_line(line) is None


def test_all_that_roles_say_is_known() -> None:
    said = {"front.library"}  # by another name than the log's methods
    for file in [*(ADAPTER / "runtime").rglob("*.py"), ADAPTER / "cli" / "serve.py"]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in ("debug", "info", "warning", "error") and isinstance(first, ast.Constant):
                    said.add(str(first.value))
    assert said == EVENTS
