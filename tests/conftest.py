"""What every test gets: a surrounding that no setting of the caller's shell can change."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings, credentials or endpoints from outside: a test sets what it means."""
    for name in list(os.environ):
        if name.startswith(("COLDSTART_", "AWS_")) or name == "PORT":
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # else a missing credential costs seconds of looking for it
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
