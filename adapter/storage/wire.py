"""Bytes of a body from its socket into a buffer with few system calls and few changes of thread.

A socket with a timeout is asked twice for every piece that arrives, whether there is something and then for it, and
each time other threads take the GIL meanwhile: with 16 connections that was 50 handovers for each MiB. The kernel can
wait until the buffer is full, and give what there is after a tenth of a second, so that a slow body is still seen to
move.
"""

from __future__ import annotations

import http.client
import io
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from functools import partial

Reader = Callable[[memoryview], int]
"""Puts bytes at the beginning of a buffer, how many; 0 at the end. Raises OSError."""

_LOOK_S = 0.1
"""How long bytes that have come are kept back while more are waited for."""
_LEAST_BYTES = 2 * io.DEFAULT_BUFFER_SIZE
"""A first read of so many bytes leaves nothing behind in the buffer of the standard library's response."""


_DECRYPTING = threading.BoundedSemaphore(max(2, os.cpu_count() or 2))
"""Held while records are decrypted: more threads than cores would only take the GIL from each other, record by record
(measured with 16 on two cores: three times as many changes of thread)."""


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
        self._descriptor = -1
        self._socket: socket.socket | None = _socket_of(response)

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
        self._timeout_s = self._socket.gettimeout()
        if isinstance(self._socket, ssl.SSLSocket):
            self._descriptor = self._socket.fileno()
            self._socket.settimeout(0)
        else:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(_LOOK_S))
            self._socket.settimeout(None)  # the kernel does not wait for all of it where Python waits for some
        return count

    def give_back(self) -> None:
        """Leave the socket as it was found."""
        if self._began and self._socket is not None:
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
        begun_s = time.monotonic()
        filled, wants = 0, select.POLLIN
        while True:
            with _DECRYPTING:
                try:
                    while filled < len(view):
                        count = self._socket.recv_into(view[filled:])
                        if count == 0:
                            return filled
                        filled += count
                    return filled
                except ssl.SSLWantReadError:
                    wants = select.POLLIN
                except ssl.SSLWantWriteError:
                    wants = select.POLLOUT
                except OSError as error:
                    if not filled:
                        raise
                    self._problem = error
                    return filled
            if not self._wait(wants, begun_s, filled):
                return filled

    def _wait(self, wants: int, begun_s: float, filled: int) -> bool:
        """Wait for the socket; False when what has come should be given out first."""
        poll = select.poll()
        poll.register(self._descriptor, wants)
        limit_s = _LOOK_S if filled else self._timeout_s
        while True:
            left_s = None if limit_s is None else begun_s + limit_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                if filled:
                    return False
                raise TimeoutError("timed out")
            if poll.poll(None if left_s is None else left_s * 1000):
                return True


def breaking_off_socket(response: http.client.HTTPResponse) -> Callable[[], None] | None:
    """What makes the body of a response end, from another thread; None where its socket is not to be had."""
    found = _socket_of(response)
    if found is None:
        return None
    # not the method of an encrypted socket: that one hands out the encrypted bytes from then on (measured, 3.11)
    return partial(socket.socket.shutdown, found, socket.SHUT_RD)


def _socket_of(response: http.client.HTTPResponse) -> socket.socket | None:
    """The socket below a response, by a name that is not public; a test says when it moves."""
    found = getattr(getattr(response.fp, "raw", None), "_sock", None)
    return found if isinstance(found, socket.socket) else None


def _timeval(seconds: float) -> bytes:
    whole = int(seconds)
    return struct.pack("@ll", whole, round((seconds - whole) * 1e6))
