"""Reads that are tried again: which faults, how often, after what wait; one back-off for all threads of a stream.

A range that broke goes on where it ended. Sources make one attempt and the SDK below them too, so the attempts
counted here are the requests the store sees (S-08, S-11).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self

import tenacity

from adapter.errors import ConnectionFailed, InitTimeout, InvocationCancelled, StorageError, Throttled, TruncatedRead
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, RangeSource
from adapter.storage.checksums import StoredChecksum, stored_checksum
from adapter.storage.concurrency import Gate
from adapter.storage.watch import ReadWatch

_LOOK_S = 0.05
"""How often a read that waits looks whether it is still wanted."""


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
    sent_s: float | None = None
    """When the request under way was let through the gate; None when there is none."""
    not_before_s: float = 0.0
    """When the next one may be sent, after a failure."""
    watch: ReadWatch = field(default_factory=ReadWatch)

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
    fresh: bool = False
    """Whether the request under way has not been answered yet."""

    def rest(self) -> RangeRequest:
        """What is still to be read, of the version that the first part was of."""
        return replace(
            self.request,
            start=self.request.start + self.done_bytes,
            length_bytes=self.request.length_bytes - self.done_bytes,
            version=self.request.version or self.version,
            watch=self.watch,
        )


@dataclass(slots=True)
class Seconds:
    """Where the time of all reads went, added up over the threads."""

    held: float = 0.0
    """Waiting to be let through: others under way, the store asked to slow down."""
    first_byte: float = 0.0
    """From a request to the beginning of its answer, a new connection included."""
    body: float = 0.0


class RetryingSource:
    """A source whose reads and listing are tried again as the policy says. Thread-safe; one per stream.

    After a store asked one thread to slow down, all threads hold their next request back for the same wait.

    Args:
        source: What is read; closed with this.
        policy: How often, how patiently.
        gate: How many requests may be under way.
        cancel: When set, no wait goes on and nothing is tried again.
        deadline_s: Point of `time.monotonic()` after which nothing is tried again.
    """

    def __init__(
        self,
        source: RangeSource,
        policy: RetryPolicy | None = None,
        *,
        gate: Gate | None = None,
        cancel: threading.Event | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.policy: RetryPolicy = policy or RetryPolicy()
        self.gate: Gate = gate or Gate()
        self.seconds: Seconds = Seconds()
        self._source = source
        self._cancel = cancel or threading.Event()
        self._deadline_s = float("inf") if deadline_s is None else deadline_s
        self._lock = threading.Lock()
        self._requests = 0
        self._retries = 0
        self._retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_be_tried_again),
            stop=self._is_over,
            wait=self._wait_s,
            sleep=lambda _: None,  # done by `_begin_request`, which can be woken
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
        try:
            while (further := self._next_chunk(reading, into[reading.done_bytes :])) is not None:
                answer = further
        finally:
            self._end_request(reading)
        assert answer is not None, "a source gives at least one answer or raises"
        return RangeAnswer(reading.done_bytes, answer.info)

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`, tried again; a broken read goes on where it ended.

        Raises:
            StorageError: As the source raises, after the last attempt; with fields `attempts`, `key`, `range`.
            InvocationCancelled: It was cancelled, or its watch gave it up, before anything failed.
            InitTimeout: The deadline passed before anything failed.
        """
        reading = _Reading(request=request, watch=request.watch or ReadWatch())
        try:
            while (answer := self._next_chunk(reading, buffer)) is not None:
                yield answer
        finally:
            if reading.chunks is not None:
                reading.chunks.close()
            self._end_request(reading)

    def stored_checksum(self, key: str, *, version: str | None = None) -> StoredChecksum | None:
        """The checksum of the whole object, when the store has one and says it at the first try."""
        return stored_checksum(self._source, key, version)

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
            return self._advance(reading, buffer)  # nearly always well: the loop costs as much as the rest of this
        except StorageError as error:
            failed: StorageError | None = error

        def again(reading: _Reading) -> RangeAnswer | None:
            nonlocal failed
            error, failed = failed, None
            if error is not None:
                raise error
            return self._advance(reading, buffer)

        try:
            return self._retrying(again, reading)
        except StorageError as error:
            raise reading.final_error() from error

    def _advance(self, reading: _Reading, buffer: memoryview) -> RangeAnswer | None:
        """One chunk more, from the answer being received or, where that broke, from a new request for the rest."""
        if reading.chunks is None:
            if reading.done_bytes and reading.done_bytes == reading.request.length_bytes:
                return None
            self._begin_request(reading)
            with self._lock:
                self._requests += 1
            reading.chunks = self._source.read_chunks(reading.rest(), buffer)
            reading.fresh = True
        began_s = time.monotonic()
        try:
            answer = next(reading.chunks, None)
        except StorageError as caught:
            error = _with_reason(caught, reading.watch)
            reading.chunks = None
            reading.note(error)
            self._note_throttle(reading, error)
            raise error from caught
        finally:
            self._count_seconds(reading, began_s)
            if reading.chunks is None:
                self._end_request(reading)
        if answer is None:
            self._end_request(reading)
            return None
        if reading.fresh:
            reading.fresh = False
            self.gate.accepted()
        self.gate.received(answer.length_bytes)
        reading.done_bytes += answer.length_bytes
        reading.version = reading.version or answer.info.version
        return answer

    def _list(self, tries: _Tries) -> tuple[ObjectInfo, ...]:
        self._begin_request(tries)
        try:
            found = tuple(self._source.list())
        except StorageError as error:
            tries.note(error)
            self._note_throttle(tries, error)
            raise
        finally:
            self._end_request(tries)
        self.gate.accepted()
        return found

    # -- requests -----------------------------------------------------------------------------------------------------

    def _begin_request(self, tries: _Tries) -> None:
        """Wait until the store may be asked; raise the error of a try that came too late."""

        def over() -> bool:
            return self._ended() or tries.watch.given_up

        began_s = time.monotonic()
        while (left_s := tries.not_before_s - time.monotonic()) > 0 and not over():
            self._cancel.wait(min(left_s, _LOOK_S, max(0.0, self._deadline_s - time.monotonic())))
        tries.sent_s = self.gate.enter(over, beyond=tries.watch.beyond)
        with self._lock:
            self.seconds.held += time.monotonic() - began_s
        if tries.sent_s is not None:
            tries.watch.asked()
        elif tries.last_error is not None:
            raise tries.last_error
        elif self._cancel.is_set() or tries.watch.given_up:
            raise InvocationCancelled("the read was cancelled")
        else:
            raise InitTimeout("time was up before the store could be asked", stage="weights.stream")

    def _end_request(self, tries: _Tries) -> None:
        if tries.sent_s is not None:
            tries.sent_s = None
            tries.watch.ended()
            self.gate.leave()

    def _count_seconds(self, reading: _Reading, began_s: float) -> None:
        now_s = time.monotonic()
        answered_s = reading.watch.answered_s
        with self._lock:
            if reading.fresh:
                first_byte_s = now_s if answered_s is None else min(max(answered_s, began_s), now_s)
                self.seconds.first_byte += first_byte_s - began_s
                self.seconds.body += now_s - first_byte_s
            else:
                self.seconds.body += now_s - began_s

    def _note_throttle(self, tries: _Tries, error: StorageError) -> None:
        """One wait for all: drawn once for a burst of such answers, from a range that doubles with each burst."""
        if not isinstance(error, Throttled) or tries.sent_s is None:
            return
        policy = self.policy
        streak = self.gate.throttled(tries.sent_s)
        asked_s = error.fields.get("retry_after_s")
        wait_s = min(float(asked_s), policy.longest_retry_after_s) if isinstance(asked_s, int | float) else 0.0
        if streak:
            wait_s += random.uniform(0, min(policy.longest_backoff_s, policy.first_backoff_s * 2.0 ** (streak - 1)))
        self.gate.hold(wait_s)

    def _is_over(self, state: tenacity.RetryCallState) -> bool:
        tries: _Tries = state.args[0]
        used_up = tries.failures >= self.policy.attempts or tries.throttled >= self.policy.throttled_attempts
        return used_up or self._ended() or tries.watch.given_up

    def _ended(self) -> bool:
        return self._cancel.is_set() or time.monotonic() >= self._deadline_s

    def _wait_s(self, state: tenacity.RetryCallState) -> float:
        """Full jitter (Source: AWS Architecture Blog, "Exponential Backoff And Jitter"), or what the store asked."""
        error = state.outcome.exception() if state.outcome else None
        if isinstance(error, Throttled) or (isinstance(error, StorageError) and _is_progress(error)):
            return 0.0  # the gate holds all threads back; nothing failed
        tries: _Tries = state.args[0]
        policy = self.policy
        doublings = max(0, tries.failures - 1)
        wait_s = random.uniform(0, min(policy.longest_backoff_s, policy.first_backoff_s * 2.0**doublings))
        asked_s = error.fields.get("retry_after_s") if isinstance(error, StorageError) else None
        if isinstance(asked_s, int | float):
            wait_s += min(float(asked_s), policy.longest_retry_after_s)
        tries.not_before_s = time.monotonic() + wait_s
        return wait_s

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


def _with_reason(error: StorageError, watch: ReadWatch) -> StorageError:
    """The error of a read that was ended from outside says so."""
    if watch.interrupted is None:
        return error
    return ConnectionFailed(f"{error.message}; it was broken off: {watch.interrupted}", **error.fields)
