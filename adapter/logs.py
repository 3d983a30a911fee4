"""Log lines: JSON where a machine reads, one line of text on a terminal; one `write` each, to standard error."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_COLOURS = {"debug": "2", "info": "0", "warning": "33", "error": "31"}


_PIPE_BYTES = 4096
"""A pipe that is writable takes so many bytes without blocking. Source: poll(2), pipe(7), PIPE_BUF."""
_PATIENCE_S = 0.2


def write_line(descriptor: int, line: str) -> bool:
    """Write to a standard stream without ever waiting for long for whoever reads it; False when it was given up.

    A collector of logs that is stuck must not keep a replica from serving, restarting or ending: the line is lost.
    """
    data = memoryview(line.encode("utf-8", "backslashreplace"))
    until_s = time.monotonic() + _PATIENCE_S
    try:
        while data:
            wait_s = max(0.0, until_s - time.monotonic())
            if not select.select([], [descriptor], [], wait_s)[1]:
                return False
            data = data[os.write(descriptor, data[:_PIPE_BYTES]) :]
    except (OSError, ValueError):
        return False  # nobody reads any more: a line is no reason to end
    return True


class Log:
    """Writes events of one role, named `<layer>.<step>.<started|complete|failed>`.

    Args:
        role: Stands in every line.
        level: Events below it are left out: debug, info, warning or error.
    """

    def __init__(self, role: str, level: str = "info") -> None:
        self.role = role
        self._lowest = LEVELS.index(level) if level in LEVELS else 1

    def debug(self, event: str, **fields: object) -> None:
        """Something for whoever looks for a fault."""
        self._write("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Something that happened as it should."""
        self._write("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Something that should not have happened and was dealt with."""
        self._write("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Something that ended a start or an invocation."""
        self._write("error", event, fields)

    def _write(self, level: Level, event: str, fields: dict[str, object]) -> None:
        if LEVELS.index(level) < self._lowest:
            return
        line = self._text(level, event, fields) if sys.stderr.isatty() else self._json(level, event, fields)
        write_line(2, line)

    def _json(self, level: Level, event: str, fields: dict[str, object]) -> str:
        head = {"at": round(time.time(), 3), "level": level, "role": self.role, "event": event}
        return json.dumps(head | fields, separators=(",", ":"), default=str) + "\n"

    def _text(self, level: Level, event: str, fields: dict[str, object]) -> str:
        clock = time.strftime("%H:%M:%S")
        said = "  ".join(f"{name}={value}" for name, value in fields.items())
        return f"\x1b[{_COLOURS[level]}m{clock} {self.role:<10} {event}  {said}\x1b[0m\n"
