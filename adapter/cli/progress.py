"""How far a transfer is: a bar on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from adapter.cli.plain_text import readable_bytes, readable_seconds

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LINE_S = 1.0
"""Between two JSON lines."""
WINDOW_S = 10.0
"""The speed is that of so long a time before now: an average from the start says little about a link that changed."""


class Speed:
    """Bytes per second over the last seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now_s: float, done_bytes: int) -> None:
        """Note how far it is."""
        self._seen.append((now_s, done_bytes))
        # one sample from before the window stays: it is where the window's first byte is counted from
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= self._window_s:
            self._seen.popleft()

    @property
    def bytes_per_s(self) -> float:
        """The speed; 0 as long as nothing is known."""
        if len(self._seen) < 2:
            return 0.0
        (first_s, first_bytes), (last_s, last_bytes) = self._seen[0], self._seen[-1]
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0

    def remaining_s(self, left_bytes: int) -> float | None:
        """Seconds that the rest takes at this speed; None where that cannot be told."""
        return left_bytes / self.bytes_per_s if self.bytes_per_s > 0 else None


class Telling:
    """Tells how a transfer goes on. A context manager, which ends the bar.

    Args:
        verb: What is done: `fetch`, `push`.
        json_lines: Also on a terminal.
    """

    def __init__(self, verb: str, *, json_lines: bool = False) -> None:
        self._verb = verb
        self._owned = ExitStack()
        self._speed = Speed()
        self._told_s = -LINE_S
        self._bar = None if json_lines or not sys.stdout.isatty() else _bar()
        self._lines = json_lines or not sys.stdout.isatty()
        self._task = self._bar.add_task(verb, total=None) if self._bar is not None else None

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._owned.enter_context(self._bar)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._owned.close()

    def started(self, **fields: object) -> None:
        """What is about to be done."""
        self._say("started", fields)

    def now(self, done_bytes: int, total_bytes: int) -> None:
        """How far it is; call it as often as you like."""
        now_s = time.monotonic()
        self._speed.add(now_s, done_bytes)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done_bytes, total=total_bytes)
        elif self._lines and now_s - self._told_s >= LINE_S:
            self._told_s = now_s
            left_s = self._speed.remaining_s(total_bytes - done_bytes)
            rate = round(self._speed.bytes_per_s)
            eta_s = None if left_s is None else round(left_s, 1)
            self._say(
                "progress", {"done_bytes": done_bytes, "total_bytes": total_bytes, "bytes_per_s": rate, "eta_s": eta_s}
            )

    def complete(self, text: str, **fields: object) -> None:
        """What was done: `text` for people, the fields for programs."""
        self._owned.close()
        if self._lines:
            self._say("complete", fields)
        else:
            print(text)

    def _say(self, what: str, fields: dict[str, object]) -> None:
        if self._lines:
            print(json.dumps({"event": f"{self._verb}.{what}", **fields}), flush=True)


def amount(size_bytes: int, seconds: float) -> str:
    """`4.1 GB in 12 s (342 MB/s)`."""
    rate = f" ({readable_bytes(size_bytes / seconds)}/s)" if seconds > 0 and size_bytes else ""
    return f"{readable_bytes(size_bytes)} in {readable_seconds(seconds)}{rate}"


def _bar() -> Bar | None:
    try:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
    except ImportError:  # the extra `cli` is not installed: the last line says what counts
        return None
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
        transient=True,
    )
