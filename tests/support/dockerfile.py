"""A Dockerfile as values, for tests about what it says: stages, their instructions, what the context gives to them."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `COPY --from=a b c` has name COPY, flags {from: a}, text `b c`."""

    name: str
    flags: dict[str, str]
    text: str

    @property
    def words(self) -> list[str]:
        """What follows, as a shell divides it."""
        return shlex.split(self.text)

    @property
    def exec_form(self) -> list[str] | None:
        """The command of an exec form; None for a shell form."""
        if not self.text.startswith("["):
            return None
        return [str(word) for word in json.loads(self.text)]


@dataclass(frozen=True, slots=True)
class Stage:
    """From one FROM to the next."""

    name: str
    parent: str
    """A stage's name, or an image."""
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        """Its instructions of that name."""
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """The one of them that holds."""
        return self.all(name)[-1]

    def pairs(self, name: str) -> dict[str, str]:
        """What its ENV, LABEL or ARG set."""
        words = [word for instruction in self.all(name) for word in instruction.words]
        return {key: value for key, _, value in (word.partition("=") for word in words)}


def read_dockerfile(path: Path) -> dict[str, Stage]:
    """Its stages by name, in order; the last one is called `final` where it has no name."""
    stages: dict[str, Stage] = {}
    for instruction in _instructions(path.read_text()):
        if instruction.name == "FROM":
            parent, *alias = instruction.words
            name = alias[1] if alias else "final"
            stages[name] = Stage(name, parent, ())
        elif stages:
            last = next(reversed(stages.values()))
            stages[last.name] = Stage(last.name, last.parent, (*last.instructions, instruction))
    return stages


def _instructions(text: str) -> Iterator[Instruction]:
    joined = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue  # a comment between continued lines is none of them
        joined += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        name, _, rest = joined.strip().partition(" ")
        flags = {}
        while found := re.match(r"\s*--([\w-]+)=(\S+)\s+", rest):
            flags[found[1]] = found[2]
            rest = rest[found.end() :]
        yield Instruction(name.upper(), flags, rest.strip())
        joined = ""


class Ignored:
    """What a .dockerignore leaves out. Source: Docker's reference, `.dockerignore file`: the last match decides."""

    def __init__(self, text: str) -> None:
        self._rules = [
            (not line.startswith("!"), _pattern(line.removeprefix("!").strip("/")))
            for line in map(str.strip, text.splitlines())
            if line and not line.startswith("#")
        ]

    def __call__(self, path: str) -> bool:
        """Whether that path, relative to the context, stays out."""
        out = False
        for leaves_out, pattern in self._rules:
            if pattern.fullmatch(path):
                out = leaves_out
        return out


def _pattern(text: str) -> re.Pattern[str]:
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^]]+\])", text)
    wild = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    # a directory that matches takes what is in it along
    return re.compile("".join(wild.get(p, p if p.startswith("[") else re.escape(p)) for p in parts) + "(?:/.*)?")


def context_files(root: Path) -> list[str]:
    """Every file that a build of this directory would be given."""
    ignored = Ignored((root / ".dockerignore").read_text())
    found = []
    for directory, below, names in os.walk(root):
        relative = Path(directory).relative_to(root)
        if directory == str(root):
            below[:] = set(below) - {".git", ".venv"}  # large, and no rule lets them in: not even looked at
        found += [path for name in names if not ignored(path := (relative / name).as_posix())]
    return sorted(found)


def installed_tool(name: str) -> str:
    """Where a linter is; a test that wants it is skipped where it is not installed, which in CI it is."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        assert not os.environ.get("CI"), f"{name} is in the test group, and missing"
        pytest.skip(f"{name} is not installed")
    return found
