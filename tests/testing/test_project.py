"""A project made by `coldstart new`, with the package installed from its wheel: what a user gets, without our tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.source_tree import ROOT

FROM_TREE = ("PYTHONPATH", "PYTHONHOME")


def run(command: Sequence[str | Path], directory: Path, site: Path | None = None) -> str:
    """What the command prints; where a site is given, our package is found there first."""
    environment = {name: value for name, value in os.environ.items() if name not in FROM_TREE}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    build = "import sys; from hatchling.build import build_wheel; build_wheel(sys.argv[1])"
    run([sys.executable, "-c", build, directory], ROOT)
    (built,) = directory.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run([*pip, "--target", directory, wheel], directory)
    return directory


def test_the_wheel_holds_the_package_alone_with_the_files_of_its_template(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"adapter"}
    template = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("adapter/cli/template/**/*.template")}
    assert "adapter/cli/template/.gitignore.template" in template
    assert template <= set(names)
    assert "adapter/py.typed" in names


def test_a_new_project_passes_its_tests(site: Path, tmp_path: Path) -> None:
    """G6: `coldstart new demo && cd demo && pytest` in an empty folder with the package installed."""
    made = run([site / "bin" / "coldstart", "new", "demo"], tmp_path, site)
    assert "cd demo && pytest" in made
    said = run([Path(sys.executable).with_name("pytest"), "-v"], tmp_path / "demo", site)
    assert "2 passed" in said
    assert re.search(r"^plugins:.*\bcoldstart-adapter", said, re.MULTILINE)
    where = run([sys.executable, "-c", "import adapter; print(adapter.__file__)"], tmp_path / "demo", site)
    assert where.startswith(str(site)), "the tree was tested, not the wheel"


def test_a_new_project_runs_as_its_readme_says(site: Path, tmp_path: Path) -> None:
    """G6, the other half: one shot, with its answer."""
    run([site / "bin" / "coldstart", "new", "demo"], tmp_path, site)
    project = tmp_path / "demo"
    run([sys.executable, "make_weights.py", "weights/demo"], project, site)
    command = ["invoke", "demo.handler:predict", "--weights", "weights/demo", "--input", '{"text": "a good day"}']
    shown = (project / "README.md").read_text()
    assert " ".join([*command[:-1], f"'{command[-1]}'"]) in shown
    assert '"label":"positive"' in run([site / "bin" / "coldstart", *command], project, site).replace(" ", "")
