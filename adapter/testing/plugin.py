"""The pytest plugin: the fixture `emulator`.

pytest loads it wherever this package is installed, so it loads next to nothing itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Unpack

import pytest

from adapter.testing.emulator import Emulator, Options, StartEmulator


@pytest.fixture
def emulator() -> Iterator[StartEmulator]:
    """Starts emulated platforms, `emulator("module:handler", weights=…)`, and ends them with the test.

    What a platform and its replicas said is shown with a test that fails.
    """
    with contextlib.ExitStack() as started:

        def start(target: str, **options: Unpack[Options]) -> Emulator:
            run = Emulator(target, **options)
            started.callback(_end, run, target)
            return run

        yield start


def _end(run: Emulator, target: str) -> None:
    try:
        said = run.log
    finally:
        run.close()
    if said:
        print(f"coldstart emulate {target}:\n{said}", file=sys.stderr)  # noqa: T201 - pytest captures it
