"""A port that is none is refused, and not taken modulo 65536."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.cli.main import main


@pytest.mark.parametrize("port", ["80000", "-1"])
@pytest.mark.parametrize(
    "command", [["store", "."], ["emulate", "handlers.echo:echo"], ["serve", "handlers.echo:echo"]]
)
def test_a_port_that_is_none_is_refused(
    command: list[str], port: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, f"--port={port}"]) == 10
    assert port in capsys.readouterr().err
