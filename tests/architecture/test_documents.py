"""The documents say what the tree is."""

from __future__ import annotations

import re
import tomllib

import pytest

from adapter.cli.main import COMMANDS
from adapter.errors import AdapterError
from tests.support.source_tree import PACKAGE, ROOT

ARCHITECTURE = ROOT / "docs" / "architecture.md"


def rooms_in_the_tree() -> set[str]:
    packages = {path.parent.name + "/" for path in PACKAGE.glob("*/__init__.py")}
    return packages | {path.name for path in PACKAGE.glob("*.py") if path.name != "__init__.py"}


def rooms_in_the_document() -> list[str]:
    block = ARCHITECTURE.read_text().partition("## Rooms")[2].partition("```")[2].partition("```")[0]
    return re.findall(r"^  (\w+(?:/|\.py))", block, re.MULTILINE)


def test_the_list_of_rooms_is_the_tree() -> None:
    """A11."""
    listed = rooms_in_the_document()
    assert set(listed) == rooms_in_the_tree()
    assert len(listed) == len(set(listed))


def test_the_layers_name_every_room_once() -> None:
    """import-linter checks the order; here it is that nothing is left out, also where it is not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = project["tool"]["importlinter"]["contracts"]
    assert contract["exhaustive"]
    named = [name.strip() for layer in contract["layers"] for name in layer.split("|")]
    built = [name for name in named if not name.startswith("(")]
    assert sorted(built) == sorted(room.removesuffix("/").removesuffix(".py") for room in rooms_in_the_tree())


def test_the_layers_in_the_document_are_the_ones_that_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (contract,) = project["tool"]["importlinter"]["contracts"]
    without_planned = [
        " | ".join(n for n in layer.split(" | ") if not n.startswith("(")) for layer in contract["layers"]
    ]
    block = ARCHITECTURE.read_text().partition("## Who may know whom")[2].partition("```\n")[2].partition("\n```")[0]
    assert [line.strip() for line in block.splitlines()] == without_planned


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "CONTRIBUTING.md",
        "docs/architecture.md",
        "docs/report.md",
        "docs/results.md",
        "docs/handlers.md",
        "docs/settings.md",
        "docs/testing.md",
        "docs/weights.md",
        "examples/README.md",
        "infra/README.md",
    ],
)
def test_every_file_that_a_document_names_is_there(name: str) -> None:
    text = (ROOT / name).read_text()
    linked = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in linked if not ((ROOT / name).parent / link).exists()]
    folders = "adapter|handlers|examples|tests|scripts|benchmarks|fuzz|docs|infra"
    named = re.findall(rf"`((?:{folders})/[\w./-]+)`", text)
    missing += [path for path in named if not (ROOT / path).exists()]
    assert missing == []


def test_every_command_that_the_readme_shows_is_there() -> None:
    shown = set(re.findall(r"^coldstart ([a-z]+)", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert {"new", "emulate", "invoke", "report"} <= shown <= set(COMMANDS)


def test_every_make_target_that_a_document_names_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md"):
        named = set(re.findall(r"`make ([a-z]+)", (ROOT / name).read_text()))
        assert named <= targets, name


def test_every_error_has_a_class_docstring_that_tells_it() -> None:
    def tree(cls: type[AdapterError]) -> list[type[AdapterError]]:
        return [cls, *(found for child in cls.__subclasses__() for found in tree(child))]

    ours = [cls for cls in tree(AdapterError) if cls.__module__ == "adapter.errors"]
    assert [cls.__name__ for cls in ours if not cls.__doc__] == []


def test_no_document_leads_out_of_the_repository() -> None:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]
    files += [ROOT / "infra" / "README.md", ROOT / "examples" / "README.md"]
    assert [path.name for path in files if re.search(r"/work/|/root/|/home/", path.read_text())] == []
