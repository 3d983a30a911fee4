"""The worker's end of the wire: one thread that connects, reads, and connects again when the front is replaced."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from adapter.runtime.link import Frame, FrameReader

LOST_EXIT_CODE = 1
"""Of a worker whose wire user code has closed."""
_RECONNECT_S = 0.005
_RECEIVE_BYTES = 1 << 18


class WorkerLink:
    """Frames to and from the front.

    The state of the worker (`hello`, its latest `phase`, `ready`) is said again on each new connection, so a front
    that was replaced, or that listens later than the worker starts, knows all it needs. Other frames are dropped
    while there is no front: whoever waited for them is gone with it.

    Args:
        path: The front's unix socket.
        on_frame: Called in the link's thread with each frame from the front.
        on_lost: Called in the link's thread when the front is gone.
    """

    def __init__(self, path: Path, on_frame: Callable[[Frame], None], on_lost: Callable[[], None]) -> None:
        self._path = str(path)
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._state: dict[str, bytes] = {}
        self._socket: socket.socket | None = None
        self._sending = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._live, name="link", daemon=True)

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End the link and its thread."""
        self._closed.set()
        with self._sending:
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def announce(self, frame: Frame) -> None:
        """Say something of the worker's state, now and to every later front."""
        data = frame.encode()
        with self._sending:
            self._state[frame.kind] = data
            self._send_locked(data)

    def send(self, frame: Frame) -> None:
        """Say something about an invocation to the front that is there now."""
        data = frame.encode()
        with self._sending:
            self._send_locked(data)

    def _send_locked(self, data: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendall(data)
        except OSError as error:
            if error.errno == errno.EBADF:  # closed under us: the thread that reads would wait on it for ever
                os._exit(LOST_EXIT_CODE)
            self._socket = None  # the reading side sees the end as well and connects again

    def _live(self) -> None:
        try:
            self._run()
        except BaseException:  # noqa: BLE001 - user code has closed our descriptors, or worse
            traceback.print_exc()
            os._exit(LOST_EXIT_CODE)  # a worker that hears nothing must not stay; the supervisor starts another

    def _run(self) -> None:
        while not self._closed.is_set():
            connection = self._connect()
            if connection is None:
                self._closed.wait(_RECONNECT_S)
                continue
            with connection:
                self._read(connection)
            with self._sending:
                if self._socket is connection:
                    self._socket = None
            if not self._closed.is_set():
                self._on_lost()

    def _connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(self._path)
            with self._sending:
                connection.sendall(b"".join(self._state.values()))
                self._socket = connection
        except OSError:
            connection.close()
            return None
        return connection

    def _read(self, connection: socket.socket) -> None:
        frames = FrameReader()
        buffer = bytearray(_RECEIVE_BYTES)
        view = memoryview(buffer)
        while True:
            try:
                count = connection.recv_into(buffer)
            except OSError:
                return
            if count == 0:
                return
            for frame in frames.feed(view[:count]):
                self._on_frame(frame)
