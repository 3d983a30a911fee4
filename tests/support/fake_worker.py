"""A worker without user code: speaks the wire to a real front, and does what a test tells it for each invocation."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from adapter.errors import AdapterError
from adapter.runtime.link import Frame
from adapter.runtime.worker_link import WorkerLink

Behaviour = Callable[["FakeWorker", Frame], None]


def echo(worker: FakeWorker, invoke: Frame) -> None:
    """Answer with the event."""
    worker.result(invoke.head["id"], invoke.body)


def hold(worker: FakeWorker, invoke: Frame) -> None:
    """Say nothing: the test answers later."""


class FakeWorker:
    """A worker in a thread of the test.

    Args:
        run_dir: Where the front's socket is.
        behaviour: Called in the link's thread with each `invoke`.
        concurrency: Told with `ready`.
        timeout_s: The same.
    """

    def __init__(
        self, run_dir: Path, behaviour: Behaviour = echo, *, concurrency: int = 1, timeout_s: float | None = None
    ) -> None:
        self.behaviour = behaviour
        self.invoked: list[Frame] = []
        self.cancelled: list[Frame] = []
        self._ready = {"name": "fake", "concurrency": concurrency, "timeout_s": timeout_s, "streams": False}
        self._changed = threading.Condition()
        self._link = WorkerLink(run_dir / "front.sock", self._on_frame, lambda: None)
        self._link.announce(Frame("hello", {"pid": os.getpid(), "instance": os.urandom(4).hex()}))
        self._link.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.die()

    def phase(self, phase: str, detail: dict[str, Any] | None = None, **more: Any) -> None:
        """Announce a phase."""
        self._link.announce(Frame("phase", {"phase": phase, "detail": detail or {}, **more}))

    def ready(self) -> Self:
        """Announce readiness."""
        self._link.announce(Frame("ready", self._ready))
        return self

    def result(self, request_id: str, body: bytes, seconds: float = 0.001) -> None:
        """End an invocation with a result."""
        self._link.send(Frame("result", {"id": request_id, "seconds": seconds}, body))

    def item(self, request_id: str, body: bytes) -> None:
        """Send one element of a stream."""
        self._link.send(Frame("item", {"id": request_id}, body))

    def progress(self, request_id: str, body: bytes) -> None:
        """Send progress."""
        self._link.send(Frame("progress", {"id": request_id}, body))

    def end(self, request_id: str) -> None:
        """End a stream."""
        self._link.send(Frame("end", {"id": request_id, "seconds": 0.001}))

    def error(self, request_id: str, error: AdapterError) -> None:
        """End an invocation with an error."""
        self._link.send(Frame("error", {"id": request_id, "seconds": 0.001, "error": error.to_dict()}))

    def die(self) -> None:
        """Break the connection, as a death does."""
        self._link.close()

    def wait_invoked(self, count: int, timeout_s: float = 10.0) -> list[Frame]:
        """The invocations so far, at least this many.

        Raises:
            TimeoutError: They did not come.
        """
        return self._wait(self.invoked, count, timeout_s)

    def wait_cancelled(self, count: int, timeout_s: float = 10.0) -> list[Frame]:
        """The cancellations so far, at least this many.

        Raises:
            TimeoutError: They did not come.
        """
        return self._wait(self.cancelled, count, timeout_s)

    def _wait(self, frames: list[Frame], count: int, timeout_s: float) -> list[Frame]:
        with self._changed:
            if not self._changed.wait_for(lambda: len(frames) >= count, timeout_s):
                raise TimeoutError(f"{len(frames)} of {count} frames came")
            return list(frames)

    def _on_frame(self, frame: Frame) -> None:
        with self._changed:
            (self.invoked if frame.kind == "invoke" else self.cancelled).append(frame)
            self._changed.notify_all()
        if frame.kind == "invoke":
            self.behaviour(self, frame)


def event_of(invoke: Frame) -> Any:
    """The decoded event of an invocation."""
    return json.loads(invoke.body)
