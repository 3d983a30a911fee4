"""What user code says: prints are not held back, log records become log lines of the replica."""

from __future__ import annotations

import io
import logging
import sys
import traceback

from adapter.logs import Log


class RecordHandler(logging.Handler):
    """Writes records of the standard `logging` as log lines of a role, with the request's id where there is one."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """One record, one line."""
        try:
            fields: dict[str, object] = {"logger": record.name, "message": record.getMessage()}
            if (request_id := getattr(record, "request_id", None)) is not None:
                fields["request_id"] = request_id
            if record.exc_info and record.exc_info[0] is not None:
                fields["trace"] = "".join(traceback.format_exception(*record.exc_info))
            write = (
                self._log.error
                if record.levelno >= logging.ERROR
                else self._log.warning
                if record.levelno >= logging.WARNING
                else self._log.info
                if record.levelno >= logging.INFO
                else self._log.debug
            )
            write("handler.log", **fields)
        except Exception:  # noqa: BLE001 - a record that cannot be formatted is the user's, and must not end a call
            self.handleError(record)


def carry_user_output(log: Log, level: str) -> None:
    """Show what user code prints line by line, and what it logs; a logger that the user set up stays as it is.

    Args:
        log: Where records go.
        level: Lowest level of records that are shown: debug, info, warning or error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # buffered in blocks where nobody watches, and lost at a SIGKILL
            stream.reconfigure(line_buffering=True)
    root = logging.getLogger()
    root.addHandler(RecordHandler(log))
    root.setLevel(level.upper())
