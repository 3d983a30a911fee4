"""The pytest plugin: the fixture `emulator`, and the logs of platforms that several tests share.

pytest loads it wherever this package is installed, so it loads next to nothing itself.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Unpack

import pytest

from adapter.errors import AdapterError
from adapter.testing.emulator import Emulator, Options, StartEmulator, running

_SHOWN_LINES = 200
"""Of a shared platform's log, the last: it may have run for many tests before the one that failed."""
_OWN: weakref.WeakSet[Emulator] = weakref.WeakSet()
"""Platforms of one test alone, whose logs are shown when the fixture ends them."""


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Show with a test that fails what the platforms have said that outlive it."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if not report.failed:
        return
    for run in running():
        if run in _OWN:
            continue
        with contextlib.suppress(AdapterError):  # it hangs, or has ended: the test's own error says more
            said = run.log.splitlines(keepends=True)
            left_out = f"… {len(said) - _SHOWN_LINES} earlier lines\n" if len(said) > _SHOWN_LINES else ""
            report.sections.append((f"coldstart emulate {run.target}", left_out + "".join(said[-_SHOWN_LINES:])))


@pytest.fixture
def emulator() -> Iterator[StartEmulator]:
    """Starts emulated platforms, `emulator("module:handler", weights=…)`, and ends them with the test.

    What a platform and its replicas said is shown with a test that fails.
    """
    with contextlib.ExitStack() as started:

        def start(target: str, **options: Unpack[Options]) -> Emulator:
            run = Emulator(target, **options)
            _OWN.add(run)
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
