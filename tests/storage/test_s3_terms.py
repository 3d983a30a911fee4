"""On what terms S3 is read: without credentials, at the reader's cost, with a customer's key, one version; who pays for
a slow search for credentials, and which way requests go."""

from __future__ import annotations

import base64
import hashlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from adapter.errors import AccessDenied, ConfigurationError, ConnectionFailed, CredentialsError, NameNotResolved
from adapter.settings import Secret, Settings
from adapter.storage.access import Access
from adapter.storage.proxies import proxy_to
from adapter.storage.s3 import S3Options, S3Source
from adapter.storage.sources import open_source
from tests.support.scripted_s3 import CONTENT, KIB, opened, read
from tests.support.scripted_store import Answer, Asked, error, part, scripted_store
from tests.support.stores import CREDENTIALS

KEY = b"k" * 32
LISTING = (
    b"<ListBucketResult><Contents><Key>m/a</Key><Size>65536</Size><ETag>&quot;e1&quot;</ETag></Contents>"
    b"</ListBucketResult>"
)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def answered(asked: Asked) -> Answer:
    """A store that has the one object `m/a`."""
    if "list-type" in asked.path:
        return Answer(200, {}, LISTING)
    if asked.method == "HEAD":
        return Answer(200, {"ETag": '"e1"', "Content-Length": str(len(CONTENT))})
    return part(CONTENT, asked)


def everything(source: S3Source) -> None:
    """Each kind of request once: a listing, a range, a size."""
    assert [info.key for info in source.list()] == ["a"]
    assert read(source) == CONTENT[8 * KIB : 16 * KIB]
    assert source.read_into("a", 0, memoryview(b"")).info.size_bytes == len(CONTENT)


@pytest.mark.parametrize("by_address", [True, False])
def test_who_pays_is_said_with_every_request(by_address: bool) -> None:
    """S-14."""

    def script(asked: Asked) -> Answer:
        said = asked.headers.get("x-amz-request-payer") == "requester"
        return answered(asked) if said else error(403, "AccessDenied")

    with scripted_store(script) as store:
        options = S3Options(endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source, pytest.raises(AccessDenied):
            read(source)
        address = "s3://bucket/m/?requester-pays" if by_address else "s3://bucket/m/"
        with S3Source(address, replace(options, requester_pays=not by_address)) as source:
            everything(source)


def test_the_customers_key_goes_with_every_read() -> None:
    """S-14."""
    digest = base64.b64encode(hashlib.md5(KEY, usedforsecurity=False).digest()).decode()

    def script(asked: Asked) -> Answer:
        if "list-type" in asked.path:
            return answered(asked)
        said = (asked.headers.get(f"x-amz-server-side-encryption-customer-{name}") for name in ("key", "key-md5"))
        return (
            answered(asked) if tuple(said) == (base64.b64encode(KEY).decode(), digest) else error(400, "InvalidRequest")
        )

    with scripted_store(script) as store:
        key = Secret(base64.b64encode(KEY).decode())
        with S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint, customer_key=key)) as source:
            everything(source)


@pytest.mark.parametrize("text", ["", "not base64!", "c2hvcnQ="])
def test_a_customers_key_that_is_none_is_refused_and_not_repeated(text: str) -> None:
    options = S3Options(endpoint_url="https://localhost:9", customer_key=Secret(text))
    with pytest.raises(ConfigurationError, match="base64 of 32 bytes") as refused:
        S3Source("s3://bucket/m/", options)
    assert not text or text not in str(refused.value.to_dict())


def test_a_customers_key_is_not_sent_in_the_clear() -> None:
    key = Secret(base64.b64encode(KEY).decode())
    with pytest.raises(ConfigurationError, match="use https"):
        S3Source("s3://bucket/m/", S3Options(endpoint_url="http://store.example", customer_key=key))


def test_one_version_of_one_object_is_asked_for_with_every_request() -> None:
    """S-14."""

    def script(asked: Asked) -> Answer:
        path, _, query = asked.path.partition("?")
        there = path == "/bucket/m/a.safetensors" and "versionId=v%2B1" in query
        return answered(asked) if there else error(404, "NoSuchVersion")

    with scripted_store(script) as store:
        options = S3Options(endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/a.safetensors?versionId=v+1", options) as source:
            (info,) = source.list()
            assert (info.key, info.size_bytes) == ("a.safetensors", len(CONTENT))
            buffer = memoryview(bytearray(100))
            assert source.read_into(info.key, 0, buffer, version=info.version).info == info
    assert len(store.asked) == 2


def test_a_version_of_nothing_in_particular_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no object is named"):
        S3Source("s3://bucket/m/?versionId=1")


@pytest.mark.parametrize("key", ["q?x=1", "who?", "a?versionId=1/b?c"])
def test_a_question_mark_that_begins_no_option_belongs_to_the_key(key: str) -> None:
    """S-12."""
    with scripted_store(answered) as store:
        with S3Source(f"s3://bucket/{key}", S3Options(endpoint_url=store.endpoint)) as source:
            read(source)
        assert store.asked[0].path.startswith(f"/bucket/{key}/a".replace("?", "%3F").replace("=", "%3D"))


@contextmanager
def silent_service() -> Iterator[str]:
    """A service that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        yield f"http://{host}:{port}"


@pytest.mark.parametrize("by_address", [True, False])
def test_anonymous_reads_search_for_no_credentials(monkeypatch: pytest.MonkeyPatch, by_address: bool) -> None:
    """S-15."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with scripted_store(answered) as metadata, scripted_store(answered) as store:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata.endpoint}/role")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", store.endpoint)
        address = "s3://bucket/m/?anonymous" if by_address else "s3://bucket/m/"
        settings = Settings.from_env({} if by_address else {"COLDSTART_ANONYMOUS": "1"})
        with open_source(address, connections=2, access=Access.of(settings)) as source:
            assert read(source) == CONTENT[8 * KIB : 16 * KIB]
            assert [info.key for info in source.list()] == ["a"]
        assert metadata.asked == []
        assert not [asked for asked in store.asked if "authorization" in asked.headers]


def test_the_search_for_credentials_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15: a service that never answers."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with silent_service() as metadata:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{metadata}/role")
        options = S3Options(endpoint_url="http://127.0.0.1:9", credentials_timeout_s=0.3)
        began = time.monotonic()
        with pytest.raises(CredentialsError, match=r"within 0\.3 s \(looked in"):
            S3Source("s3://bucket/m/", options)
        assert time.monotonic() - began < 2, "the SDK's own bounds add up to 9 s"


def test_missing_credentials_are_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15."""
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    with scripted_store(lambda asked: Answer(404)) as metadata, scripted_store(answered) as store:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", metadata.endpoint)
        with S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint)) as source:
            asked = len(metadata.asked)
            for _ in range(3):
                with pytest.raises(CredentialsError, match="anonymous"):
                    read(source)
        assert len(metadata.asked) == asked
        assert asked <= 3
        assert store.asked == []


def test_a_proxy_is_passed_by_for_hosts_that_need_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:proxypassword@127.0.0.1:9")
    with scripted_store(answered) as store:
        options = S3Options(endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source, pytest.raises(ConnectionFailed) as failed:
            read(source)
        assert "by the proxy http://127.0.0.1:9" in failed.value.message
        assert proxy_to(source.store) == "http://127.0.0.1:9"
        assert "proxypassword" not in str(failed.value.to_dict())
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        with S3Source("s3://bucket/m/", options) as source:
            assert read(source) == CONTENT[8 * KIB : 16 * KIB]
            assert proxy_to(source.store) is None


def test_a_host_without_an_address_is_told_from_one_that_does_not_answer() -> None:
    options = S3Options(endpoint_url="http://no-such-host.invalid")
    with S3Source("s3://bucket/m/", options) as source, pytest.raises(NameNotResolved, match=r"no-such-host\.invalid"):
        read(source)


def test_credentials_in_an_address_are_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID") as refused:
        S3Source("s3://AKIAKEY:sosecret@bucket/m/")
    assert "sosecret" not in str(refused.value.to_dict())


def test_threads_that_are_refused_at_once_share_the_new_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S-18."""
    ready = threading.Barrier(4)

    def script(asked: Asked) -> Answer:
        if "OLDKEY" not in asked.headers["authorization"]:
            return part(CONTENT, asked)
        ready.wait(10)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "NEWKEY")
        return error(403, "ExpiredToken")

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLDKEY")
    with opened(script) as (store, source):
        threads = [threading.Thread(target=read, args=(source,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.asked) == 8
