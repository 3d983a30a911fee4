"""S3 answers that are wrong, late, cut or refused: what becomes of each, over real sockets."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConnectionFailed,
    CredentialsError,
    CredentialsExpired,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
    StoreFailed,
    Throttled,
    TruncatedRead,
    WrongRange,
)
from adapter.storage.base import RangeRequest
from adapter.storage.retry import RetryingSource, RetryPolicy
from adapter.storage.s3 import S3Options, S3Source
from tests.support.scripted_s3 import CONTENT, KIB, QUICK, opened, read
from tests.support.scripted_store import Answer, Asked, error, part, scripted_store
from tests.support.stores import CREDENTIALS

OTHER = hashlib.shake_128(b"other").digest(64 * KIB)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def whole(source: RetryingSource) -> bytes:
    return b"".join(read(source, start) for start in range(0, len(CONTENT), 8 * KIB))


def test_a_cut_and_a_reset_cost_only_the_missing_bytes() -> None:
    """S-08."""
    broken = set()

    def script(asked: Asked) -> Answer:
        answer, start = part(CONTENT, asked), asked.span[0]
        keep = {8 * KIB: 3 * KIB, 32 * KIB: 1}.get(start)
        if keep is None or start in broken:
            return answer
        broken.add(start)
        headers = {**answer.headers, "Content-Length": str(len(answer.body))}
        return Answer(206, headers, answer.body[:keep], then="close" if keep > 1 else "reset")

    with opened(script) as (store, source), RetryingSource(source, QUICK) as retrying:
        assert whole(retrying) == CONTENT
        asked = sum(request.span[1] - request.span[0] for request in store.gets)
        assert len(store.gets) == 10
    assert asked <= len(CONTENT) + (8 - 3) * KIB + 8 * KIB


def test_a_range_that_always_fails_is_tried_the_configured_number_of_times() -> None:
    """S-08, S-11: attempts of the SDK do not multiply ours; the error says what, where and how often."""
    with opened(lambda asked: error(500, "InternalError")) as (store, source):
        with RetryingSource(source, QUICK) as retrying, pytest.raises(StoreFailed) as failed:
            read(retrying)
        assert len(store.asked) == 4
    fields = failed.value.fields
    assert (fields["attempts"], fields["range"], fields["cause"]) == (4, "8192-16383", "InternalError")
    assert "bucket" in str(fields["store"])
    assert fields["key"] == "m/a"
    assert "s3://bucket/m/a" in failed.value.message
    assert "4 attempts" in failed.value.message


WRONG: dict[str, Callable[[Asked], Answer]] = {
    "whole body": lambda asked: Answer(200, {"ETag": '"e1"', "Accept-Ranges": "bytes"}, CONTENT),
    "another offset": lambda asked: part(CONTENT, asked, shift=-100),
    "no label": lambda asked: Answer(206, {"ETag": '"e1"'}, CONTENT[slice(*asked.span)]),
    "longer than its label": lambda asked: Answer(
        206, part(CONTENT, asked).headers, CONTENT[asked.span[0] : asked.span[1] + 10]
    ),
    "encoded": lambda asked: Answer(206, {**part(CONTENT, asked).headers, "Content-Encoding": "gzip"}, b"x" * 8 * KIB),
    "multipart": lambda asked: Answer(206, {"Content-Type": "multipart/byteranges; boundary=x"}, b"--x"),
    "an error page as a body": lambda asked: Answer(200, {"Content-Type": "text/html"}, b"<html>down</html>"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_not_the_range_asked_for_is_refused(name: str) -> None:
    """S-09."""
    with opened(WRONG[name]) as (_, source), pytest.raises(WrongRange) as refused:
        read(source)
    assert refused.value.fields["range"] == "8192-16383"


def test_a_wrong_range_is_thrown_away_and_asked_for_again() -> None:
    """S-09 (ii)."""
    with opened(lambda asked: part(CONTENT, asked, shift=-100 if asked.number == 1 else 0)) as (store, source):
        with RetryingSource(source, QUICK) as retrying:
            assert read(retrying) == CONTENT[8 * KIB : 16 * KIB]
        assert len(store.gets) == 2


def test_a_store_that_ignores_ranges_is_asked_once_not_again_and_again() -> None:
    """S-09 (i)."""
    with opened(WRONG["whole body"]) as (store, source), RetryingSource(source, QUICK) as retrying:
        with pytest.raises(WrongRange, match="ignores ranges"):
            read(retrying)
        assert len(store.gets) == 1
        assert read(retrying, 0, 65 * KIB) == CONTENT, "the whole is fine where the whole was asked for"


def test_the_rest_of_a_shorter_answer_is_asked_for() -> None:
    """S-09 (v): a gateway's cap of 1 KiB is no failure, however many requests it takes."""
    with opened(lambda asked: part(CONTENT, asked, limit=KIB)) as (store, source):
        with RetryingSource(source, QUICK) as retrying:
            assert read(retrying) == CONTENT[8 * KIB : 16 * KIB]
        assert len(store.gets) == 8


@pytest.mark.parametrize("honours", [True, False])
def test_an_object_that_is_replaced_under_way_is_never_mixed(honours: bool) -> None:
    """S-10: whether the store honours If-Match or not."""

    def script(asked: Asked) -> Answer:
        if asked.number <= 3:
            return part(CONTENT, asked)
        if honours and asked.headers["if-match"] == '"e1"':
            return error(412, "PreconditionFailed")
        return part(OTHER, asked, etag='"e2"')

    with opened(script) as (store, source), RetryingSource(source, QUICK) as retrying:
        version = retrying.read_into("a", 0, memoryview(bytearray(1))).info.version
        buffer = memoryview(bytearray(8 * KIB))
        retrying.read_into("a", 0, buffer, version=version)
        retrying.read_into("a", 8 * KIB, buffer, version=version)
        with pytest.raises(ObjectChanged) as changed:
            retrying.read_into("a", 16 * KIB, buffer, version=version)
        assert len(store.gets) == 4, "not tried again"
    assert changed.value.exit_code == 28


def test_the_second_half_of_a_broken_read_is_of_the_same_version() -> None:
    """S-10: although the caller had pinned nothing."""

    def script(asked: Asked) -> Answer:
        if asked.number == 1:
            answer = part(CONTENT, asked)
            headers = {**answer.headers, "Content-Length": str(len(answer.body))}
            return Answer(206, headers, answer.body[:100], then="close")
        return part(OTHER, asked, etag='"e2"')

    with opened(script) as (_, source), RetryingSource(source, QUICK) as retrying, pytest.raises(ObjectChanged):
        read(retrying)


def test_throttling_is_waited_out_as_long_as_the_store_asks() -> None:
    """S-11."""

    def script(asked: Asked) -> Answer:
        return error(503, "SlowDown", Retry_After="1") if asked.number == 1 else part(CONTENT, asked)

    with opened(script) as (_, source), RetryingSource(source, QUICK) as retrying:
        began = time.monotonic()
        assert read(retrying) == CONTENT[8 * KIB : 16 * KIB]
        assert time.monotonic() - began >= 1.0
        assert (retrying.requests, retrying.retries) == (2, 1)


def test_a_crowd_that_is_throttled_thins_out_and_all_finish() -> None:
    """S-11: the store takes one request in 20 ms for the first half second, and refuses all others."""
    lock, served = threading.Lock(), [0.0]

    def script(asked: Asked) -> Answer:
        now_s = time.monotonic()
        with lock:
            if now_s - began < 0.5 and now_s - served[0] < 0.02:
                return error(503, "SlowDown")
            served[0] = now_s
        return part(CONTENT, asked)

    policy = RetryPolicy(attempts=2, first_backoff_s=0.02)
    began = time.monotonic()
    with opened(script) as (store, source), RetryingSource(source, policy) as retrying, ThreadPoolExecutor(8) as pool:
        starts = range(0, 64 * KIB, KIB)
        pieces = list(pool.map(lambda start: read(retrying, start, KIB), starts))
        assert b"".join(pieces) == CONTENT
        assert len(store.gets) == retrying.requests, "the SDK below tries nothing again by itself"


REFUSED: list[tuple[Answer, type[AdapterError], str]] = [
    (error(404, "NoSuchKey"), ObjectNotFound, "s3://bucket/m/a"),
    (error(404, "NoSuchBucket"), ObjectNotFound, "bucket"),
    (error(403, "AccessDenied"), AccessDenied, "missing or not permitted.*s3:GetObject"),
    (error(403, "SignatureDoesNotMatch"), CredentialsError, "credentials"),
    (error(403, "InvalidAccessKeyId"), CredentialsError, "credentials"),
    (error(400, "ExpiredToken"), CredentialsExpired, "ExpiredToken"),
    (error(403, "RequestTimeTooSkewed"), CredentialsError, "RequestTimeTooSkewed"),
    (error(503, "SlowDown"), Throttled, "slow down"),
    (error(429, "TooManyRequests"), Throttled, "slow down"),
    (error(500, "InternalError"), StoreFailed, "failed"),
    (error(400, "RequestTimeout"), ConnectionFailed, "timed out"),
    (error(400, "InvalidArgument"), StorageError, "refuses"),
    (Answer(502, {}, b"<html>bad gateway"), StoreFailed, "s3://bucket/m/a"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), REFUSED)
def test_each_refusal_has_its_own_error(answer: Answer, kind: type[AdapterError], text: str) -> None:
    with opened(lambda asked: answer) as (store, source), pytest.raises(kind, match=text) as refused:
        read(source)
    assert type(refused.value) is kind
    assert "secret-of-the-store" not in str(refused.value.to_dict()), "no word of the store's own gets into errors"
    assert len(store.asked) == 1


def test_a_store_that_falls_silent_is_given_up_after_the_timeout() -> None:
    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        return Answer(206, {**answer.headers, "Content-Length": "8192"}, answer.body[:100], then="stall")

    with opened(script, timeout_s=0.3) as (_, source), pytest.raises(ConnectionFailed) as failed:
        read(source)
    assert failed.value.fields["received_bytes"] == 100


def test_a_body_that_drips_is_given_up_although_no_single_wait_is_long() -> None:
    def script(asked: Asked) -> Answer:
        return replace(part(CONTENT, asked), drip_s=0.02)

    with opened(script, timeout_s=0.3) as (_, source), pytest.raises(ConnectionFailed, match="stalled"):
        read(source)


def test_an_error_page_is_no_object_even_where_the_whole_was_asked_for() -> None:
    with opened(WRONG["an error page as a body"]) as (_, source), pytest.raises(WrongRange):
        read(source, 0, 64 * KIB)


def test_a_store_that_is_not_there_is_a_connection_error() -> None:
    with scripted_store(lambda asked: Answer()) as store:
        endpoint = store.endpoint
    with S3Source("s3://bucket/m/", S3Options(endpoint_url=endpoint)) as source, pytest.raises(ConnectionFailed):
        read(source)


def test_what_arrived_before_a_cut_is_given_out_first() -> None:
    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        return Answer(206, {**answer.headers, "Content-Length": "8192"}, answer.body[:3000], then="close")

    with opened(script) as (_, source):
        buffer, got = memoryview(bytearray(2000)), b""
        chunks = source.read_chunks(RangeRequest("a", 0, 8 * KIB), buffer)
        for _ in range(2):
            got += bytes(buffer[: next(chunks).length_bytes])
        with pytest.raises(TruncatedRead) as cut:
            next(chunks)
    assert got == CONTENT[:3000]
    assert cut.value.fields["received_bytes"] == 3000


def test_a_body_in_transfer_chunks_is_read_by_the_public_way() -> None:
    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        body = (
            b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (answer.body[:50], answer.body[50:]))
            + b"0\r\n\r\n"
        )
        return Answer(206, {**answer.headers, "Transfer-Encoding": "chunked"}, body, length=False)

    with opened(script) as (_, source):
        assert read(source) == CONTENT[8 * KIB : 16 * KIB]
