"""The emulated host's directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapter.emulator.host import HostDirectory
from tests.support.replicas import REPOSITORY


def test_a_short_path_holds_everything_and_a_long_one_has_its_sockets_elsewhere(tmp_path: Path) -> None:
    short = HostDirectory(Path("/tmp"))
    assert short.run_root == short.path
    (tmp_path / ("x" * 100)).mkdir()
    long = HostDirectory(tmp_path / ("x" * 100))
    root = long.run_root
    assert (root.parent, long.run_root) == (Path("/tmp"), root)
    assert (root / "alive").exists()
    for host in (short, long):
        host.remove()
    assert not any(path.exists() for path in (short.path, long.path, root))


@pytest.mark.parametrize("length", [20, 44, 60, 200])
def test_replicas_start_wherever_temporary_files_are(tmp_path: Path, length: int) -> None:
    directory = tmp_path / ("t" * length)
    directory.mkdir()
    result = subprocess.run(
        [sys.executable, "-m", "adapter.cli", "invoke", "handlers.echo:echo", "--input", "1", "--quiet"],
        cwd=REPOSITORY,
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["event"] == 1
    assert list(directory.iterdir()) == []
