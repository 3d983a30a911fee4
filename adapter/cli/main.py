"""`coldstart COMMAND …`: finds the command, runs it, and turns an error into one line and its exit code."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NamedTuple

from adapter.errors import AdapterError, PlatformUnsupported


class Command(NamedTuple):
    """Where a command lives, and what `--help` says of it without importing it."""

    module: str
    help: str


COMMANDS = {
    "serve": Command("adapter.cli.serve", "start a replica of a handler and serve it over HTTP"),
    "emulate": Command("adapter.cli.emulate", "a serverless platform for a handler on this machine"),
    "invoke": Command("adapter.cli.invoke", "one cold start, one answer, and where the time went"),
    "store": Command("adapter.cli.store", "serve a directory as an object store, for laptops and tests"),
    "report": Command("adapter.cli.report", "show where a start's time went"),
    "fetch": Command("adapter.cli.fetch", "bring weights onto this machine before a replica asks for them"),
    "inspect": Command("adapter.cli.inspect", "what a checkpoint holds: tensors, dtypes, shapes, bytes"),
    "convert": Command("adapter.cli.convert", "pickled checkpoints into safetensors that stream and map well"),
    "push": Command("adapter.cli.push", "a checkpoint into object storage, checked, in parts that readers' ranges fit"),
    "cache": Command("adapter.cli.cache", "what is kept between starts: list, verify, prune, remove, pin"),
    "new": Command("adapter.cli.new", "make a directory with a handler, its tests and its image, to begin from"),
}

INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code of the command line `argv` (the process's own without one).

    Raises:
        SystemExit: The arguments are wrong (2), or only help was asked for (0); argparse has said so already.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        require_linux(sys.platform)
        arguments = _parser(given).parse_args(given)
        code = int(arguments.run(arguments))
        sys.stdout.flush()
        return code
    except AdapterError as error:
        from adapter.cli.plain_text import printable_lines

        print(f"coldstart: {error.code}: {printable_lines(error.message)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # `| head` has seen enough; the interpreter's own flush at its end must not fail too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def require_linux(platform: str) -> None:
    """Refuse a system without what the roles rest on.

    Raises:
        PlatformUnsupported: It is not Linux.
    """
    if not platform.startswith("linux"):
        raise PlatformUnsupported(
            f"coldstart needs Linux, this is {platform}: its processes rest on /proc, prctl and fallocate; "
            "run it in a Linux container",
            platform=platform,
        )


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coldstart", description="Cold starts of GPU functions that cost what physics asks for."
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    asked = next((word for word in given if not word.startswith("-")), None)
    for name, command in COMMANDS.items():
        if name == asked:
            importlib.import_module(command.module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=command.help)
    return parser
