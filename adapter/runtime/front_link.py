"""The front's end of the wire: a unix socket that takes one worker at a time and notices its death."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
import struct
from pathlib import Path
from typing import cast

from adapter.errors import LinkError
from adapter.logs import Log
from adapter.runtime.link import Frame, FrameReader
from adapter.runtime.queue import Dispatcher

_LAST_WORDS_S = 0.1
"""How long what a dead worker wrote last is still read, where a descendant of it keeps the wire open."""


async def listen(path: Path, dispatcher: Dispatcher, log: Log) -> asyncio.Server:
    """Take workers on this path; a socket that an earlier front left there is replaced."""
    seat = _Seat()
    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: _WorkerConnection(dispatcher, seat, log), str(path))


class _Seat:
    """Who is the worker. While its process lives, another one has to wait: two must not unseat each other in turn."""

    def __init__(self) -> None:
        self._taken: _WorkerConnection | None = None

    def take(self, by: _WorkerConnection) -> bool:
        if self._taken is not None and self._taken.pid != by.pid and self._taken.alive:
            return False
        self._taken = by
        return True

    def leave(self, by: _WorkerConnection) -> None:
        if self._taken is by:
            self._taken = None


class _WorkerConnection(asyncio.Protocol):
    """One worker; a `WorkerPort` once it has said hello."""

    def __init__(self, dispatcher: Dispatcher, seat: _Seat, log: Log) -> None:
        self.pid = 0
        self._dispatcher = dispatcher
        self._seat = seat
        self._log = log
        self._frames = FrameReader()
        self._greeted = False
        self._pidfd: int | None = None
        self._transport: asyncio.Transport

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._watch(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                if self._greeted:
                    self._dispatcher.receive(self, frame)
                elif frame.kind == "hello":
                    if not self._seat.take(self):
                        self._log.debug("link.worker.refused", pid=self.pid)
                        self._gone()
                        return
                    self._greeted = True
                    self._dispatcher.attach(self, frame.head)
                else:
                    raise LinkError(f"the first frame of a worker is hello, not {frame.kind!r}")
        except LinkError as error:
            self._log.error("link.read.failed", **error.to_dict())
            self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone()

    # -- WorkerPort ----------------------------------------------------------------------------------------------------

    def send(self, frame: Frame) -> None:
        if not self._transport.is_closing():
            self._transport.write(frame.encode())

    def hold(self, held: bool) -> None:
        if self._transport.is_closing():
            return
        if held:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def close(self) -> None:
        self._gone()

    # -- the worker's death --------------------------------------------------------------------------------------------

    def _watch(self, connection: socket.socket) -> None:
        """Hear of the worker's death from the kernel: a process forked by user code may keep the wire open."""
        with contextlib.suppress(OSError):
            size = struct.calcsize("3i")
            self.pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0]
            self._pidfd = os.pidfd_open(self.pid)
            asyncio.get_running_loop().add_reader(self._pidfd, self._died)

    @property
    def alive(self) -> bool:
        """Whether its process is known to live; a pidfd is readable when it has ended."""
        return self._pidfd is not None and not _readable(self._pidfd)

    def _died(self) -> None:
        self._unwatch()
        self.hold(False)
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._gone)

    def _gone(self) -> None:
        self._unwatch()
        self._seat.leave(self)
        if not self._transport.is_closing():
            self._transport.abort()
        self._dispatcher.detach(self)

    def _unwatch(self) -> None:
        if self._pidfd is not None:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None


def _readable(descriptor: int) -> bool:
    poll = select.poll()  # unlike select.select it takes any descriptor number
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
