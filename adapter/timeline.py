"""Spans on one monotonic clock shared by all roles of a replica, kept as JSON lines in one file.

`CLOCK_MONOTONIC` is one clock for all processes of a machine, so spans of different roles can be laid side by side.
Each record is one `write` to a file opened for appending: records of several processes never mix, and what was
recorded outlives a killed process.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Lane = Literal["process", "network", "cpu", "device", "warm"]
Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Span:
    """A named stretch of time in one role; a mark where start and stop are equal. Times in ns of CLOCK_MONOTONIC."""

    name: str
    role: str
    lane: Lane
    start_ns: int
    stop_ns: int
    pid: int
    fields: Mapping[str, Value] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Its length in seconds."""
        return (self.stop_ns - self.start_ns) / 1e9


class OpenSpan:
    """A span that still runs; `add` gives it facts known only later."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Value]) -> None:
        self.fields: dict[str, Value] = fields

    def add(self, **fields: Value) -> None:
        """Facts to keep with the span."""
        self.fields.update(fields)


class Timeline:
    """Records spans of one role; thread-safe.

    Args:
        role: supervisor, front, fetcher or worker (or a name of your own in one process).
        path: The replica's timeline file, shared by its roles; None keeps spans in memory only.
    """

    def __init__(self, role: str, path: Path | None = None) -> None:
        self.role: str = role
        self.path: Path | None = path
        self._lock = threading.Lock()
        self._spans: list[Span] = []

    @contextmanager
    def span(self, name: str, lane: Lane = "cpu", **fields: Value) -> Iterator[OpenSpan]:
        """Record what runs in the `with` block, also when it raises (field `error`)."""
        opened = OpenSpan(dict(fields))
        start_ns = time.monotonic_ns()
        try:
            yield opened
        except BaseException as error:
            opened.add(error=type(error).__name__)
            raise
        finally:
            self.record(name, lane, start_ns, time.monotonic_ns(), **opened.fields)

    def mark(self, name: str, lane: Lane = "cpu", **fields: Value) -> None:
        """Record a moment: now."""
        now_ns = time.monotonic_ns()
        self.record(name, lane, now_ns, now_ns, **fields)

    def record(self, name: str, lane: Lane, start_ns: int, stop_ns: int, **fields: Value) -> None:
        """Record a span whose times are known."""
        span = Span(name, self.role, lane, start_ns, stop_ns, os.getpid(), fields)
        with self._lock:
            self._spans.append(span)
            if self.path is not None:
                line = json.dumps(_to_json(span), separators=(",", ":")).encode() + b"\n"
                with contextlib.suppress(OSError):  # a full disk costs the report a line, not the start
                    descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                    try:
                        os.write(descriptor, line)
                    finally:
                        os.close(descriptor)

    def spans(self) -> tuple[Span, ...]:
        """What this process recorded."""
        with self._lock:
            return tuple(self._spans)


def read_spans(path: Path) -> tuple[Span, ...]:
    """Every whole record of a timeline file, in the order of their starts; a torn last line is left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return ()
    spans = []
    for line in lines:
        try:
            value = json.loads(line)
            spans.append(
                Span(
                    value["name"],
                    value["role"],
                    value["lane"],
                    value["start_ns"],
                    value["stop_ns"],
                    value["pid"],
                    value.get("fields", {}),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return tuple(sorted(spans, key=lambda span: (span.start_ns, span.stop_ns)))


def process_start_ns(pid: int | None = None) -> int:
    """When a process was started (its exec or fork), in ns of CLOCK_MONOTONIC, to the kernel's tick of 10 ms.

    Source: proc_pid_stat(5), field 22 in ticks since boot, which counts suspended time as CLOCK_BOOTTIME does.
    """
    stat = Path(f"/proc/{pid or 'self'}/stat").read_text()
    ticks = int(stat.rpartition(")")[2].split()[19])
    since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns)


def _to_json(span: Span) -> dict[str, object]:
    value: dict[str, object] = {
        "name": span.name,
        "role": span.role,
        "lane": span.lane,
        "start_ns": span.start_ns,
        "stop_ns": span.stop_ns,
        "pid": span.pid,
    }
    if span.fields:
        value["fields"] = dict(span.fields)
    return value
