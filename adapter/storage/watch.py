"""One range read seen from outside: how far it is, and a way to end it while its thread waits in the network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress


class ReadWatch:
    """Goes with a `RangeRequest`. Its reader calls the first four methods; the others are for any thread."""

    __slots__ = (
        "_break_off",
        "_lock",
        "answered_s",
        "asked_s",
        "beyond",
        "first_byte_s",
        "given_up",
        "interrupted",
        "received_bytes",
    )

    def __init__(self, *, beyond: bool = False) -> None:
        self.beyond: bool = beyond
        """Whether it may be sent although as many requests are under way as may be."""
        self.received_bytes: int = 0
        """Bytes that came off the wire, over all requests of this read."""
        self.asked_s: float | None = None
        """When the request under way was sent (`time.monotonic`); None while there is none."""
        self.answered_s: float | None = None
        """When its answer began; None while it is waited for."""
        self.first_byte_s: float | None = None
        """How long the first answer was waited for; None before it."""
        self.interrupted: str | None = None
        """Why the latest request was ended from outside."""
        self.given_up: bool = False
        """Whether nobody wants the rest any more: nothing is tried again."""
        self._break_off: Callable[[], None] | None = None
        self._lock = threading.Lock()

    # -- the reading side ---------------------------------------------------------------------------------------------

    def asked(self) -> None:
        """A request is sent now."""
        with self._lock:
            self.asked_s, self.answered_s = time.monotonic(), None
            if not self.given_up:
                self.interrupted = None

    def answered(self, break_off: Callable[[], None] | None = None) -> None:
        """Its answer has begun.

        Args:
            break_off: Makes the body end or fail soon, called from another thread.
        """
        with self._lock:
            self.answered_s = time.monotonic()
            if self.first_byte_s is None and self.asked_s is not None:
                self.first_byte_s = self.answered_s - self.asked_s
            self._break_off = break_off
            if self.interrupted is not None:
                self._end()

    def received(self, count: int) -> None:
        """So many more bytes have come."""
        self.received_bytes += count

    def ended(self) -> None:
        """The answer is over; its connection may now serve another read."""
        with self._lock:
            self._break_off = None
            self.asked_s = None

    # -- the watching side --------------------------------------------------------------------------------------------

    def interrupt(self, why: str) -> None:
        """End the request under way, or its answer as soon as that begins; the read goes on with another request."""
        with self._lock:
            self.interrupted = self.interrupted or why
            self._end()

    def give_up(self) -> None:
        """End the read: no other request follows."""
        with self._lock:
            self.given_up = True
            self.interrupted = self.interrupted or "no longer wanted"
            self._end()

    def _end(self) -> None:
        break_off, self._break_off = self._break_off, None
        if break_off is not None:
            # a body that is just ending refuses: it needs no breaking off
            with suppress(OSError, RuntimeError, ValueError):
                break_off()
