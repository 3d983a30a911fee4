"""What the object store served: every request with the bytes that were really sent."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

KEPT = 100_000
"""Requests kept in memory; the sums and the file go on beyond."""


@dataclass(slots=True)
class OpenRequest:
    """A request and its answer so far."""

    method: str
    bucket: str
    key: str
    range: str | None
    start_ns: int
    """CLOCK_MONOTONIC, as the timeline of a replica."""
    status: int | None = None
    bytes_sent: int = 0
    stop_ns: int | None = None

    def to_json(self) -> dict[str, object]:
        """Its fields as JSON values; `t` is its start as Unix time in seconds."""
        since_s = (time.monotonic_ns() - self.start_ns) / 1e9
        return {
            "t": round(time.time() - since_s, 6),
            "start_ns": self.start_ns,
            "stop_ns": self.stop_ns,
            "method": self.method,
            "bucket": self.bucket,
            "key": self.key,
            "range": self.range,
            "status": self.status,
            "bytes_sent": self.bytes_sent,
        }


class RequestLog:
    """Counts requests and bytes of bodies; used from one event loop.

    Args:
        path: File that gets one JSON line when a request has ended; None keeps it in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self.reset()

    def reset(self) -> None:
        """Forget what was served; the file stays as it is."""
        self._kept: deque[OpenRequest] = deque(maxlen=KEPT)
        self._requests = 0
        self._bytes_sent = 0
        self._by_key: dict[str, dict[str, int]] = {}

    def open(self, method: str, bucket: str, key: str, asked: str | None) -> OpenRequest:
        """Note that a request came."""
        opened = OpenRequest(method, bucket, key, asked, time.monotonic_ns())
        self._kept.append(opened)
        self._requests += 1
        self._of(opened)["requests"] += 1
        return opened

    def sent(self, opened: OpenRequest, count: int) -> None:
        """Note bytes of a body that went out."""
        opened.bytes_sent += count
        self._bytes_sent += count
        self._of(opened)["bytes_sent"] += count

    def close(self, opened: OpenRequest, status: int, count: int) -> None:
        """Note the end of an answer, with its last bytes."""
        self.sent(opened, count)
        opened.status = status
        opened.stop_ns = time.monotonic_ns()
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(opened.to_json(), separators=(",", ":")) + "\n")

    def summary(self, *, with_log: bool = False) -> dict[str, object]:
        """Requests, bytes sent, and both by `bucket/key`; requests under way count with what was sent so far."""
        summary: dict[str, object] = {
            "requests": self._requests,
            "bytes_sent": self._bytes_sent,
            "by_key": self._by_key,
        }
        if with_log:
            summary["log"] = [opened.to_json() for opened in self._kept]
        return summary

    def _of(self, opened: OpenRequest) -> dict[str, int]:
        return self._by_key.setdefault(f"{opened.bucket}/{opened.key}", {"requests": 0, "bytes_sent": 0})
