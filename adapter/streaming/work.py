"""One queue of work for a bounded number of threads; the first failure ends it."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

Task = Callable[[memoryview], None]
"""Gets the thread's own buffer."""
Priority = tuple[int, int, int]


class Work:
    """Tasks in the order of their priority. Threads are made when there is work for them.

    Args:
        threads: The most that run at a time.
        buffer_bytes: Length of each thread's buffer.
        name: Beginning of the threads' names.
    """

    def __init__(self, threads: int, buffer_bytes: int, name: str) -> None:
        self._most = threads
        self._buffer_bytes = buffer_bytes
        self._name = name
        self._changed = threading.Condition()
        self._tasks: list[tuple[Priority, int, Task]] = []
        self._count = itertools.count()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._ended = 0
        self._closed = False
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """What the first task that failed raised."""
        return self._error

    def put(self, priority: Priority, task: Task) -> None:
        """One task more; smaller priorities first."""
        with self._changed:
            if self._closed:
                return
            heapq.heappush(self._tasks, (priority, next(self._count), task))
            if len(self._tasks) > self._idle and len(self._threads) < self._most:
                # daemons: a read that hangs in the network must not keep the process from ending
                thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    @property
    def ended(self) -> int:
        """How many tasks have ended."""
        return self._ended

    def wait(self, seen: int, timeout_s: float) -> None:
        """Return when more tasks than `seen` have ended, or something failed, or after so long."""
        with self._changed:
            if self._ended == seen and self._error is None:
                self._changed.wait(timeout_s)

    def fail(self, error: BaseException) -> None:
        """End everything with this error, unless another came first."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._closed = True
            self._tasks.clear()
            self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Take no more tasks, drop those not begun, wait for the threads; True when all have ended."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
            self._changed.notify_all()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _run(self) -> None:
        buffer = memoryview(bytearray(self._buffer_bytes))
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                if self._closed:
                    return
                task = heapq.heappop(self._tasks)[2]
            try:
                task(buffer)
            except BaseException as error:  # noqa: BLE001 - who watches the work raises it
                self.fail(error)
                return
            with self._changed:
                self._ended += 1
                self._changed.notify_all()
