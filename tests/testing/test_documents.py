"""What the page on testing shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.testing import Emulator, Options, Result
from tests.support.source_tree import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")

FIXTURES = """
import numpy as np
import pytest
from safetensors.numpy import save

@pytest.fixture
def files():
    return {"model.safetensors": save({"good": np.array([1.0], np.float32)})}

@pytest.fixture
def weights(tmp_path, files):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.safetensors").write_bytes(files["model.safetensors"])
    return tmp_path / "weights"

"""
"""What the page says in words where it shows less than a file."""


def files() -> dict[str, str]:
    return dict(re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", PAGE, re.DOTALL))


def run_pytest(directory: Path) -> subprocess.CompletedProcess[str]:
    """Pytest as a user starts it, in a directory that is none of ours."""
    (directory / "pytest.ini").write_text("[pytest]\n")
    command = [str(Path(sys.executable).with_name("pytest")), "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


def test_the_test_file_of_the_page_passes(tmp_path: Path) -> None:
    for name, text in files().items():
        (tmp_path / name).write_text(text)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


@pytest.mark.parametrize("shown", ["def test_rate(", "def test_load_when_"])
def test_the_shorter_tests_of_the_page_pass(tmp_path: Path, shown: str) -> None:
    (block,) = (text for text in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if shown in text)
    (tmp_path / "my_handler.py").write_text(files()["my_handler.py"])
    (tmp_path / "test_shown.py").write_text(FIXTURES + block)
    done = run_pytest(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_the_tables_name_every_option_and_every_method() -> None:
    named = set(re.findall(r"`(\w+)", PAGE))
    assert set(Options.__annotations__) - named == set()
    public = {name for kind in (Emulator, Result) for name in dir(kind) if not name.startswith("_")}
    assert public - named - {"close", "body"} == set()
