"""The emulator over HTTP.

| route | answer |
|---|---|
| POST /invoke | the replica's answer: status, headers and body as they come; an error is `{"error": {code, …}}` |
| GET /replicas, /replicas/{id}/log | replicas and their states; a replica's log as text |
| POST /replicas/{id}/kill?role=worker | SIGKILL to that role (supervisor, front, fetcher, worker) |
| POST /scale-to-zero | end every replica |
| GET /reports, /reports/{n} | summaries; an init report as JSON |
| GET /invocations | what became of each |
| GET /store | what the embedded store has served |
| GET /events | server-sent events: `snapshot` first, then `replica`, `queue`, `invocation`, `report` |
| GET /health | 200 |

`POST /invoke` adds `X-Coldstart-Replica` and `X-Coldstart-Queued-Ms` to the answer.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from adapter.emulator.emulator import Emulator, Passed
from adapter.emulator.guard import Guard
from adapter.emulator.hub import Happening, Hub
from adapter.errors import AdapterError, EventTooLarge, InvalidEvent, InvocationTimeout, RoleDied

EVENT_LIMIT_BYTES = 32 << 20
"""Largest event that is taken: what a replica takes."""
RETRY_AFTER_S = 1
ROLES = ("supervisor", "front", "fetcher", "worker")
_BEAT_S = 15.0
"""How often an idle stream of events says that it lives: proxies cut what is silent for 60 s."""
_STATUS: dict[type[AdapterError], int] = {EventTooLarge: 413, InvalidEvent: 400, InvocationTimeout: 504, RoleDied: 502}
"""Anything else means that no replica could be had: 503, as a platform answers."""


def emulator_app(emulator: Emulator, *, names: Collection[str] = (), more: Sequence[BaseRoute] = ()) -> Starlette:
    """The ASGI application over an emulator.

    Args:
        emulator: The platform.
        names: What it may be called, beside `localhost` and addresses in digits: a request to another is refused.
        more: Further routes, which come before ours.
    """
    routes = _Routes(emulator)
    return Starlette(
        routes=[
            *more,
            Route("/invoke", _Invoke(emulator), methods=["POST"]),
            Route("/replicas", routes.replicas),
            Route("/replicas/{name}/log", routes.log),
            Route("/replicas/{name}/kill", routes.kill, methods=["POST"]),
            Route("/scale-to-zero", routes.scale_to_zero, methods=["POST"]),
            Route("/reports", routes.reports),
            Route("/reports/{number}", routes.report),
            Route("/invocations", routes.invocations),
            Route("/store", routes.store),
            Route("/events", routes.events),
            Route("/health", routes.health),
        ],
        middleware=[Middleware(Guard, names=names)],
        exception_handlers={404: _no_route, 405: _no_route},
    )


class _Routes:
    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "live", "target": self._emulator.options.target})

    async def replicas(self, request: Request) -> Response:
        return JSONResponse(self._emulator.replicas())

    async def log(self, request: Request) -> Response:
        lines = self._emulator.log_of(request.path_params["name"])
        return _missing("replica") if lines is None else PlainTextResponse("".join(f"{line}\n" for line in lines))

    async def kill(self, request: Request) -> Response:
        role = request.query_params.get("role", "worker")
        if role not in ROLES:
            return _refused(400, "bad_request", f"role must be one of {', '.join(ROLES)}")
        pid = self._emulator.kill(request.path_params["name"], role)
        return _missing(f"living {role}") if pid is None else JSONResponse({"killed": role, "pid": pid})

    async def scale_to_zero(self, request: Request) -> Response:
        self._emulator.scale_to_zero()
        return JSONResponse({"replicas": self._emulator.replicas()})

    async def reports(self, request: Request) -> Response:
        return JSONResponse(self._emulator.reports.to_json())

    async def report(self, request: Request) -> Response:
        stored = self._emulator.reports.named(request.path_params["number"])
        if stored is None:
            return _missing("report")
        return Response(stored.report.to_json(), media_type="application/json")

    async def invocations(self, request: Request) -> Response:
        return JSONResponse(self._emulator.invocations.to_json())

    async def store(self, request: Request) -> Response:
        store = self._emulator.store
        if store is None:
            told = "there is no embedded store: the weights are not a directory that is served here"
            return _refused(404, "not_found", told)
        return JSONResponse({"endpoint": store.endpoint, **await store.stats()})

    async def events(self, request: Request) -> Response:
        instance, _, last = request.headers.get("last-event-id", "").partition("-")
        known = instance == self._emulator.hub.instance and last.isascii() and last.isdigit() and len(last) < 19
        return StreamingResponse(
            _events(self._emulator, int(last) if known else 0),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )


async def _events(emulator: Emulator, last_seen: int) -> AsyncIterator[str]:
    hub = emulator.hub
    with hub.listening() as listener:
        missed = hub.missed(last_seen)
        if missed is None:
            yield _event(hub, Happening(hub.last_number, "snapshot", emulator.snapshot()))
        for happening in missed or ():
            yield _event(hub, happening)
        while True:
            try:
                following = await asyncio.wait_for(listener.get(), _BEAT_S)
            except TimeoutError:
                yield ": \n\n"
                continue
            if following is None:
                return
            yield _event(hub, following)


def _event(hub: Hub, happening: Happening) -> str:
    data = json.dumps(happening.value, separators=(",", ":"))
    return f"id: {hub.instance}-{happening.number}\nevent: {happening.kind}\ndata: {data}\n\n"


class _Invoke:
    """POST /invoke: an ASGI application of its own, since answers pass through as they come."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answering = _Answering(send)
        try:
            event = await _read(receive)
        except AdapterError as error:
            await answering.refuse(error)
            return
        if event is None:
            return
        headers = tuple((name.lower(), value) for name, value in scope["headers"])
        passing = asyncio.ensure_future(self._pass(event, headers, answering))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            passing.cancel()  # nothing, where it is done: the caller's going is what cancels it
            await asyncio.gather(passing, leaving, return_exceptions=True)
        if not passing.cancelled() and (failed := passing.exception()) is not None:
            raise failed

    async def _pass(self, event: bytes, headers: tuple[tuple[bytes, bytes], ...], answering: _Answering) -> None:
        try:
            async with self._emulator.invoke(event, headers) as passed:
                await answering.begin(passed)
                async for chunk in passed.chunks:
                    await answering.body(chunk)
        except AdapterError as error:
            await answering.refuse(error)
        else:
            await answering.end()


class _Answering:
    """An answer to a caller, begun or not."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._begun = False
        self._type = b""

    async def begin(self, passed: Passed) -> None:
        self._begun = True
        self._type = next((value for name, value in passed.headers if name == b"content-type"), b"")
        own = [
            (b"x-coldstart-replica", passed.replica.encode()),
            (b"x-coldstart-queued-ms", f"{passed.queued_s * 1000:.1f}".encode()),
        ]
        headers = [*passed.headers, *own]
        await self._send({"type": "http.response.start", "status": passed.status, "headers": headers})

    async def body(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def end(self, chunk: bytes = b"") -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": False})

    async def refuse(self, error: AdapterError) -> None:
        """Tell the error: as the answer, or in the stream that has begun."""
        described = json.dumps({"error": _described(error)}, separators=(",", ":")).encode()
        if not self._begun:
            status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 503)
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(described))]
            if status == 503 and error.retryable:
                headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
            elif status == 413:
                headers.append((b"connection", b"close"))  # or the rest of what is too large would still be taken in
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            await self.end(described)
        elif self._type.startswith(b"application/x-ndjson"):
            await self.end(described + b"\n")
        elif self._type.startswith(b"text/event-stream"):
            await self.end(b"event: error\ndata: " + described + b"\n\n")
        else:
            raise error  # an answer of a promised length stays short, and the server hangs up


def _described(error: AdapterError) -> dict[str, object]:
    described = error.to_dict()
    del described["exit_code"]
    return described


async def _read(receive: Receive) -> bytes | None:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > EVENT_LIMIT_BYTES:
            raise EventTooLarge(
                f"the event has {size} bytes or more; at most {EVENT_LIMIT_BYTES} are taken",
                size_bytes=size,
                limit_bytes=EVENT_LIMIT_BYTES,
            )
        if not message.get("more_body", False):
            return b"".join(chunks)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _refused(404, "not_found", f"there is nothing at {request.url.path[:200]}")
    allowed = (error.headers or {}).get("Allow", "")
    told = f"{request.method} is not answered at {request.url.path}; {allowed} is"
    answer = _refused(405, "method_not_allowed", told)
    answer.headers["Allow"] = allowed
    return answer


def _missing(what: str) -> Response:
    return _refused(404, "not_found", f"there is no such {what}")


def _refused(status: int, code: str, message: str) -> Response:
    return JSONResponse({"error": {"code": code, "message": message, "retryable": False}}, status)
