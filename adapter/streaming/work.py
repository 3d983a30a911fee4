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
        threads: The most that run at a time, until `allow` says otherwise.
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
        self._busy = 0
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
            self._make_threads()
            self._changed.notify()

    def allow(self, threads: int) -> None:
        """So many may run at a time from now on; those that run beyond end what they do."""
        with self._changed:
            if threads != self._most and not self._closed:
                self._most = threads
                self._make_threads()
                self._changed.notify_all()

    @property
    def idle(self) -> bool:
        """Whether every task has been begun."""
        return not self._tasks

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

    def _make_threads(self) -> None:
        wanted = min(self._most, self._busy + len(self._tasks))
        while len(self._threads) < wanted:
            # daemons: a read that hangs in the network must not keep the process from ending
            thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self) -> None:
        buffer = memoryview(bytearray(self._buffer_bytes))
        while True:
            with self._changed:
                while not self._closed and (not self._tasks or self._busy >= self._most):
                    self._changed.wait()
                if self._closed:
                    return
                task = heapq.heappop(self._tasks)[2]
                self._busy += 1
            try:
                task(buffer)
            except BaseException as error:  # noqa: BLE001 - who watches the work raises it
                self.fail(error)
                return
            with self._changed:
                self._busy -= 1
                self._ended += 1
                self._changed.notify_all()
