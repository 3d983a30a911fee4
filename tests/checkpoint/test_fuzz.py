"""The fuzz targets hold on their seeds, and the driver that needs nothing installed runs and reports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz import fuzz_header, fuzz_index

RUN = Path(__file__).resolve().parents[2] / "fuzz" / "run.py"


@pytest.mark.parametrize(
    ("check", "seeds"), [(fuzz_header.check, fuzz_header.SEEDS), (fuzz_index.check, fuzz_index.SEEDS)]
)
def test_a_target_holds_on_its_seeds(check: Callable[[bytes], None], seeds: list[bytes]) -> None:
    """S-01, S-04, S-05."""
    for seed in seeds:
        check(seed)


def test_the_random_driver_runs_both_targets_without_a_finding() -> None:
    done = subprocess.run(
        [sys.executable, str(RUN), "--seconds", "1", "--driver", "random"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("inputs") == 2
    assert "no findings" in done.stdout
