"""Bodies of range reads, received straight into the caller's buffer.

boto3 hands out the body behind two layers that copy each byte once more (`StreamingBody.readinto` reads into bytes
and copies those); the response of the standard library below them can be read into a buffer directly. Where those
layers are not what they were when this was written, the public way is taken; a test pins which one is.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any

from adapter.errors import ConnectionFailed, Field, StorageError, TruncatedRead
from adapter.storage.watch import ReadWatch
from adapter.storage.wire import WholeReader, breaking_off_socket

Facts = Mapping[str, Field]

SLOWEST_BYTES_PER_S = 1024
"""A body slower than this, over one timeout's length, counts as stalled: single bytes at long intervals never trip
a socket's own timeout (measured)."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a body should be, and the facts that go into its errors."""

    length_bytes: int
    """By its own account."""
    timeout_s: float
    """Time after which a body that hardly moves has failed."""
    facts: Facts
    watch: ReadWatch | None = None
    """Hears of every piece, and may end the body."""

    @property
    def shown(self) -> str:
        """The object and range, for messages."""
        return f"{self.facts.get('store')}/{self.facts.get('key')} (bytes {self.facts.get('range')})"


def receive(body: Any, buffer: memoryview, expected: Expected) -> Generator[int]:
    """Fill the buffer again and again; each count says how many bytes now lie at its beginning.

    The connection goes back to its pool when the whole length was received, and is dropped in any other case.

    Args:
        body: What boto3 gave as `Body`.
        buffer: Of any length above zero.
        expected: What the body should be.

    Raises:
        TruncatedRead: The body ended before its length.
        ConnectionFailed: The connection broke or stalled.
    """
    read, release = direct_reader(body) or _public_reader(body)
    watch = expected.watch or ReadWatch()
    watch.answered(breaking_off(body))
    pace = _Pace(expected.timeout_s, watch)
    received = 0
    try:
        while received < expected.length_bytes:
            view = buffer[: min(len(buffer), expected.length_bytes - received)]
            filled, problem = _fill(read, view, pace)
            received += filled
            if filled:
                yield filled
            if problem is not None:
                raise _error(problem, received, expected)
    finally:
        watch.ended()
        if received == expected.length_bytes:
            release()
        else:
            body.close()


def direct_reader(body: Any) -> tuple[Callable[[memoryview], int], Callable[[], None]] | None:
    """Reads of a body into a buffer without a copy, and what gives its connection back; None where there is no way.

    A read returns what came within a tenth of a second, so that a stalling body is noticed between two reads.
    """
    raw = body.__enter__()  # botocore's documented way to the stream below; it does nothing else
    response = getattr(raw, "_fp", None)
    release = getattr(raw, "release_conn", None)
    if not isinstance(response, http.client.HTTPResponse) or response.chunked or not callable(release):
        return None
    read = getattr(response.fp, "readinto1", None)
    if not callable(read):
        return None

    whole = WholeReader(response, read)

    def give_back() -> None:
        whole.give_back()
        response.close()
        release()

    return whole, give_back


def breaking_off(body: Any) -> Callable[[], None] | None:
    """What ends a body from another thread: its socket gives no more bytes. None where there is no way."""
    response = getattr(body.__enter__(), "_fp", None)
    return breaking_off_socket(response) if isinstance(response, http.client.HTTPResponse) else None


def _public_reader(body: Any) -> tuple[Callable[[memoryview], int], Callable[[], None]]:
    def read(view: memoryview) -> int:
        try:
            return int(body.readinto(view))
        except OSError:
            raise
        except Exception as error:  # the SDK's and its transport's errors have no common root; all mean: it broke
            raise ConnectionError(f"{type(error).__name__}: {error}") from error

    return read, body.close


@dataclass(slots=True)
class _Pace:
    """Notices a body that hardly moves."""

    timeout_s: float
    watch: ReadWatch
    since_s: float = 0.0
    count: int = 0

    def stalled(self, count: int) -> bool:
        now_s = time.monotonic()
        self.watch.received(count)
        self.since_s = self.since_s or now_s
        self.count += count
        if now_s - self.since_s < self.timeout_s:
            return False
        slow = self.count < SLOWEST_BYTES_PER_S * self.timeout_s
        self.since_s, self.count = now_s, 0
        return slow


@dataclass(frozen=True, slots=True)
class _Ended:
    """The body ended early."""


@dataclass(frozen=True, slots=True)
class _Stalled:
    """The body hardly moves."""


def _fill(
    read: Callable[[memoryview], int], view: memoryview, pace: _Pace
) -> tuple[int, OSError | http.client.HTTPException | _Ended | _Stalled | None]:
    """How much of the view was filled, and why not all of it."""
    filled = 0
    while filled < len(view):
        try:
            count = read(view[filled:])
        except (OSError, http.client.HTTPException) as error:
            return filled, error
        if count == 0:
            return filled, _Ended()
        filled += count
        if pace.stalled(count) and filled < len(view):
            return filled, _Stalled()
    return filled, None


def _error(
    problem: OSError | http.client.HTTPException | _Ended | _Stalled, received: int, expected: Expected
) -> StorageError:
    facts = {**expected.facts, "received_bytes": received}
    got = f"{received} of {expected.length_bytes} bytes"
    if isinstance(problem, _Ended):
        return TruncatedRead(f"{expected.shown} ended after {got}", **facts)
    if isinstance(problem, _Stalled):
        limit = f"{SLOWEST_BYTES_PER_S} bytes/s over {expected.timeout_s:g} s"
        return ConnectionFailed(f"{expected.shown} stalled after {got}: slower than {limit}", **facts)
    error = ConnectionFailed(
        f"{expected.shown} broke after {got}: {type(problem).__name__}: {problem}",
        **{**facts, "cause": type(problem).__name__},
    )
    error.__cause__ = problem
    return error
