"""Every start's report, the newest kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from adapter.init_report import InitReport

KEPT = 200
_DIGITS = 18
"""Of a number that a request may name."""


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A start's report, and whose it is."""

    number: int
    replica: str
    at: float
    """Unix time at which it came in."""
    report: InitReport

    def summary(self) -> dict[str, Any]:
        """What a list shows, as JSON values."""
        report = self.report
        return {
            "number": self.number,
            "replica": self.replica,
            "at": round(self.at, 3),
            "kind": report.kind,
            "outcome": report.outcome,
            "handler": report.handler,
            "total_s": round(report.total_s, 6),
            "layers": {layer: round(share.seconds, 6) for layer, share in report.layers.items()},
            "store_bytes": report.transfer.store_bytes,
            "cache_bytes": report.transfer.cache_bytes,
            "error": report.error.get("code") if report.error else None,
        }


class Reports:
    """The newest reports, numbered from 1 on."""

    def __init__(self) -> None:
        self._kept: deque[StoredReport] = deque(maxlen=KEPT)
        self._count = 0

    def __iter__(self) -> Iterator[StoredReport]:
        return iter(tuple(self._kept))

    def keep(self, replica: str, report: InitReport) -> StoredReport:
        """Number a report and keep it."""
        self._count += 1
        stored = StoredReport(self._count, replica, time.time(), report)
        self._kept.append(stored)
        return stored

    def find(self, number: int) -> StoredReport | None:
        """A report by its number, if it is still kept."""
        return next((stored for stored in self._kept if stored.number == number), None)

    def named(self, text: str) -> StoredReport | None:
        """A report by its number as text, whatever that is."""
        plain = text.isascii() and text.isdigit() and len(text) <= _DIGITS
        return self.find(int(text)) if plain else None

    def newest_of(self, replica: str) -> StoredReport | None:
        """The last report of a replica."""
        return next((stored for stored in reversed(self._kept) if stored.replica == replica), None)

    def to_json(self) -> list[dict[str, Any]]:
        """Summaries of all that are kept, the newest first."""
        return [stored.summary() for stored in reversed(self._kept)]
