"""Reads that are tried again: which faults, how often, after what wait; one back-off for all threads of a stream.

A range that broke goes on where it ended. Sources make one attempt and the SDK below them too, so the attempts
counted here are the requests the store sees (S-08, S-11).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import tenacity

from adapter.errors import StorageError, Throttled, TruncatedRead
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, RangeSource


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a read is tried again."""

    attempts: int = 6
    """Failed requests for one range at which it is given up. Five waits with full jitter span some 3 s on average,
    the length of a failover; longer outages are the platform's to retry."""
    throttled_attempts: int = 12
    """The same for answers that ask to slow down, counted apart: eleven waits span some 30 s. The store is well, and
    a crowd of cold starts needs that long to thin out (S-11)."""
    first_backoff_s: float = 0.2
    """The first wait is drawn from zero to this, each later one from zero to twice the bound before."""
    longest_backoff_s: float = 10.0
    """No wait is drawn from beyond this."""
    longest_retry_after_s: float = 60.0
    """A store that asks for a longer wait is waited for this long."""


@dataclass(slots=True, kw_only=True)
class _Tries:
    """How often one thing was tried in vain."""

    failures: int = 0
    throttled: int = 0
    last_error: StorageError | None = None

    def note(self, error: StorageError) -> None:
        """Count an error; an answer that brought a part and is no failure is not counted."""
        self.last_error = error
        if isinstance(error, Throttled):
            self.throttled += 1
        elif not _is_progress(error):
            self.failures += 1

    def final_error(self) -> StorageError:
        """The last error with the number of tries."""
        error = self.last_error
        assert error is not None
        attempts = self.failures + self.throttled
        times = f"; gave up after {attempts} attempts" if attempts > 1 else ""
        return type(error)(f"{error.message}{times}", **{**error.fields, "attempts": attempts})


@dataclass(slots=True, kw_only=True)
class _Reading(_Tries):
    """How far one range has come."""

    request: RangeRequest
    done_bytes: int = 0
    version: str | None = None
    chunks: Generator[RangeAnswer] | None = None

    def rest(self) -> RangeRequest:
        """What is still to be read, of the version that the first part was of."""
        return replace(
            self.request,
            start=self.request.start + self.done_bytes,
            length_bytes=self.request.length_bytes - self.done_bytes,
            version=self.request.version or self.version,
        )


class RetryingSource:
    """A source whose reads and listing are tried again as the policy says. Thread-safe; one per stream.

    After a store asked one thread to slow down, all threads hold their next request back for the same wait.

    Args:
        source: What is read; closed with this.
        policy: How often, how patiently.
        cancel: When set, no wait goes on and nothing is tried again.
        deadline_s: Point of `time.monotonic()` after which nothing is tried again.
    """

    def __init__(
        self,
        source: RangeSource,
        policy: RetryPolicy | None = None,
        *,
        cancel: threading.Event | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.policy: RetryPolicy = policy or RetryPolicy()
        self._source = source
        self._cancel = cancel or threading.Event()
        self._deadline_s = float("inf") if deadline_s is None else deadline_s
        self._lock = threading.Lock()
        self._hold_until_s = 0.0
        self._requests = 0
        self._retries = 0
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_be_tried_again),
            stop=self._is_over,
            wait=self._wait_s,
            sleep=self._sleep,
            before_sleep=self._count_retry,
            reraise=True,
        )

    @property
    def store(self) -> str:
        """The identity of the store that is read."""
        return self._source.store

    @property
    def requests(self) -> int:
        """Range reads sent so far, repeats included."""
        return self._requests

    @property
    def retries(self) -> int:
        """Failed tries that were followed by another."""
        return self._retries

    def list(self) -> Generator[ObjectInfo]:
        """Every object under the address, as `RangeSource.list`; a broken listing begins anew.

        Raises:
            StorageError: As the source raises, after the last attempt.
        """
        tries = _Tries()
        try:
            found = self._retrying(self._list, tries)
        except StorageError as error:
            raise tries.final_error() from error
        yield from found

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """As `RangeSource.read_into`, tried again; a broken read goes on where it ended.

        Raises:
            StorageError: As the source raises, after the last attempt; with fields `attempts`, `key`, `range`.
        """
        reading = _Reading(request=RangeRequest(key, start, len(into), version))
        answer = None
        while (further := self._next_chunk(reading, into[reading.done_bytes :])) is not None:
            answer = further
        assert answer is not None, "a source gives at least one answer or raises"
        return RangeAnswer(reading.done_bytes, answer.info)

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`, tried again; a broken read goes on where it ended.

        Raises:
            StorageError: As the source raises, after the last attempt; with fields `attempts`, `key`, `range`.
        """
        reading = _Reading(request=request)
        try:
            while (answer := self._next_chunk(reading, buffer)) is not None:
                yield answer
        finally:
            if reading.chunks is not None:
                reading.chunks.close()

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_chunk(self, reading: _Reading, buffer: memoryview) -> RangeAnswer | None:
        try:
            return self._retrying(self._advance, reading, buffer)
        except StorageError as error:
            raise reading.final_error() from error

    def _advance(self, reading: _Reading, buffer: memoryview) -> RangeAnswer | None:
        """One chunk more, from the answer being received or, where that broke, from a new request for the rest."""
        if reading.chunks is None:
            if reading.done_bytes and reading.done_bytes == reading.request.length_bytes:
                return None
            self._hold(reading.last_error)
            with self._lock:
                self._requests += 1
            reading.chunks = self._source.read_chunks(reading.rest(), buffer)
        try:
            answer = next(reading.chunks, None)
        except StorageError as error:
            reading.chunks = None
            reading.note(error)
            raise
        if answer is not None:
            reading.done_bytes += answer.length_bytes
            reading.version = reading.version or answer.info.version
        return answer

    def _list(self, tries: _Tries) -> tuple[ObjectInfo, ...]:
        self._hold(tries.last_error)
        try:
            return tuple(self._source.list())
        except StorageError as error:
            tries.note(error)
            raise

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        tries: _Tries = state.args[0]
        used_up = tries.failures >= self.policy.attempts or tries.throttled >= self.policy.throttled_attempts
        return used_up or self._cancel.is_set() or time.monotonic() >= self._deadline_s

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Full jitter (Source: AWS Architecture Blog, "Exponential Backoff And Jitter"), or what the store asked."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, StorageError) and _is_progress(error):
            return 0.0
        tries: _Tries = state.args[0]
        policy = self.policy
        doublings = max(0, tries.failures + tries.throttled - 1)
        bound_s = min(policy.longest_backoff_s, policy.first_backoff_s * 2.0**doublings)
        wait_s = random.uniform(0, bound_s)
        asked_s = error.fields.get("retry_after_s") if isinstance(error, StorageError) else None
        if isinstance(asked_s, int | float):
            wait_s += min(float(asked_s), policy.longest_retry_after_s)
        if isinstance(error, Throttled):
            with self._lock:
                self._hold_until_s = max(self._hold_until_s, time.monotonic() + wait_s)
        return wait_s

    def _sleep(self, seconds: float) -> None:
        self._cancel.wait(min(seconds, max(0.0, self._deadline_s - time.monotonic())))

    def _hold(self, last_error: StorageError | None) -> None:
        """Wait until the store may be asked again, spread by jitter; raise the error of a try that came too late."""
        until_s = self._hold_until_s
        if until_s > time.monotonic():
            self._sleep(until_s + random.uniform(0, self.policy.first_backoff_s) - time.monotonic())
        if last_error is not None and (self._cancel.is_set() or time.monotonic() >= self._deadline_s):
            raise last_error

    def _count_retry(self, state: tenacity.RetryCallState) -> None:
        with self._lock:
            self._retries += 1


def may_be_tried_again(error: BaseException) -> bool:
    """Whether the same request may go well the next time; a store that ignores ranges will go on doing so."""
    return isinstance(error, StorageError) and error.retryable and not error.fields.get("ignores_range")


def _is_progress(error: StorageError) -> bool:
    """A rightly labelled but shorter answer (a gateway's cap): nothing failed, the rest is asked for at once."""
    return (
        isinstance(error, TruncatedRead)
        and bool(error.fields.get("shortened"))
        and bool(error.fields["received_bytes"])
    )
