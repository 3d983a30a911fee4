"""Fronts to test with, in run directories whose paths are short enough for a unix socket."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front_process import FrontProcess


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cs-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def front() -> Iterator[FrontProcess]:
    """One front for all tests of a module that leave it alive; each brings its own worker."""
    path = Path(tempfile.mkdtemp(prefix="cs-"))
    with FrontProcess(path) as process:
        process.wait_status("listening")
        yield process
    shutil.rmtree(path)
