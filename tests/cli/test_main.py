from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from adapter.cli.main import COMMANDS, main, require_linux
from adapter.errors import PlatformUnsupported


def test_help_names_every_command_and_imports_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"{name} " in shown
        assert command.help in " ".join(shown.split())


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_is_there_and_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert callable(importlib.import_module(COMMANDS[name].module).run)
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert f"usage: coldstart {name}" in capsys.readouterr().out


@pytest.mark.parametrize("argv", [[], ["fly"], ["report"], ["report", "-", "--fly"]])
def test_wrong_arguments_end_with_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "usage: coldstart" in capsys.readouterr().err


def test_a_command_pays_for_its_own_imports_only() -> None:
    program = (
        "import sys; from adapter.cli.main import main\n"
        "try: main(['report', '--help'])\n"
        "except SystemExit: pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith('adapter.cli.')), file=sys.stderr)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.split() == ["adapter.cli.main", "adapter.cli.report"]


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
def test_another_system_is_refused_in_one_message(platform: str) -> None:
    """A1: Linux is required."""
    with pytest.raises(PlatformUnsupported, match=f"needs Linux, this is {platform}"):
        require_linux(platform)


def test_linux_is_fine() -> None:
    require_linux("linux")
