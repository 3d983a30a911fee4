"""S3 answers that are wrong, late, cut or refused: what becomes of each, over real sockets."""

from __future__ import annotations

import hashlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3.session
import pytest

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConfigurationError,
    ConnectionFailed,
    CredentialsError,
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
from adapter.storage.s3_body import direct_reader
from tests.support.scripted_store import Answer, Asked, ScriptedStore, error, part, scripted_store
from tests.support.stores import CREDENTIALS

KIB = 1024
CONTENT = hashlib.shake_128(b"content").digest(64 * KIB)
OTHER = hashlib.shake_128(b"other").digest(64 * KIB)
QUICK = RetryPolicy(attempts=4, first_backoff_s=0.001, longest_backoff_s=0.002)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def opened(script: Callable[[Asked], Answer], *, timeout_s: float = 5.0) -> Iterator[tuple[ScriptedStore, S3Source]]:
    with scripted_store(script) as store:
        options = S3Options(connections=4, timeout_s=timeout_s, endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source:
            yield store, source


def read(source: S3Source | RetryingSource, start: int = 8 * KIB, length: int = 8 * KIB) -> bytes:
    buffer = bytearray(length)
    answer = source.read_into("a", start, memoryview(buffer))
    return bytes(buffer[: answer.length_bytes])


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
    (error(400, "ExpiredToken"), CredentialsError, "ExpiredToken"),
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


def test_a_wrong_region_is_named() -> None:
    """S-14."""
    answer = error(301, "PermanentRedirect", x_amz_bucket_region="eu-central-1")
    with opened(lambda asked: answer) as (_, source), pytest.raises(ConfigurationError, match="eu-central-1"):
        read(source)


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


def test_bodies_are_received_without_a_copy_by_the_installed_sdk() -> None:
    """The fast way uses a name that urllib3 does not promise; when this fails, reads go the public way, slower."""
    with scripted_store(lambda asked: part(CONTENT, asked)) as store:
        client: Any = boto3.session.Session().client("s3", endpoint_url=store.endpoint)
        body = client.get_object(Bucket="bucket", Key="a", Range="bytes=0-99")["Body"]
        reader = direct_reader(body)
        assert reader is not None
        buffer = bytearray(100)
        assert reader[0](memoryview(buffer)) == 100
        assert buffer == CONTENT[:100]
        body.close()
        client.close()


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


def test_connections_are_reused_and_the_pool_does_not_overflow() -> None:
    """S-17."""
    with warnings.catch_warnings(), opened(lambda asked: part(CONTENT, asked)) as (store, source):
        warnings.simplefilter("error")
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: read(source, number % 50 * KIB, KIB), range(256)))
        assert len(store.gets) == 256
        assert store.connections <= 8


def test_expired_credentials_are_looked_up_again_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-18."""
    file = tmp_path / "credentials"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    file.write_text("[default]\naws_access_key_id = KEYA\naws_secret_access_key = aaaa\n")

    def script(asked: Asked) -> Answer:
        if "KEYA" in asked.headers["authorization"] and asked.number > 5:
            return error(400, "ExpiredToken")
        return part(CONTENT, asked)

    with opened(script) as (store, source), RetryingSource(source, QUICK) as retrying:
        assert b"".join(read(retrying, start) for start in range(0, 40 * KIB, 8 * KIB)) == CONTENT[: 40 * KIB]
        with pytest.raises(CredentialsError) as refused:
            read(retrying)
        assert len(store.asked) == 6, "without new ones it is not tried again"
        assert "aaaa" not in str(refused.value.to_dict())
        file.write_text("[default]\naws_access_key_id = KEYB\naws_secret_access_key = bbbb\n")
        assert read(retrying, 40 * KIB) == CONTENT[40 * KIB : 48 * KIB]
        assert len(store.asked) == 8


def test_missing_credentials_are_said_at_once_and_anonymous_reads_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with opened(lambda asked: part(CONTENT, asked)) as (store, source):
        with pytest.raises(CredentialsError, match="no credentials found"):
            read(source)
        assert store.asked == []
        with S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint, anonymous=True)) as anonymous:
            assert read(anonymous) == CONTENT[8 * KIB : 16 * KIB]
        assert "authorization" not in store.asked[0].headers


def test_a_custom_endpoint_gets_path_style_its_prefix_and_no_checksum_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-13."""
    with scripted_store(lambda asked: part(CONTENT, asked)) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint.replace("127.0.0.1", "localhost") + "/gw/s3")
        with S3Source("s3://bucket/m/") as source:
            read(source)
            assert source.store.endswith("/gw/s3/bucket")
        assert store.asked[0].path == "/gw/s3/bucket/m/a"
        assert not [name for name in store.asked[0].headers if "checksum" in name]


def test_a_bucket_that_the_endpoint_names_already_is_pointed_out() -> None:
    """S-13."""
    with scripted_store(lambda asked: error(404, "NoSuchKey")) as store:
        options = S3Options(endpoint_url=f"{store.endpoint}/bucket")
        with S3Source("s3://bucket/m/", options) as source, pytest.raises(ObjectNotFound, match="already names"):
            read(source)


@pytest.mark.parametrize("key", ["../other/model.safetensors", "a/../../x", "./a", ""])
def test_a_key_that_leads_out_of_the_prefix_is_never_sent(key: str) -> None:
    """S-05."""
    with opened(lambda asked: part(CONTENT, asked)) as (store, source):
        with pytest.raises(AccessDenied, match="leads out"):
            source.read_into(key, 0, memoryview(bytearray(10)))
        assert store.asked == []


def test_a_denied_listing_leaves_reading_as_it_is() -> None:
    """S-14."""

    def script(asked: Asked) -> Answer:
        return error(403, "AccessDenied") if "list-type" in asked.path else part(CONTENT, asked)

    with opened(script) as (_, source):
        with pytest.raises(AccessDenied, match="s3:ListBucket"):
            list(source.list())
        assert read(source) == CONTENT[8 * KIB : 16 * KIB]


def test_a_client_is_made_by_each_of_many_threads_without_a_race() -> None:
    """S-17."""
    with scripted_store(lambda asked: part(CONTENT, asked)) as store:
        ready = threading.Barrier(8)

        def start(_: int) -> bytes:
            ready.wait()
            with S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint)) as source:
                return read(source)

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(start, range(8))) == {CONTENT[8 * KIB : 16 * KIB]}
