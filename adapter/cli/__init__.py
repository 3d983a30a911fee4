"""The command line: one file a command, each imported only when it is the one that was asked for.

The convention: the module of a command has `add_parser(subparsers)`, which describes its arguments and sets
`run=` to its `run(arguments) -> int`, the exit code. Its name, module and one line of help stand in `main.COMMANDS`.
Only commands read the environment, and only through `Settings.from_env`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Protocol


class Subparsers(Protocol):
    """What a command's `add_parser` is given: argparse's own subparsers."""

    def add_parser(self, name: str, *, description: str) -> ArgumentParser:
        """The parser of one command."""
        ...
