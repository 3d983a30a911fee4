"""The front's life: the wire to the worker, one platform, readiness for the supervisor, and an orderly end.

The platform is a value handed in (`FrontSetup.platform`): this module knows no wire contract, and a contract knows the
replica only as `Services`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from adapter.errors import RoleDied
from adapter.logs import Log
from adapter.runtime import front_link
from adapter.runtime.metrics import Metrics
from adapter.runtime.queue import Dispatcher, Limits
from adapter.runtime.roles import ReplicaSpec, read_error, read_json
from adapter.settings import Settings
from adapter.timeline import Timeline

CLOSING_S = 0.5
"""How long a platform may take to close once every answer is on its way and the grace is over."""


@dataclass(frozen=True, slots=True)
class Services:
    """What a platform works with; it may use it from the event loop only."""

    dispatcher: Dispatcher
    metrics: Metrics
    settings: Settings
    listener: socket.socket | None
    """The inherited listener, for platforms that are servers."""
    report: Callable[[], bytes]
    """The init report as JSON; reads files, so call it in a thread."""
    progress: Callable[[], Mapping[str, int] | None]
    """How far the weights are: `bytes` and `of`, None while that is unknown. One small file is read."""
    listening: Callable[[], None]
    """To be called when callers can get in."""
    closing: asyncio.Event
    """Set when every invocation has its outcome: hand over what is left and return from `serve`."""


class Platform(Protocol):
    """A wire contract between a serverless platform and a replica: server or client."""

    async def serve(self, services: Services) -> None:
        """Take invocations, submit them, give back what comes of them; returns soon after `services.closing` is set.

        Returning earlier, or raising, ends the front: the supervisor starts another one. It is cancelled when the
        grace is over and answers are still on their way: callers that read too slowly are cut off.
        """
        ...


@dataclass(frozen=True, slots=True)
class FrontSetup:
    """What the front is told."""

    spec: ReplicaSpec
    listener: socket.socket | None
    status_fd: int
    """Where the front writes JSON lines for the supervisor: listening, phase, ready, unresponsive."""
    platform: Callable[[], Platform]
    """Makes the platform; called in the front's process, so that only the front imports a server."""
    report: Callable[[], bytes]


def run(setup: FrontSetup) -> int:
    """Be the front until told to end by SIGTERM.

    Where `spec.failure` names an error by then, whoever waits gets that error; else accepted work may finish within
    the grace. A second SIGTERM ends the grace.

    Returns:
        The exit code.
    """
    timeline = Timeline("front", setup.spec.timeline)
    logging.basicConfig(handlers=[_LibraryLogs(Log("front", setup.spec.settings.log_level))], level=logging.WARNING)
    with timeline.span("import.server"):
        platform = setup.platform()
    return asyncio.run(_Front(setup, platform, timeline).live())


class _LibraryLogs(logging.Handler):
    """Makes lines of ours of what asyncio and the server say: a log has one form."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = {"trace": "".join(traceback.format_exception(*record.exc_info))} if record.exc_info else {}
        told = self._log.error if record.levelno >= logging.ERROR else self._log.warning
        told("front.library", logger=record.name, message=record.getMessage(), **trace)


class _Front:
    def __init__(self, setup: FrontSetup, platform: Platform, timeline: Timeline) -> None:
        self._setup = setup
        self._spec = setup.spec
        self._platform = platform
        self._timeline = timeline
        self._log = Log("front", setup.spec.settings.log_level)
        self._told = asyncio.Event()
        self._hurry = asyncio.Event()

    async def live(self) -> int:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._on_term)
        metrics = Metrics()
        metrics.stream = self._stream
        dispatcher = Dispatcher(
            Limits(queue_length=self._spec.settings.queue_limit),
            metrics,
            self._on_change,
            init_started_s=self._spec.started_ns / 1e9,
            served=self._spec.ready.exists(),
        )
        closing = asyncio.Event()
        services = Services(
            dispatcher=dispatcher,
            metrics=metrics,
            settings=self._spec.settings,
            listener=self._setup.listener,
            report=self._setup.report,
            progress=self._progress,
            listening=self._on_listening,
            closing=closing,
        )
        server = await front_link.listen(self._spec.link, dispatcher, self._log)
        serving = asyncio.create_task(self._platform.serve(services))
        told = asyncio.create_task(self._told.wait())
        await asyncio.wait((serving, told), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            raise RoleDied("the platform ended by itself", role="front")
        grace_left_s = await self._end(dispatcher)
        closing.set()
        await self._let_close(serving, grace_left_s)
        server.close()  # not waited for: the worker's connection stays until one of us ends
        return 0

    async def _end(self, dispatcher: Dispatcher) -> float:
        """Bring every invocation to its outcome; how much of the grace is left for handing outcomes over, in s."""
        failure = read_error(self._spec.failure)
        if failure is not None:
            dispatcher.fail(failure)
            return 0.0
        served = dispatcher.ready
        self._log.info("front.drain.started", phase=str(dispatcher.phase))
        started = time.monotonic()
        await dispatcher.drain(self._spec.settings.grace_s, self._hurry)
        seconds = time.monotonic() - started
        self._log.info("front.drain.complete", seconds=round(seconds, 3))
        return max(0.0, self._spec.settings.grace_s - seconds) if served else 0.0

    async def _let_close(self, serving: asyncio.Task[None], grace_left_s: float) -> None:
        hurry = asyncio.create_task(self._hurry.wait())
        await asyncio.wait((serving, hurry), timeout=grace_left_s, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((serving,), timeout=CLOSING_S)
        if not serving.done():
            serving.cancel()
            await asyncio.wait((serving,), timeout=CLOSING_S)
        if serving.done() and not serving.cancelled():
            serving.result()

    def _on_term(self) -> None:
        if self._told.is_set():
            self._hurry.set()
        self._told.set()

    def _on_listening(self) -> None:
        self._timeline.mark("front.listening", "network")
        listener = self._setup.listener
        name = listener.getsockname() if listener is not None else None
        self._tell({"event": "listening", "address": name[:2] if isinstance(name, tuple) else name})

    def _on_change(self, change: Mapping[str, Any]) -> None:
        if change.get("event") == "ready":
            self._timeline.mark("replica.ready", "process")
        self._tell(change)

    def _tell(self, change: Mapping[str, Any]) -> None:
        try:
            os.write(self._setup.status_fd, json.dumps(change).encode() + b"\n")
        except OSError as error:  # the supervisor is gone, and so are we in a moment; or it has not read for very long
            self._log.warning("front.status.failed", cause=str(error), **change)

    def _stream(self) -> Mapping[str, object]:
        value = read_json(self._spec.progress)
        return value if isinstance(value, dict) else {}

    def _progress(self) -> Mapping[str, int] | None:
        value = self._stream()
        done, total = value.get("done_bytes"), value.get("total_bytes")
        return {"bytes": done, "of": total} if isinstance(done, int) and isinstance(total, int) else None
