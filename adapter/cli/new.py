"""`coldstart new NAME`: a directory with a handler, its tests and its image, to begin from."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import keyword
import os
import re
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from adapter.cli import Subparsers
from adapter.errors import ConfigurationError

TEMPLATE = Path(__file__).with_name("template")
SUFFIX = ".template"
"""Of every file there, so that no tool takes them for modules of this package."""
NAME_LIMIT = 64
RESERVED = ("make_weights", "weights", "conftest")
"""Names that the template's files or pytest use beside the package."""
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "new",
        description="Make the directory NAME with a handler, its tests, its Dockerfile and how to use them. Nothing "
        "that exists is overwritten.",
    )
    parser.add_argument("name", metavar="NAME", help="of the directory and of the Python package in it")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Make it; 0.

    Raises:
        ConfigurationError: The name cannot be used, or something is there already.
    """
    made = new_project(arguments.name, Path.cwd())
    print(f"{made.name}/ is made. See it work:\n\n    cd {made.name} && pytest\n\nIts README.md says how to go on.")
    return 0


def new_project(name: str, parent: Path) -> Path:
    """The directory `name` in `parent`, with everything in it, or nothing of it.

    Args:
        name: Of the directory and the package.
        parent: An existing directory.

    Raises:
        ConfigurationError: The name cannot be used, something is there already, or `parent` cannot be written.
    """
    check_name(name, parent)
    target = parent / name
    # lexists: a link to nowhere is somebody's too
    if os.path.lexists(target):
        raise ConfigurationError(f"{target} exists: choose another name, or move it away", path=str(target))
    try:
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as building:
            fresh = Path(building) / name
            for path, text in project_files(name).items():
                (fresh / path).parent.mkdir(parents=True, exist_ok=True)
                (fresh / path).write_text(text, encoding="utf-8")
            fresh.rename(target)  # whole, or, where somebody was quicker, not at all
    except OSError as error:
        raise ConfigurationError(f"{target} cannot be made: {error.strerror}", path=str(target)) from None
    return target


def project_files(name: str) -> dict[Path, str]:
    """What is in the project of this name: path from its directory to text."""
    values = {"project_name": name, "adapter_version": importlib.metadata.version("coldstart-adapter")}
    marker = re.compile("|".join(values))

    def filled(text: str) -> str:
        return marker.sub(lambda found: values[found[0]], text)

    return {
        Path(filled(path.relative_to(TEMPLATE).as_posix().removesuffix(SUFFIX))): filled(path.read_text("utf-8"))
        for path in sorted(TEMPLATE.rglob(f"*{SUFFIX}"))
    }


def check_name(name: str, parent: Path) -> None:
    """Refuse what cannot be the name of a package in `parent`, or would hide one that is installed elsewhere.

    Raises:
        ConfigurationError: It cannot be used; the message says why, and what would do where that is plain.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or len(name) > NAME_LIMIT:
        raise ConfigurationError(
            f"{name!r} cannot be the name of a Python package: lower-case letters, digits and _ are wanted, "
            f"a letter first, no keyword, {NAME_LIMIT} characters at most{_suggestion(name)}",
            name=name,
        )
    if name in RESERVED:
        raise ConfigurationError(f"{name} is the name of something else in a project: choose another", name=name)
    if name in sys.stdlib_module_names or _is_installed(name, parent):
        raise ConfigurationError(f"a module {name} is installed, and a project of its name would hide it", name=name)


def _suggestion(name: str) -> str:
    better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    usable = _NAME.fullmatch(better) and not keyword.iskeyword(better) and len(better) <= NAME_LIMIT
    return f". {better} would do" if usable else ""


def _is_installed(name: str, parent: Path) -> bool:
    """Whether a module of that name is found elsewhere (in `parent`, it is what will be found to exist)."""
    path = [entry for entry in sys.path if os.path.realpath(entry) != os.path.realpath(parent)]
    found = importlib.machinery.PathFinder.find_spec(name, path)
    # a bare directory on the path is no module worth protecting
    return found is not None and found.origin is not None
