"""A store whose answers a test writes down: each request is given to a function that says what goes over the wire."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from pathlib import Path


@dataclass(frozen=True)
class Asked:
    """One request as it arrived; `number` counts from 1."""

    number: int
    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""

    @property
    def span(self) -> tuple[int, int]:
        """The half-open range asked for."""
        first, last = self.headers["range"].removeprefix("bytes=").split("-")
        return int(first), int(last) + 1


@dataclass(frozen=True)
class Answer:
    """What goes over the wire; Content-Length is that of the body unless the headers say otherwise."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    then: str = ""
    """`close` or `reset` the connection after the body; `stall`: send nothing more until the client goes away."""
    drip_s: float = 0.0
    """The body byte by byte, with this wait between."""
    length: bool = True
    """Whether to send a Content-Length."""


def part(content: bytes, asked: Asked, *, shift: int = 0, etag: str = '"e1"', limit: int | None = None) -> Answer:
    """The right answer to a range request, or one that is wrong by `shift` bytes or capped at `limit`."""
    start, stop = asked.span
    start, stop = start + shift, min(stop + shift, len(content))
    stop = stop if limit is None else min(stop, start + limit)
    label = f"bytes {start}-{stop - 1}/{len(content)}"
    return Answer(206, {"ETag": etag, "Content-Range": label}, content[start:stop])


def error(status: int, code: str, **headers: str) -> Answer:
    """An S3 error."""
    body = f"<Error><Code>{code}</Code><Message>secret-of-the-store</Message></Error>".encode()
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, body)


class ScriptedStore:
    """The running store: its endpoint, and what it was asked."""

    def __init__(self, script: Callable[[Asked], Answer], certificate: Path | None) -> None:
        self.script = script
        self.asked: list[Asked] = []
        self.connections = 0
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.endpoint = f"http://127.0.0.1:{port}"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            self.endpoint = f"https://localhost:{port}"

    @property
    def gets(self) -> list[Asked]:
        """Requests for objects."""
        return [asked for asked in self.asked if asked.method == "GET"]

    def _send(self, wire: BufferedIOBase, answer: Answer) -> None:
        try:
            for at in range(len(answer.body)) if answer.drip_s else ():
                wire.write(answer.body[at : at + 1])
                wire.flush()
                self._ended.wait(answer.drip_s)
            if not answer.drip_s:
                wire.write(answer.body)
        except (BrokenPipeError, ConnectionResetError):
            return  # the client has gone away: what some tests are about

    def close(self) -> None:
        """Stop serving."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(store) -> type[BaseHTTPRequestHandler]:  # noqa: N805 - the inner class has the name self
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                with store._lock:
                    store.connections += 1
                super().setup()

            def do_GET(self) -> None:
                with store._lock:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    asked = Asked(len(store.asked) + 1, self.command, self.path, headers)
                    store.asked.append(asked)
                answer = store.script(asked)
                self.send_response(answer.status)
                if answer.length and "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", str(len(answer.body)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    store._send(self.wfile, answer)
                if answer.then == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                if answer.then == "stall":
                    self.connection.recv(1)
                if answer.then or not answer.length:
                    self.close_connection = True

            do_HEAD = do_GET  # noqa: N815 - http.server's name

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@contextmanager
def scripted_store(script: Callable[[Asked], Answer], certificate: Path | None = None) -> Iterator[ScriptedStore]:
    """A store that answers as the script says, until the block ends; encrypted where there is a certificate."""
    store = ScriptedStore(script, certificate)
    thread = threading.Thread(target=store._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.close()
        thread.join()
