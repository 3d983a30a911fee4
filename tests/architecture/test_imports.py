"""Who may import what, and what importing costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from tests.support.source_tree import ROOT, Import, Source, imports, sources

HEAVY: Mapping[str, tuple[str, ...]] = {
    # only inside functions, see test_torch_is_imported_by_functions_only
    "torch": ("adapter/device/", "adapter/weights", "adapter/warm_up/", "adapter/conversion", "adapter/snapshot/"),
    "boto3": ("adapter/storage/s3",),
    "botocore": ("adapter/storage/s3",),
    "urllib3": ("adapter/storage/web_client", "adapter/storage/http", "adapter/storage/s3_requests"),
    "starlette": ("adapter/platforms/http", "adapter/emulator/"),
    "uvicorn": ("adapter/platforms/http", "adapter/emulator/", "adapter/runtime/front", "adapter/cli/store"),
    "prometheus_client": ("adapter/runtime/metrics", "adapter/platforms/http", "adapter/emulator/"),
    "rich": ("adapter/cli/", "adapter/report/"),
    # found in sys.modules when the user's code has imported them, never imported
    "numpy": (),
    "pydantic": (),
    "transformers": (),
    "tokenizers": (),
}
"""Module: the files (by their beginnings) that may import it; any other may not, not even in a function."""

IMPORTERS_BY_NAME = ("adapter/__init__.py", "adapter/cli/main.py", "adapter/handler/find.py")
"""Who may import by a computed name: linters do not see what that is."""

BUDGET = 90
BANNED_AT_IMPORT = ("torch", "numpy", "boto3", "botocore", "asyncio", "starlette", "uvicorn", "httptools", "tenacity")


def found(wanted: str) -> list[tuple[Source, Import]]:
    return [
        (source, found)
        for source in sources("adapter")
        for found in imports(source.tree)
        if found.module.split(".")[0] == wanted
    ]


@pytest.mark.parametrize("module", sorted(HEAVY))
def test_a_heavy_module_is_imported_in_its_rooms_only(module: str) -> None:
    strangers = [
        f"{source.name}:{line.line}"
        for source, line in found(module)
        if not line.for_types_only and not source.name.startswith(HEAVY[module] or ("nobody",))
    ]
    assert strangers == []


def test_torch_is_imported_by_functions_only() -> None:
    """An import of torch costs 1.2 s and more: whoever imports a module must not pay for it."""
    early = [f"{source.name}:{line.line}" for source, line in found("torch") if not line.in_function]
    early = [place for place in early if not _for_types_only(place)]
    assert early == []


def _for_types_only(place: str) -> bool:
    name, _, number = place.partition(":")
    (source,) = (source for source in sources("adapter") if source.name == name)
    return all(line.for_types_only for line in imports(source.tree) if line.line == int(number))


def test_nothing_is_imported_by_a_computed_name() -> None:
    guilty = []
    for source in sources("adapter"):
        for node in ast.walk(source.tree):
            called = node.func if isinstance(node, ast.Call) else None
            name = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            if name in ("import_module", "__import__") and source.name not in IMPORTERS_BY_NAME:
                guilty.append(f"{source.name}:{node.lineno}" if isinstance(node, ast.expr) else source.name)
    assert guilty == []


def test_the_environment_is_read_by_the_command_line_only() -> None:
    """Settings come from `Settings.from_env`, which a command calls; a test can then say what a replica is told."""
    guilty = []
    for source in sources("adapter"):
        if source.name.startswith("adapter/cli/"):
            continue
        guilty += [
            f"{source.name}:{node.lineno}"
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Attribute) and node.attr in ("environ", "environb", "getenv", "putenv", "unsetenv")
        ]
        guilty += [
            f"{source.name}:{line.line}"
            for line in imports(source.tree)
            if line.module == "os" and {"environ", "environb", "getenv"} & set(line.names)
        ]
    assert guilty == []


def test_no_module_imports_itself_by_way_of_others() -> None:
    """A11: no cycle, not even one that an import inside a function hides."""
    known = {source.module for source in sources("adapter")}
    edges: dict[str, set[str]] = {name: set() for name in known}
    for source in sources("adapter"):
        for line in imports(source.tree):
            targets = {f"{line.module}.{name}" for name in line.names} & known
            # `from package import name` needs the package itself only for names that it defines
            if line.module in known and len(targets) < max(1, len(line.names)):
                targets.add(line.module)
            edges[source.module] |= targets - {source.module}
    # names that the package resolves lazily are for users: none of ours goes through them
    edges["adapter"] = set()
    assert _cycle(edges) == []


def _cycle(edges: Mapping[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def walk(name: str, path: tuple[str, ...]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(edges[name]):
            if ring := walk(target, (*path, name)):
                return ring
        done.add(name)
        return []

    return next((ring for name in sorted(edges) if (ring := walk(name, ()))), [])


def test_our_own_modules_do_not_go_through_the_public_names() -> None:
    """`from adapter import X` inside would be a hidden way around the layers."""
    guilty = [
        f"{source.name}:{line.line}"
        for source in sources("adapter")
        for line in imports(source.tree)
        if line.module == "adapter"
    ]
    assert guilty == []


def loaded_by(statement: str) -> set[str]:
    """The modules that a statement loads in a fresh interpreter, beyond what it starts with."""
    program = (
        f"import sys; before = set(sys.modules)\n{statement}\nloaded = sorted(set(sys.modules) - before)\n"
        "import json; print(json.dumps(loaded))"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


def test_importing_the_package_costs_next_to_nothing() -> None:
    loaded = loaded_by("import adapter")
    assert not {name.split(".")[0] for name in loaded} & set(BANNED_AT_IMPORT)
    assert len(loaded) <= BUDGET


def test_using_the_decorator_loads_no_framework() -> None:
    loaded = loaded_by("from adapter import coldstart_handler\n@coldstart_handler\ndef f(event): return event")
    assert not {name.split(".")[0] for name in loaded} & set(BANNED_AT_IMPORT)
    assert len(loaded) <= BUDGET


def outside_standard_library(loaded: set[str]) -> set[str]:
    tops = {name.split(".")[0] for name in loaded}
    return {name for name in tops if name not in sys.stdlib_module_names and name != "adapter"}


def test_the_supervisor_is_standard_library() -> None:
    """It is what holds a replica together: nothing heavy, nothing that starts threads."""
    loaded = loaded_by("import adapter.runtime.supervisor")
    assert outside_standard_library(loaded) == set()
    assert not loaded & {"asyncio", "concurrent.futures", "multiprocessing"}


def test_the_command_serve_loads_nothing_of_others_before_it_forks() -> None:
    loaded = loaded_by("import adapter.cli.main, adapter.cli.serve")
    assert outside_standard_library(loaded) == set()
    strangers = ("adapter.emulator", "adapter.report", "adapter.platforms", "adapter.cli.store", "adapter.cli.report")
    assert not [name for name in loaded if name.startswith(strangers)]
