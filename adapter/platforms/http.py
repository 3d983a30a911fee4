"""Plain HTTP: events are POSTed, results are the answers; health, the init report and metrics beside them.

| route | answer |
|---|---|
| POST / and /invocations | 200 with the result, or a stream; an error is `{"error": {code, type, message, …}}` |
| GET /health/live | 200 as long as the front lives |
| GET /health/ready | 200 when invocations are served, else 503 with phase and progress |
| GET /coldstart | the init report |
| GET /metrics | Prometheus |

Request headers: `X-Request-Id` (echoed, and the handler's `context.request_id`), `X-Coldstart-Timeout-S` (the caller's
patience, waiting included), `Accept: text/event-stream` (streams as events instead of JSON lines).
Answer headers: `X-Request-Id`, `X-Coldstart` (what the invocation met: `cold`, `restored` or `warm`), `Server-Timing`
(queue, handler, total, and init where it was cold; milliseconds).
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter.errors import (
    AdapterError,
    Draining,
    EncodeError,
    EventTooLarge,
    HandlerFailed,
    InvalidEvent,
    InvocationCancelled,
    InvocationTimeout,
    LinkError,
    QueueFull,
    ResponseTooLarge,
    WorkerDied,
)
from adapter.platforms.http_server import Server
from adapter.platforms.http_streaming import NDJSON, SSE, Headers, send_stream
from adapter.runtime.front import Services
from adapter.runtime.invocation import Invocation, Outcome
from adapter.runtime.queue import Dispatcher

EVENT_LIMIT_BYTES = 32 << 20
"""Largest event that is taken: the limit of Cloud Run; RunPod's load balancer allows 30 MB, others less."""
RETRY_AFTER_S = 1
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_STATUS: dict[type[AdapterError], int] = {
    InvalidEvent: 400,
    EventTooLarge: 413,
    InvocationCancelled: 499,  # nginx' number for a caller that went away; nobody reads it
    HandlerFailed: 500,
    EncodeError: 500,
    ResponseTooLarge: 500,
    WorkerDied: 502,
    LinkError: 502,
    QueueFull: 503,
    Draining: 503,
    InvocationTimeout: 504,
}


class HttpPlatform:
    """Serves plain HTTP on the inherited listener: a `Platform`."""

    async def serve(self, services: Services) -> None:
        """Serve until `services.closing` is set and the last answer has been handed over.

        Until then new callers are answered (as draining), rather than left waiting in the listener's backlog.
        """
        assert services.listener is not None, "an HTTP server needs a listener"
        answers = Answers()
        server = Server(http_app(services, answers), services.listening)
        serving = asyncio.create_task(server.serve_on(services.listener))
        closing = asyncio.create_task(services.closing.wait())
        try:
            await asyncio.wait((serving, closing), return_when=asyncio.FIRST_COMPLETED)
            if closing.done():
                await answers.all_sent()
                await server.flushed()
            server.should_exit = True
            await serving
        except asyncio.CancelledError:
            server.drop_connections()
            await answers.all_sent()
            raise
        finally:
            closing.cancel()


class Answers:
    """How many answers are on their way to callers."""

    def __init__(self) -> None:
        self.count: int = 0
        self._none = asyncio.Event()
        self._none.set()

    def begin(self) -> None:
        """An invocation was accepted: somebody waits for an answer."""
        self.count += 1
        self._none.clear()

    def end(self) -> None:
        """An answer is in the server's hands, or nobody wants it any more."""
        self.count -= 1
        if self.count == 0:
            self._none.set()

    async def all_sent(self) -> None:
        """Returns when no answer is on its way."""
        await self._none.wait()


def http_app(services: Services, answers: Answers) -> ASGIApp:
    """The ASGI application over a replica's services."""
    endpoints = _Endpoints(services)
    invoke = _Invoke(services.dispatcher, answers)
    return Starlette(
        routes=[
            Route("/", invoke, methods=["POST"]),
            Route("/invocations", invoke, methods=["POST"]),
            Route("/health/live", endpoints.live),
            Route("/health/ready", endpoints.ready),
            Route("/coldstart", endpoints.coldstart),
            Route("/metrics", endpoints.metrics),
        ],
        exception_handlers={HTTPException: _http_error},
    )


class _Endpoints:
    """What is asked about a replica."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def live(self, request: Request) -> Response:
        return JSONResponse({"status": "live"})

    async def ready(self, request: Request) -> Response:
        dispatcher = self._services.dispatcher
        if dispatcher.ready:
            told = {"status": "ready", "phase": str(dispatcher.phase), "concurrency": dispatcher.concurrency}
            return JSONResponse(told)
        state: dict[str, Any] = {
            "status": "not ready",
            "phase": str(dispatcher.phase),
            "progress": self._services.progress(),
            "detail": dict(dispatcher.detail),
        }
        if dispatcher.failure is not None:
            state["error"] = _described(dispatcher.failure)
        return JSONResponse(state, 503, headers={"Retry-After": str(RETRY_AFTER_S)})

    async def coldstart(self, request: Request) -> Response:
        return Response(await asyncio.to_thread(self._services.report), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        text, content_type = await asyncio.to_thread(self._services.metrics.render, accept)
        return Response(text, headers={"Content-Type": content_type})


class _Invoke:
    """POST: an ASGI application of its own, since an invocation passes here each time and nothing else of Starlette."""

    def __init__(self, dispatcher: Dispatcher, answers: Answers) -> None:
        self._dispatcher = dispatcher
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_s = time.monotonic()
        headers = dict(scope["headers"])
        wanted_id = headers.get(b"x-request-id", b"")
        request_id = wanted_id.decode("ascii") if _REQUEST_ID.fullmatch(wanted_id) else None
        try:
            timeout_s = _timeout(headers.get(b"x-coldstart-timeout-s"))
            event = await _read(receive, headers.get(b"content-length"))
            if event is None:
                return  # the caller went away before it had said all
            invocation = self._dispatcher.submit(event, request_id=request_id, timeout_s=timeout_s)
        except AdapterError as error:
            await self._refuse(send, error, wanted_id if request_id else b"")
            return
        watching = asyncio.create_task(_watch(receive, invocation))
        self._answers.begin()
        try:
            await self._answer(send, invocation, arrived_s, headers.get(b"accept", b""))
        except BaseException:
            watching.cancel()
            invocation.cancel("client_gone")
            raise
        finally:
            self._answers.end()

    async def _answer(self, send: Send, invocation: Invocation, arrived_s: float, accept: bytes) -> None:
        form = SSE if b"text/event-stream" in accept else NDJSON
        outcome = await invocation.next()
        while outcome.kind == "progress" and form is NDJSON:
            outcome = await invocation.next()
        headers = _answer_headers(invocation, arrived_s)
        if outcome.kind == "result":
            await _reply(send, 200, outcome.body, headers)
        elif outcome.error is not None:
            await self._refuse(send, outcome.error, headers=headers)
        else:
            await send_stream(send, headers, invocation, outcome, (form, _stream_error))

    async def _refuse(
        self, send: Send, error: AdapterError, request_id: bytes = b"", *, headers: Headers | None = None
    ) -> None:
        status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), None)
        if status is None:
            status = 503 if self._dispatcher.failure is not None else 500
        more = list(headers or ())
        if request_id:
            more.append((b"x-request-id", request_id))
        if status == 503 and error.retryable:
            more.append((b"retry-after", b"%d" % RETRY_AFTER_S))
        elif status == 413:
            more.append((b"connection", b"close"))  # or the rest of what is too large would still be taken in
        await _reply(send, status, _error_body(error), more)


# -- reading ----------------------------------------------------------------------------------------------------------


def _timeout(header: bytes | None) -> float | None:
    if header is None:
        return None
    try:
        timeout_s = float(header)
    except ValueError:
        timeout_s = math.nan
    if not 0 < timeout_s < math.inf:
        raise InvalidEvent("the header X-Coldstart-Timeout-S is not a number of seconds above 0")
    return timeout_s


async def _read(receive: Receive, length: bytes | None) -> bytes | None:
    """The whole body; None where the caller went away."""
    if length is not None and int(length) > EVENT_LIMIT_BYTES:
        raise _too_large(int(length))
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunk = message.get("body", b"")
        if not chunks and not message.get("more_body", False):
            return bytes(chunk)
        size += len(chunk)
        if size > EVENT_LIMIT_BYTES:
            raise _too_large(size)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(size: int) -> EventTooLarge:
    return EventTooLarge(
        f"the event has {size} bytes or more; at most {EVENT_LIMIT_BYTES} are taken. Send a reference to large data.",
        size_bytes=size,
        limit_bytes=EVENT_LIMIT_BYTES,
    )


async def _watch(receive: Receive, invocation: Invocation) -> None:
    """Cancel the invocation when the caller goes away; ends with the answer, which is a disconnect for ASGI too."""
    while (await receive())["type"] != "http.disconnect":
        pass
    invocation.cancel("client_gone")


# -- answering --------------------------------------------------------------------------------------------------------


def _answer_headers(invocation: Invocation, arrived_s: float) -> Headers:
    timing = f"queue;dur={invocation.queue_s * 1000:.3f}"
    if invocation.handler_s is not None:
        timing += f", handler;dur={invocation.handler_s * 1000:.3f}"
    if invocation.init_s is not None:
        timing += f", init;dur={invocation.init_s * 1000:.3f}"
    timing += f", total;dur={(time.monotonic() - arrived_s) * 1000:.3f}"
    headers = [(b"x-request-id", invocation.request_id.encode("ascii")), (b"server-timing", timing.encode("ascii"))]
    if invocation.start is not None:  # it has met a worker
        headers.append((b"x-coldstart", invocation.start.encode("ascii")))
    return headers


async def _reply(send: Send, status: int, body: bytes, headers: Headers) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


def _described(error: AdapterError) -> dict[str, object]:
    described = error.to_dict()
    del described["exit_code"]  # the caller's concern is whether to try again
    return described


def _error_body(error: AdapterError) -> bytes:
    return json.dumps({"error": _described(error)}, separators=(",", ":")).encode()


def _stream_error(outcome: Outcome) -> bytes:
    assert outcome.error is not None
    return _error_body(outcome.error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    described = {"code": f"http.{error.status_code}", "type": "HTTPException", "message": message, "retryable": False}
    return JSONResponse({"error": described | {"fields": {}}}, error.status_code, headers=error.headers)
