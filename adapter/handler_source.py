"""The address of the weights, read from a handler's source: the stream can start before the module is imported.

What is read is a hint. The imported decorator has the last word, and a stream of another address is given up.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

_DECORATOR = "coldstart_handler"
_PACKAGE = "adapter"
_SOURCE_LIMIT_BYTES = 4 << 20
"""No one writes this much by hand, and parsing it would take longer than what it saves."""
_IMPORTS_FOLLOWED = 4
"""`from .model import embed` in a package's `__init__`: one step is usual; the bound ends circles."""


def literal_address(target: str, search_path: Sequence[str]) -> str | None:
    """The address in `@coldstart_handler(weights=...)` of `module:name`, when it can be read without running code.

    It can when it is text, or a name that the module binds once, to text; the handler may be imported by name from
    another module. Nothing is imported and nothing is raised: what is wrong is said when the module is imported.

    Args:
        target: The handler, `module:name`.
        search_path: Where modules are looked for, as in `sys.path`; an empty entry is the current directory.
    """
    module, _, name = target.partition(":")
    for _ in range(_IMPORTS_FOLLOWED):
        source = _read(module, search_path) if name.isidentifier() else None
        found = _look(source, name) if source is not None else None
        if not isinstance(found, _Elsewhere):
            return found
        module, name = found.module, found.name
    return None


@dataclass(frozen=True, slots=True)
class _Source:
    tree: ast.Module
    package: str
    """What relative imports in it start from."""


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    module: str
    name: str


def source_file(module: str, search_path: Sequence[str]) -> Path | None:
    """The file that importing the module would run, found without importing its packages; None if there is none."""
    spec = _find(module, search_path)
    return Path(spec.origin) if spec is not None and spec.origin is not None and spec.has_location else None


def _find(module: str, search_path: Sequence[str]) -> ModuleSpec | None:
    path: Sequence[str] | None = search_path
    spec = None
    for part in module.split("."):
        if path is None:
            return None  # its parent is a module, not a package
        # by the last part alone: with the full name a namespace package wants its parent to be imported
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        locations = spec.submodule_search_locations
        path = None if locations is None else list(locations)
    return spec


def _read(module: str, search_path: Sequence[str]) -> _Source | None:
    try:
        spec = _find(module, search_path)
        if spec is None or spec.origin is None or not spec.has_location or not spec.origin.endswith(".py"):
            return None
        file = Path(spec.origin)
        if file.stat().st_size > _SOURCE_LIMIT_BYTES:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import says them again
            tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, ImportError, RecursionError, MemoryError):
        return None
    return _Source(tree, module if spec.submodule_search_locations is not None else module.rpartition(".")[0])


def _look(source: _Source, name: str) -> str | _Elsewhere | None:
    """The last top-level statement that binds the name says what it is."""
    found: str | _Elsewhere | None = None
    for statement in source.tree.body:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() if statement.name == name:
                found = _decorated(source.tree, statement.decorator_list)
            case ast.Assign(value=ast.Call(func=ast.Call() as decorator)) if _binds(statement, name):
                found = _decorated(source.tree, [decorator])  # embed = coldstart_handler(weights=...)(function)
            case ast.ImportFrom():
                imported = [alias.name for alias in statement.names if (alias.asname or alias.name) == name]
                if imported:
                    module = _absolute(statement, source.package)
                    found = _Elsewhere(module, imported[-1]) if module else None
            case _:
                found = None if _binds(statement, name) else found
    return found


def _absolute(statement: ast.ImportFrom, package: str) -> str | None:
    if not statement.level:
        return statement.module
    parents = package.split(".")
    if statement.level > len(parents) or not package:
        return None
    base = parents[: len(parents) - statement.level + 1]
    return ".".join([*base, statement.module] if statement.module else base)


def _decorated(tree: ast.Module, decorators: Sequence[ast.expr]) -> str | None:
    names = _names_of_decorator(tree)
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and _dotted(decorator.func) in names:
            value = next((keyword.value for keyword in decorator.keywords if keyword.arg == "weights"), None)
            return _text(tree, value)
    return None


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else None


def _names_of_decorator(tree: ast.Module) -> set[str]:
    """What `coldstart_handler` is called in this module: `coldstart_handler`, an alias, `adapter.coldstart_handler`."""
    names: set[str] = set()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and not statement.level:
            package = statement.module or ""
            if package == _PACKAGE or package.startswith(_PACKAGE + "."):
                names |= {alias.asname or alias.name for alias in statement.names if alias.name == _DECORATOR}
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name == _PACKAGE or alias.name.startswith(_PACKAGE + "."):
                    bound = (alias.asname,) if alias.asname else (alias.name, _PACKAGE)
                    names |= {f"{name}.{_DECORATOR}" for name in bound}
    return names


def _text(tree: ast.Module, value: ast.expr | None) -> str | None:
    if isinstance(value, ast.Name):
        bound = list(_bindings(tree, value.id))
        value = bound[0] if len(bound) == 1 else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _bindings(tree: ast.Module, name: str) -> Iterator[ast.expr | None]:
    """The value of every binding of a name in the module, in branches too; None where it is not a plain value."""
    plain: Mapping[int, ast.expr | None] = {
        id(target): statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=found, ctx=ast.Store()) if found == name:
                yield plain.get(id(node))
            case ast.FunctionDef(name=found) | ast.AsyncFunctionDef(name=found) | ast.ClassDef(name=found):
                if found == name:
                    yield None
            case ast.alias() if (node.asname or node.name) in (name, "*"):
                yield None
            case _:
                pass


def _binds(statement: ast.stmt, name: str) -> bool:
    return any(
        (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id == name)
        or (isinstance(node, ast.alias) and (node.asname or node.name) == name)
        for node in ast.walk(statement)
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )
