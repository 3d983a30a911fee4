"""The project's own source as syntax trees, for tests about its shape."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adapter"
FOLDERS = ("adapter", "handlers", "examples", "tests", "scripts", "benchmarks", "fuzz", "infra")


@dataclass(frozen=True, slots=True)
class Source:
    """One file of the project."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """Relative to the repository, with slashes."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """Its dotted name."""
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module, and how."""

    module: str
    names: tuple[str, ...]
    line: int
    in_function: bool
    for_types_only: bool


@cache
def sources(*folders: str) -> tuple[Source, ...]:
    """Every Python file of these folders."""
    found = []
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Source(path, text, ast.parse(text, str(path))))
    return tuple(found)


def imports(tree: ast.AST) -> Iterator[Import]:
    """Every import statement, in functions and under TYPE_CHECKING too."""
    yield from _imports(tree, in_function=False, for_types_only=False)


def _imports(node: ast.AST, *, in_function: bool, for_types_only: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, (), child.lineno, in_function, for_types_only)
        elif isinstance(child, ast.ImportFrom):
            names = tuple(alias.name for alias in child.names)
            yield Import(child.module or "", names, child.lineno, in_function, for_types_only)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for inner, types in ((child.body, True), (child.orelse, for_types_only)):
                for statement in inner:
                    wrapped = ast.Module([statement], [])
                    yield from _imports(wrapped, in_function=in_function, for_types_only=types)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _imports(child, in_function=in_function or function, for_types_only=for_types_only)
