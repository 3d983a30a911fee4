from __future__ import annotations

import ast
import importlib.metadata
from pathlib import Path

import pytest

from adapter.cli.main import main
from adapter.cli.new import RESERVED, new_project, project_files
from adapter.errors import ConfigurationError


def test_it_makes_a_project_and_says_what_to_do_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "mood"]) == 0
    assert "cd mood && pytest" in capsys.readouterr().out
    made = {path.relative_to(tmp_path / "mood").as_posix() for path in (tmp_path / "mood").rglob("*") if path.is_file()}
    assert {"mood/handler.py", "test_mood.py", "Dockerfile", "README.md", "requirements.txt"} <= made
    assert [path.name for path in tmp_path.iterdir()] == ["mood"]


def test_nothing_of_the_template_is_left_in_a_project() -> None:
    files = project_files("mood")
    for path, text in files.items():
        for marker in ("project_name", "adapter_version", ".template"):
            assert marker not in f"{path}{text}"
        if path.suffix == ".py":
            ast.parse(text, str(path))
    assert f"coldstart-adapter>={importlib.metadata.version('coldstart-adapter')}" in files[Path("requirements.txt")]


def test_a_name_that_looks_like_a_place_in_the_template_is_a_name_like_any_other() -> None:
    files = project_files("adapter_version")
    assert Path("adapter_version/handler.py") in files
    assert "adapter_version.handler:predict" in files[Path("README.md")]


@pytest.mark.parametrize("there", ["directory", "empty directory", "file", "dangling link"])
def test_what_exists_is_left_alone(tmp_path: Path, there: str) -> None:
    target = tmp_path / "mood"
    if there == "file":
        target.write_text("mine")
    elif there == "dangling link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        target.mkdir()
        if there == "directory":
            (target / "mine").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match="exists"):
        new_project("mood", tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere/mood cannot be made: No such file"):
        new_project("mood", tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["", "Mood", "my-mood", "../mood", "a/b", "1st", "_mood", "class", "émue", "x" * 65])
def test_a_name_that_no_package_can_have_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a Python package"):
        new_project(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_would_do_is_suggested(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"\. my_mood would do"):
        new_project("My-Mood", tmp_path)


@pytest.mark.parametrize("name", ["json", "torch", "adapter", "pytest", "safetensors", *RESERVED])
def test_a_name_that_would_hide_something_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="would hide|something else"):
        new_project(name, tmp_path)


def test_wrong_names_end_the_command_with_the_code_of_their_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-mood"]) == ConfigurationError.exit_code
    assert capsys.readouterr().err.startswith("coldstart: configuration: 'my-mood'")
