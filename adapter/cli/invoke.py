"""`coldstart invoke MODULE:HANDLER --input …`: one cold start, one answer, and where the time went."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.cli.emulate import add_platform_arguments, options_from
from adapter.cli.plain_text import printable_lines
from adapter.errors import AdapterError, ConfigurationError

if TYPE_CHECKING:
    from adapter.emulator.emulator import Emulator, Passed
    from adapter.emulator.options import EmulatorOptions

_ACCEPT = ((b"content-type", b"application/json"), (b"accept", b"text/event-stream"))
_TERMINATED = "SIGTERM"
_REPORT_LIMIT_S = 12.0
"""How long the report of a start may come after its answer: a replica waits 10 s for the last of its weights."""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser = subparsers.add_parser(
        "invoke",
        description="Start a replica cold, have it answer one event, and end it. The answer goes to standard output "
        "(one line an item of a stream), the waterfall of the start to standard error. The exit code is 0, or that of "
        "the error.",
    )
    add_platform_arguments(parser)
    parser.add_argument(
        "--input",
        metavar="JSON|FILE|-",
        required=True,
        help="the event: JSON, a file with JSON, or - for standard input",
    )
    parser.add_argument("--quiet", action="store_true", help="no waterfall")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Start, ask, show, end; the exit code.

    Raises:
        AdapterError: The start or the invocation failed.
    """
    event = read_event(arguments.input)
    options = options_from(arguments)
    return asyncio.run(_invoke(options, event, quiet=arguments.quiet))


def read_event(given: str) -> bytes:
    """The event that `--input` means, checked to be JSON.

    Raises:
        ConfigurationError: It is none, and no file with it either.
    """
    from adapter.errors import InvalidEvent
    from adapter.runtime.codec import decode_event

    try:
        if given == "-":
            data = sys.stdin.buffer.read()
        elif given.lstrip()[:1] in ("{", "[", '"') or not Path(given).is_file():
            data = given.encode("utf-8", "surrogateescape")
        else:
            data = Path(given).read_bytes()
        decode_event(data)
    except (OSError, InvalidEvent) as error:
        raise ConfigurationError(f"--input is neither JSON nor a file with JSON: {error}") from None
    return data


async def _invoke(options: EmulatorOptions, event: bytes, *, quiet: bool) -> int:
    from adapter.emulator.emulator import Emulator

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel, _TERMINATED)
    try:
        async with Emulator(options) as emulator:
            try:
                async with emulator.invoke(event, _ACCEPT) as passed:
                    await _show(passed)
            except AdapterError:
                _show_log(emulator, traces=True, lines=not quiet)
                raise
            except asyncio.CancelledError:
                await emulator.end()  # nobody waits any longer, for a report neither
                raise
            else:
                _show_log(emulator, traces=False, lines=not quiet)
            finally:
                if not quiet:
                    await _waterfall(emulator)
    except asyncio.CancelledError as cancelled:
        if cancelled.args == (_TERMINATED,):
            return 128 + signal.SIGTERM
        raise
    return 0


def _show_log(emulator: Emulator, *, traces: bool, lines: bool) -> None:
    """What user code printed, and where it failed."""
    from adapter.emulator.own_lines import own_line

    for replica in emulator.replicas():
        for line in emulator.log_of(replica["id"]) or ():
            ours = own_line(line)
            if ours is None:
                shown = line if lines else None
            else:
                shown = str(ours["trace"]) if traces and ours.get("trace") else None
            if shown is not None:
                print(printable_lines(shown), file=sys.stderr)


async def _show(passed: Passed) -> None:
    """Print the answer.

    Raises:
        AdapterError: What the replica answers is an error.
    """
    kind = next((value for name, value in passed.headers if name == b"content-type"), b"")
    if kind.startswith(b"text/event-stream"):
        async for name, data in _server_sent(passed.chunks):
            if name == "error":
                raise _error(data)
            if name in ("message", "result"):
                _print(data)
            elif name == "progress":
                print(f"progress: {printable_lines(data.decode(errors='replace'))}", file=sys.stderr, flush=True)
        return
    body = b"".join([chunk async for chunk in passed.chunks])
    if passed.status != 200:
        raise _error(body)
    _print(body)


def _print(data: bytes) -> None:
    sys.stdout.buffer.write(data.rstrip(b"\n") + b"\n")
    sys.stdout.buffer.flush()


def _error(body: bytes) -> AdapterError:
    try:
        return AdapterError.from_dict(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return AdapterError(f"the replica answered with an error that cannot be read: {body[:200]!r}")


async def _server_sent(chunks: AsyncIterator[bytes]) -> AsyncIterator[tuple[str, bytes]]:
    """Name and data of each event, as our replicas write them: one line of data each."""
    rest = b""
    async for chunk in chunks:
        *events, rest = (rest + chunk).split(b"\n\n")
        for event in events:
            name, data = "message", b""
            for line in event.split(b"\n"):
                field, _, value = line.partition(b": ")
                if field == b"event":
                    name = value.decode("ascii", "replace")
                elif field == b"data":
                    data = value
            yield name, data


async def _waterfall(emulator: Emulator) -> None:
    from adapter.report.waterfall import plain, waterfall

    for _ in range(int(_REPORT_LIMIT_S / 0.05)):
        if list(emulator.reports) or not emulator.alive:
            break
        await asyncio.sleep(0.05)
    else:
        await emulator.end()  # it tells what it knows then
    columns = shutil.get_terminal_size((120, 0)).columns
    for stored in emulator.reports:
        sys.stderr.write(plain(waterfall(stored.report, width=columns)))
    sys.stderr.flush()
