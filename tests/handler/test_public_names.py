from __future__ import annotations

import subprocess
import sys

import pytest

import adapter


def test_every_public_name_is_there_and_none_of_them_loads_a_framework() -> None:
    program = (
        "import sys, adapter\n"
        "for name in adapter.__all__: getattr(adapter, name)\n"
        "assert set(adapter.__all__) <= set(dir(adapter))\n"
        "from adapter import *\n"
        "print(sorted({'torch', 'numpy', 'boto3', 'starlette', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_there_are_at_most_fifteen_public_names_in_order() -> None:
    assert adapter.__all__ == sorted(set(adapter.__all__))
    assert len(adapter.__all__) <= 15


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'adapter' has no attribute 'no_such_name'"):
        adapter.no_such_name  # noqa: B018 - the access is the test
