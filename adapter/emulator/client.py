"""Requests to the servers on this machine: HTTP/1.1 over one connection each, the answer read as it comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import httptools

HOST = "127.0.0.1"
Headers = tuple[tuple[bytes, bytes], ...]
_READ_BYTES = 256 << 10


class BrokenAnswer(ConnectionError):
    """The server went away, or said something that is no HTTP, before its answer was whole."""


class Answer:
    """An answer whose head is here; the body follows."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._chunks: list[bytes] = []
        self._head = False
        self._whole = False

    @property
    def status(self) -> int:
        """The status code."""
        return int(self._parser.get_status_code())

    @property
    def headers(self) -> Headers:
        """Names in lower case, and values."""
        return tuple(self._headers)

    def header(self, name: bytes) -> bytes | None:
        """The first value under that name."""
        return next((value for found, value in self._headers if found == name), None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece.

        Raises:
            BrokenAnswer: It ended too early.
        """
        while True:
            while self._chunks:
                yield self._chunks.pop(0)
            if self._whole:
                return
            await self._more()

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            BrokenAnswer: It ended too early.
        """
        return b"".join([chunk async for chunk in self.chunks()])

    def abort(self) -> None:
        """Hang up; whoever reads gets `BrokenAnswer`."""
        self._writer.transport.abort()

    async def read_head(self) -> None:
        """Wait for status and headers.

        Raises:
            BrokenAnswer: They did not come.
        """
        while not self._head:
            await self._more()

    async def _more(self) -> None:
        try:
            data = await self._reader.read(_READ_BYTES)
            if data:
                self._parser.feed_data(data)
        except (OSError, httptools.HttpParserError) as error:
            raise BrokenAnswer(f"the answer cannot be read: {error}") from error
        if not data:
            raise BrokenAnswer("the connection ended before the answer was whole")

    # what the parser calls

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is whole; an interim one (1xx) is passed over."""
        if self.status >= 200:
            self._head = True
        else:
            self._headers.clear()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._chunks.append(body)

    def on_message_complete(self) -> None:
        """Nothing follows."""
        self._whole = self._head


@asynccontextmanager
async def asking(
    port: int, method: str, path: str, headers: Iterable[tuple[bytes, bytes]] = (), body: bytes = b""
) -> AsyncIterator[Answer]:
    """Send a request to a server on this machine; the answer's head is not waited for. Hangs up in the end.

    Raises:
        BrokenAnswer: Nobody listens there.
    """
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError as error:
        raise BrokenAnswer(f"nobody listens on port {port}: {error}") from error
    try:
        lines = [f"{method} {path} HTTP/1.1\r\nhost: {HOST}:{port}\r\nconnection: close\r\n".encode()]
        lines += [b"%s: %s\r\n" % header for header in headers]
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        writer.write(b"".join(lines) + body)
        yield Answer(reader, writer)
    finally:
        writer.transport.abort()


async def fetch_json(port: int, path: str, *, timeout_s: float, method: str = "GET") -> Any:
    """The JSON value at a path, whatever the status.

    Raises:
        OSError: There was no answer, none in time, or one that is no JSON.
    """
    try:
        async with asyncio.timeout(timeout_s), asking(port, method, path) as answer:
            await answer.read_head()
            body = await answer.read()
        return json.loads(body) if body else None
    except (TimeoutError, ValueError) as error:
        raise OSError(f"no usable answer from {path}: {error}") from error
