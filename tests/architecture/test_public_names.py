"""What users may import, and that each name is what it says."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

import adapter
from tests.support.source_tree import ROOT

LIMIT = 15
"""More names than this are no longer learnt in one sitting."""


def test_every_public_name_is_there() -> None:
    assert adapter.__all__ == sorted(adapter.__all__)
    assert len(adapter.__all__) <= LIMIT
    for name in adapter.__all__:
        assert getattr(adapter, name) is not None


def test_a_public_name_says_where_it_is_from() -> None:
    for name in adapter.__all__:
        value = getattr(adapter, name)
        if isinstance(value, type):
            assert value.__module__.startswith("adapter.")
            assert value.__name__ == name


def test_nothing_else_is_public() -> None:
    """In a fresh interpreter, where no test has imported a room yet."""
    program = (
        "import adapter, types\n"
        "public = {name for name in dir(adapter) if not name.startswith('_')}\n"
        "print(*sorted(public - set(adapter.__all__)))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) <= {"annotations", "TYPE_CHECKING"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        adapter.nothing_of_that_name  # noqa: B018  # reading it is the test


def test_names_that_a_room_declares_are_there() -> None:
    names = [name for _, name, _ in pkgutil.walk_packages(adapter.__path__, "adapter.")]
    for module in [importlib.import_module(name) for name in names if not name.endswith("__main__")]:
        declared = getattr(module, "__all__", [])
        assert [name for name in declared if not hasattr(module, name)] == [], module.__name__
        assert len(set(declared)) == len(declared), module.__name__


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "adapter" / "py.typed").is_file()
