"""How S3 is spoken to: endpoint, credentials, connections, permissions, keys."""

from __future__ import annotations

import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3.session
import pytest

from adapter.errors import (
    AccessDenied,
    CredentialsError,
    CredentialsExpired,
    ObjectNotFound,
    TlsFailed,
    WrongRegion,
)
from adapter.storage.retry import RetryingSource
from adapter.storage.s3 import S3Options, S3Source
from adapter.storage.s3_body import direct_reader
from tests.support.certificates import write_certificate
from tests.support.scripted_s3 import CONTENT, KIB, QUICK, opened, read
from tests.support.scripted_store import Answer, Asked, error, part, scripted_store
from tests.support.stores import CREDENTIALS


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def test_a_wrong_region_is_named() -> None:
    """S-14."""
    answer = error(301, "PermanentRedirect", x_amz_bucket_region="eu-central-1")
    with opened(lambda asked: answer) as (store, source), pytest.raises(WrongRegion, match="eu-central-1"):
        read(source)
    assert len(store.asked) == 2, "tried there once, not again and again"


ELSEWHERE = [
    error(301, "PermanentRedirect", x_amz_bucket_region="eu-central-1"),
    error(307, "TemporaryRedirect", x_amz_bucket_region="eu-central-1"),
    error(400, "AuthorizationHeaderMalformed", x_amz_bucket_region="eu-central-1"),
    Answer(400, {}, b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-central-1</Region></Error>"),
]


@pytest.mark.parametrize("answer", ELSEWHERE)
def test_the_region_is_learnt_once(answer: Answer) -> None:
    """S-14."""

    def script(asked: Asked) -> Answer:
        return part(CONTENT, asked) if "/eu-central-1/s3/" in asked.headers["authorization"] else answer

    with opened(script) as (store, source):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: read(source), range(4)))
        wrong = len(store.asked) - 4
        assert read(source) == CONTENT[8 * KIB : 16 * KIB]
        assert 1 <= wrong <= 4, "each thread at the most once"
        assert len(store.asked) == wrong + 5


def test_the_region_is_learnt_from_the_bare_answer_to_a_head_request() -> None:
    """S-14."""

    def script(asked: Asked) -> Answer:
        if "/eu-central-1/s3/" in asked.headers["authorization"]:
            return Answer(200, {"ETag": '"e1"', "Content-Length": "65536"})
        return Answer(400, {"x-amz-bucket-region": "eu-central-1"})

    with scripted_store(script) as store:
        options = S3Options(endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/a.safetensors", options) as source:
            assert [(info.key, info.size_bytes) for info in source.list()] == [("a.safetensors", 65536)]


def test_a_region_that_the_store_does_not_name_is_asked_for_once() -> None:
    """S-14: the SDK itself would ask until its stack is full."""
    with opened(lambda asked: error(301, "PermanentRedirect")) as (store, source):
        with pytest.raises(WrongRegion, match="set AWS_REGION"):
            read(source)
        assert len(store.asked) == 1


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


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "certificate.pem")


def test_an_encrypted_store_is_read_where_its_certificate_is_trusted(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted_store(lambda asked: part(CONTENT, asked), certificate=certificate) as store:
        options = S3Options(endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source, pytest.raises(TlsFailed, match="not trusted"):
            read(source)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        with S3Source("s3://bucket/m/", options) as source:
            assert source.store.startswith("s3:https://localhost:")
            for start in range(0, 64 * KIB, 8 * KIB):
                assert read(source, start) == CONTENT[start : start + 8 * KIB]
    assert store.connections <= 3, "the connection is kept"


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
        with pytest.raises(CredentialsExpired) as refused:
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
