"""One invocation's way through the emulator: to its replica, and the answer back as it comes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator

from adapter.emulator.client import Answer, BrokenAnswer, Headers, asking
from adapter.emulator.invocations import Invocation
from adapter.errors import AdapterError, InvalidEvent, WorkerDied

TIMEOUT_HEADER = b"x-coldstart-timeout-s"
_TOLD_BYTES = 64 << 10
"""How much of an error is read for its code."""
_REASON_S = 2.0
"""How long the end of a replica may take to be known after its connections broke."""

_OURS = frozenset(
    (b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"expect")
)
"""Headers about one connection, not about the message. Source: RFC 9110, section 7.6.1."""
_NOT_FORWARDED = _OURS | {b"content-length", b"origin", b"referer", b"cookie", TIMEOUT_HEADER}


class Call:
    """An invocation whose caller waits.

    Args:
        record: What people see of it.
        event: The encoded event.
        headers: The caller's, names in lower case.

    Raises:
        InvalidEvent: The caller's patience is no number.
    """

    def __init__(self, record: Invocation, event: bytes, headers: Headers) -> None:
        self.record = record
        self.error: AdapterError | None = None
        self._event = event
        self._headers = headers
        self._placed: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._failed = asyncio.Event()
        self._answer: Answer | None = None

    # -- what the fleet decides ----------------------------------------------------------------------------------------

    def place(self, port: int | None) -> None:
        """A replica takes it, on this port; None: one that has no port any more."""
        if not self._placed.done():
            self._placed.set_result(port)

    def fail(self, error: AdapterError) -> None:
        """It ends with this error, wherever it is."""
        self.error = error
        self._failed.set()
        if not self._placed.done():
            self._placed.set_result(None)
        elif self._answer is not None:
            self._answer.abort()

    # -- what the caller awaits ----------------------------------------------------------------------------------------

    async def placed(self) -> int:
        """The port of the replica that takes it, as soon as there is one.

        Raises:
            AdapterError: It failed.
        """
        port = await self._placed
        if self.error is not None:
            raise self.error
        if port is None:
            raise await self._reason()
        return port

    @contextlib.asynccontextmanager
    async def answer(self, port: int, timeout_s: float) -> AsyncIterator[Answer]:
        """The replica's answer, its head read. Hangs up in the end, which cancels what still runs.

        Args:
            port: Of the replica.
            timeout_s: How long it has.

        Raises:
            AdapterError: It failed.
        """
        headers = [(name, value) for name, value in self._headers if name not in _NOT_FORWARDED]
        headers.append((TIMEOUT_HEADER, f"{timeout_s:.3f}".encode()))
        try:
            async with asking(port, "POST", "/", headers, self._event) as answer:
                self._answer, self._event = answer, b""
                await answer.read_head()
                yield answer
        except BrokenAnswer as error:
            raise await self._reason() from error

    async def _reason(self) -> AdapterError:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._failed.wait(), _REASON_S)
        return self.error or WorkerDied(
            f"replica {self.record.replica} broke the connection; whether the invocation took effect is unknown",
            replica=self.record.replica,
        )


def patience_of(headers: Headers) -> float | None:
    """How long the caller wants to wait, in seconds; None: as long as it takes.

    Raises:
        InvalidEvent: The header is no number of seconds.
    """
    given = next((value for name, value in headers if name == TIMEOUT_HEADER), None)
    if given is None:
        return None
    try:
        patience_s = float(given)
    except ValueError:
        patience_s = math.nan
    if not 0 < patience_s < math.inf:
        raise InvalidEvent("the header X-Coldstart-Timeout-S is not a number of seconds above 0")
    return patience_s


async def passed_chunks(answer: Answer, record: Invocation) -> AsyncIterator[bytes]:
    """The answer's body; notes the code of the error that it tells, if it tells one."""
    told = b""
    async for chunk in answer.chunks():
        if answer.status >= 400 and len(told) < _TOLD_BYTES:
            told += chunk
        yield chunk
    if answer.status >= 400:
        try:
            record.error = str(json.loads(told)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            record.error = f"http.{answer.status}"


def passed_headers(answer: Answer) -> Headers:
    """The answer's headers that its caller should see."""
    return tuple((name, value) for name, value in answer.headers if name not in _OURS and name != b"date")
