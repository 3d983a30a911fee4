from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FORMS = HERE / "forms.py"
MISUSE = HERE / "misuse" / "misuse.py"

Line = tuple[str, int]


def refused_lines() -> set[Line]:
    """Where a checker must complain, and the only places where it may."""
    lines = MISUSE.read_text().splitlines()
    return {(MISUSE.name, number) for number, line in enumerate(lines, 1) if "# refused" in line}


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def mypy_complaints() -> set[Line]:
    pytest.importorskip("mypy")
    options = ("--config-file", str(HERE / "mypy.ini"), "--cache-dir", str(ROOT / ".mypy_cache" / "typing"))
    out = run("mypy", *options, str(FORMS), str(MISUSE))
    found = re.findall(r"^tests/typing/(?:misuse/)?(\w+\.py):(\d+): error: ", out, re.MULTILINE)
    return {(name, int(line)) for name, line in found}


@pytest.fixture(scope="module")
def pyright_complaints() -> set[Line]:
    pytest.importorskip("pyright")
    out = run("pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson")
    told = json.loads(out)
    assert told["summary"]["filesAnalyzed"] >= 2
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1)
        for found in told["generalDiagnostics"]
        if found["severity"] == "error"
    }


def test_mypy_sees_the_types_of_every_form_and_refuses_every_misuse(mypy_complaints: set[Line]) -> None:
    assert mypy_complaints == refused_lines()


def test_pyright_sees_the_types_of_every_form_and_refuses_every_misuse(pyright_complaints: set[Line]) -> None:
    assert pyright_complaints == refused_lines()
