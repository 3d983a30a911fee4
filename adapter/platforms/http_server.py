"""uvicorn as a part of the front: on an inherited listener, without its own signals, lifespan or process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvicorn.lifespan.off
import uvicorn.protocols.http.httptools_impl
from starlette.types import ASGIApp

KEEP_ALIVE_S = 65
"""Longer than the 60 s after which common load balancers drop idle connections: they must be the first to do so."""
CLOSING_S = 1
"""How long connections may take to close when no answer is on its way any more."""
_FLUSH_POLL_S = 0.01


class Server(uvicorn.Server):
    """Serves one application until `should_exit` is set.

    Args:
        app: The application.
        on_listening: Called when callers can get in.
    """

    def __init__(self, app: ASGIApp, on_listening: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="httptools",
                ws="none",
                loop="asyncio",
                lifespan="off",
                interface="asgi3",
                proxy_headers=False,
                server_header=False,
                access_log=False,
                log_config=None,
                log_level="warning",
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=CLOSING_S,
                workers=1,  # said, so that uvicorn looks for neither in the environment
                forwarded_allow_ips="",
            )
        )
        self._on_listening = on_listening

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve on a listener, which is closed at the end.

        Nagle's algorithm is turned off for all connections to come, which inherit that from the listener; asyncio does
        so only for sockets that were made with the protocol's number. Without it, head and body of an answer are two
        packets, of which the second waits for the caller's delayed acknowledgement: 40 ms (measured).
        """
        if listener.family in (socket.AF_INET, socket.AF_INET6):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self.serve(sockets=[listener])

    async def flushed(self) -> None:
        """Returns when the kernel has taken all that was answered: for ASGI an answer is sent before that."""
        while self._unsent():  # noqa: ASYNC110 (a transport tells nobody when its buffer is empty)
            await asyncio.sleep(_FLUSH_POLL_S)

    def drop_connections(self) -> None:
        """Cut off every caller."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Nothing is captured: signals are the role's business, which drains first."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets=sockets)
        self._on_listening()

    def _unsent(self) -> int:
        return sum(connection.transport.get_write_buffer_size() for connection in self.server_state.connections)
