"""`coldstart report SOURCE`: show where a start's time went."""

from __future__ import annotations

import json
import os
import shutil
import sys
import urllib.error
import urllib.parse
import urllib.request
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

from adapter.cli import Subparsers
from adapter.errors import ConfigurationError
from adapter.init_report import InitReport, init_report
from adapter.report.waterfall import ASCII, Glyphs, Piece, plain, waterfall
from adapter.timeline import read_spans

_STYLES = {
    "plain": "",
    "title": "bold",
    "dim": "dim",
    "infrastructure": "blue",
    "framework": "yellow",
    "model": "green",
    "error": "bold red",
}
_FETCH_TIMEOUT_S = 10.0
_LIMIT_BYTES = 64 << 20
"""A report of thousands of stages has a few hundred kB; more is something else."""


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser("report", description="Show where a start's time went.")
    parser.add_argument(
        "sources",
        metavar="SOURCE",
        nargs="+",
        help="the address of a replica (http://127.0.0.1:8080), a file of reports or a timeline.jsonl, or - for "
        "standard input; of several, each one's last start",
    )
    parser.add_argument("--all", action="store_true", help="every report of a file, not only the last")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="a waterfall as text (this is what you get without a flag)")
    form.add_argument("--json", action="store_true", help="the report itself, one line of JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page; several starts stand side by side on one scale")
    parser.add_argument(
        "--trace", metavar="FILE", help="write a trace for Perfetto (ui.perfetto.dev, chrome://tracing)"
    )
    parser.add_argument("--width", type=int, default=None, help="columns to use (default: the terminal's, else 120)")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Show the report.

    Raises:
        ConfigurationError: There is no report at a source, or a file cannot be written; the message says which.
    """
    _check_places(arguments.sources, [place for place in (arguments.html, arguments.trace) if place])
    reports, names = _read_all(arguments.sources, every=arguments.all)
    if arguments.html:
        from adapter.report.html import html_page

        _write(arguments.html, html_page(reports, names=names))
    if arguments.trace:
        from adapter.report.trace import trace_json

        _write(arguments.trace, trace_json(reports, names=names))
    if arguments.json:
        for report in reports:
            print(report.to_json())
    elif arguments.text or not (arguments.html or arguments.trace):
        for number, report in enumerate(reports):
            _show(report, arguments.width or shutil.get_terminal_size((120, 0)).columns, first=number == 0)
    return 0


def _read_all(sources: Sequence[str], *, every: bool) -> tuple[list[InitReport], list[str]]:
    """The reports, and what to call each where there are several."""
    reports: list[InitReport] = []
    names: list[str] = []
    for source in sources:
        found = read_reports(source)
        found = found if every else found[-1:]
        reports += found
        names += [source if len(found) == 1 else f"{source}, start {number}" for number in range(1, len(found) + 1)]
    return reports, names if len(reports) > 1 else []


def _check_places(sources: Sequence[str], places: Sequence[str]) -> None:
    """Refuse to write over a source, or two pictures into one file.

    Raises:
        ConfigurationError: That is what was asked for.
    """
    taken = {_identity(source): source for source in sources if source != "-" and "://" not in source}
    for place in places:
        identity = _identity(place)
        if identity in taken:
            raise ConfigurationError(f"{place} would be written over {taken[identity]}: name another file", path=place)
        taken[identity] = place


def _identity(place: str) -> object:
    """What two names of one file have in common."""
    try:
        found = os.stat(place)
    except (OSError, ValueError):  # not there yet
        return os.path.realpath(place) if place != "-" else place
    return (found.st_dev, found.st_ino)


def _write(place: str, text: str) -> None:
    """Write a picture, and say where it is; `-` is standard output."""
    data = text.encode("utf-8", "backslashreplace")  # names of files may hold what is no text
    if place == "-":
        sys.stdout.buffer.write(data)
        return
    try:
        Path(place).write_bytes(data)
    except OSError as error:
        raise ConfigurationError(f"cannot write {place}: {error.strerror}", path=place) from None
    print(f"coldstart: written: {place}", file=sys.stderr)


def read_reports(source: str) -> tuple[InitReport, ...]:
    """The reports at a source, one at least: an address, a file of reports or a timeline, `-` for standard input.

    Raises:
        ConfigurationError: There is none, or something else is there.
    """
    try:
        if source.startswith(("http://", "https://")):
            data = _fetch(source)
        else:
            data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        if source != "-" and _is_timeline(data):
            return (init_report(read_spans(Path(source))),)
        return _parsed(data)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"no init report at {source}: {error}", source=source) from None


def _parsed(data: bytes) -> tuple[InitReport, ...]:
    """The reports in a text: one a line, or one after the other over any number of lines each."""
    lines = [line for line in data.split(b"\n") if line.strip()]
    if not lines:
        raise ValueError("it is empty")
    try:
        json.loads(lines[0])
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # the first line is not all of the first report
        return tuple(InitReport.from_json(text) for text in _values(data.decode(errors="replace")))
    return tuple(InitReport.from_json(line) for line in lines)


def _values(text: str) -> Iterator[str]:
    decoder, at = json.JSONDecoder(), 0
    while at < len(text) and (at := len(text) - len(text[at:].lstrip())) < len(text):
        start = at
        try:
            _, at = decoder.raw_decode(text, start)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        yield text[start:at]


def _show(report: InitReport, width: int, *, first: bool) -> None:
    lines = waterfall(report, width=width, glyphs=_glyphs(sys.stdout.encoding))
    if not first:
        print()
    if not (sys.stdout.isatty() and _print_coloured(lines)):
        sys.stdout.write(plain(lines))


def _fetch(address: str) -> bytes:
    parts = urllib.parse.urlsplit(address)
    asked = parts._replace(path="/coldstart").geturl() if parts.path in ("", "/") else address
    try:
        with urllib.request.urlopen(asked, timeout=_FETCH_TIMEOUT_S) as answer:  # noqa: S310  # http(s) only: the caller checked
            return bytes(answer.read(_LIMIT_BYTES))
    except urllib.error.HTTPError as error:
        raise ValueError(f"{asked} answered {error.code} {error.reason}") from None


def _is_timeline(data: bytes) -> bool:
    try:
        value = json.loads(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and "start_ns" in value


def _glyphs(encoding: str | None) -> Glyphs:
    try:
        f"{Glyphs().critical}{Glyphs().other}{Glyphs().mark}".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return Glyphs()


def _print_coloured(lines: tuple[tuple[Piece, ...], ...]) -> bool:
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:  # the extra `cli` is not installed: plain text says the same
        return False
    console = Console()
    for line in lines:
        console.print(Text.assemble(*((piece.text, _STYLES[piece.style]) for piece in line)), soft_wrap=True)
    return True
