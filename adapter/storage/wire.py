"""Bytes of a body from its socket into a buffer with few system calls and few changes of thread.

A socket with a timeout is asked twice for every piece that arrives, whether there is something and then for it, and
each time other threads take the GIL meanwhile: with 16 connections that was 50 handovers for each MiB. The kernel can
wait until the buffer is full, and give what there is after a tenth of a second, so that a slow body is still seen to
move.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import struct
import time
from collections.abc import Callable

Reader = Callable[[memoryview], int]
"""Puts bytes at the beginning of a buffer, how many; 0 at the end. Raises OSError."""

_LOOK_S = 0.1
"""How long bytes that have come are kept back while more are waited for."""
_LEAST_BYTES = 2 * io.DEFAULT_BUFFER_SIZE
"""A first read of so many bytes leaves nothing behind in the buffer of the standard library's response."""


class WholeReader:
    """Reads of a body that fill the buffer, where its socket lets them.

    Args:
        response: Whose headers have been read, its body not.
        read: The response's own way, of which each call reads the socket at most once.
    """

    def __init__(self, response: http.client.HTTPResponse, read: Reader) -> None:
        self._read = read
        self._began = False
        self._problem: OSError | None = None
        self._timeout_s: float | None = None
        found = getattr(getattr(response.fp, "raw", None), "_sock", None)
        self._socket: socket.socket | None = found if isinstance(found, socket.socket) else None

    def __call__(self, view: memoryview) -> int:
        """As `Reader`."""
        if self._socket is None:
            return self._read(view)
        if self._began:
            return self._read_secure(view) if isinstance(self._socket, ssl.SSLSocket) else self._read_plain(view)
        if len(view) < _LEAST_BYTES:
            self._socket = None  # the rest may lie in the response's buffer
            return self._read(view)
        self._began = True
        count = self._read(view)  # what came together with the headers, and more
        if not isinstance(self._socket, ssl.SSLSocket):
            self._timeout_s = self._socket.gettimeout()
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(_LOOK_S))
            self._socket.settimeout(None)  # the kernel does not wait for all of it where Python waits for some
        return count

    def give_back(self) -> None:
        """Leave the socket as it was found."""
        if self._timeout_s is not None and self._socket is not None:
            self._socket.settimeout(self._timeout_s)

    def _read_plain(self, view: memoryview) -> int:
        assert self._socket is not None
        begun_s: float | None = None
        while True:
            try:
                return self._socket.recv_into(view, len(view), socket.MSG_WAITALL)
            except BlockingIOError:
                now_s = time.monotonic()
                begun_s = now_s - _LOOK_S if begun_s is None else begun_s
                if self._timeout_s is not None and now_s - begun_s >= self._timeout_s:
                    raise TimeoutError("timed out") from None

    def _read_secure(self, view: memoryview) -> int:
        """Record by record (16 KiB), which is all that TLS gives at a time."""
        assert isinstance(self._socket, ssl.SSLSocket)
        if self._problem is not None:
            raise self._problem
        read, filled, wanted = self._socket.recv_into, 0, len(view)
        until_s = time.monotonic() + _LOOK_S
        try:
            while filled < wanted:
                count = read(view[filled:])
                if count == 0:
                    break
                filled += count
                if time.monotonic() > until_s:
                    break
        except OSError as error:
            if not filled:
                raise
            self._problem = error
        return filled


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, round((seconds - whole) * 1e6))
