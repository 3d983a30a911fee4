"""Web servers and signed addresses: answers that are wrong, redirects, secrets that go to one host alone."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConfigurationError,
    ConnectionFailed,
    CredentialsError,
    CredentialsExpired,
    NameNotResolved,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
    StoreFailed,
    Throttled,
    TlsFailed,
    WrongRange,
)
from adapter.storage.http import HttpSource
from adapter.storage.retry import RetryingSource, RetryPolicy
from adapter.storage.web_client import WebOptions
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from tests.support.scripted_s3 import CONTENT, KIB, QUICK, read
from tests.support.scripted_store import Answer, Asked, ScriptedStore, error, part, scripted_store
from tests.support.shard_bytes import shard, sharded
from tests.support.streams import contents
from tests.support.web_servers import Files, ranged

OPTIONS = WebOptions(connections=4, timeout_s=5)
NAME = "model.safetensors"


@contextmanager
def opened(script: Callable[[Asked], Answer]) -> Iterator[tuple[ScriptedStore, HttpSource]]:
    with scripted_store(script) as server, HttpSource(f"{server.endpoint}/m/", OPTIONS) as source:
        yield server, source


WRONG: dict[str, Callable[[Asked], Answer]] = {
    "whole body": lambda asked: Answer(200, {"ETag": '"e1"', "Accept-Ranges": "bytes"}, CONTENT),
    "another offset": lambda asked: part(CONTENT, asked, shift=-100),
    "no label": lambda asked: Answer(206, {"ETag": '"e1"'}, CONTENT[slice(*asked.span)]),
    "longer than its label": lambda asked: Answer(
        206, part(CONTENT, asked).headers, CONTENT[asked.span[0] : asked.span[1] + 10]
    ),
    "encoded": lambda asked: Answer(206, {**part(CONTENT, asked).headers, "Content-Encoding": "gzip"}, b"x" * 8 * KIB),
    "a log-in page": lambda asked: Answer(200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>log in</html>"),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_answer_that_is_not_the_range_asked_for_is_refused(name: str) -> None:
    """S-09."""
    with opened(WRONG[name]) as (_, source), pytest.raises(WrongRange):
        read(source)


REFUSED: list[tuple[Answer, type[AdapterError], str]] = [
    (Answer(404), ObjectNotFound, "a does not exist"),
    (error(403, "AccessDenied"), AccessDenied, "missing or not permitted"),
    (Answer(401), CredentialsError, "credentials"),
    (error(400, "ExpiredToken"), CredentialsExpired, "ExpiredToken"),
    (Answer(412), ObjectChanged, "replaced"),
    (Answer(429, {"Retry-After": "0"}), Throttled, "slow down"),
    (error(503, "SlowDown"), Throttled, "SlowDown"),
    (Answer(500), StoreFailed, "failed"),
    (Answer(408), ConnectionFailed, "timed out"),
    (Answer(410), StorageError, "refuses"),
]


@pytest.mark.parametrize(("answer", "kind", "text"), REFUSED)
def test_each_refusal_has_its_own_error(answer: Answer, kind: type[AdapterError], text: str) -> None:
    with opened(lambda asked: answer) as (server, source), pytest.raises(kind, match=text) as refused:
        read(source)
    assert type(refused.value) is kind
    assert "secret-of-the-store" not in str(refused.value.to_dict())
    assert len(server.asked) == 1


def test_a_broken_read_goes_on_where_it_ended() -> None:
    """S-08."""

    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        if asked.number > 1:
            return answer
        headers = {**answer.headers, "Content-Length": str(len(answer.body))}
        return Answer(206, headers, answer.body[: 3 * KIB], then="close")

    with opened(script) as (server, source), RetryingSource(source, QUICK) as retrying:
        assert read(retrying) == CONTENT[8 * KIB : 16 * KIB]
    assert [asked.span for asked in server.asked] == [(8 * KIB, 16 * KIB), (11 * KIB, 16 * KIB)]
    assert server.asked[1].headers["if-match"] == '"e1"'


@pytest.mark.parametrize("etag", ['"e1"', 'W/"e1"'])
def test_only_a_strong_tag_is_asked_for_but_each_is_compared(etag: str) -> None:
    """S-10: a weak tag in If-Match never matches (RFC 9110 section 13.1.1)."""
    with opened(lambda asked: part(CONTENT, asked, etag=etag if asked.number < 3 else '"e2"')) as (server, source):
        buffer = memoryview(bytearray(KIB))
        version = source.read_into("a", 0, buffer).info.version
        source.read_into("a", 0, buffer, version=version)
        with pytest.raises(ObjectChanged):
            source.read_into("a", 0, buffer, version=version)
    assert ("if-match" in server.asked[1].headers) == (etag == '"e1"')


def test_without_a_tag_the_date_tells_versions_apart() -> None:
    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        date = "Tue, 01 Jul 2025 10:00:00 GMT" if asked.number < 3 else "Wed, 02 Jul 2025 10:00:00 GMT"
        return Answer(206, {"Content-Range": answer.headers["Content-Range"], "Last-Modified": date}, answer.body)

    with opened(script) as (_, source):
        buffer = memoryview(bytearray(KIB))
        version = source.read_into("a", 0, buffer).info.version
        assert source.read_into("a", 0, buffer).info.version == version
        with pytest.raises(ObjectChanged):
            source.read_into("a", 0, buffer, version=version)


def test_what_has_no_sign_of_its_version_is_another_at_the_next_start() -> None:
    def script(asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        return Answer(206, {"Content-Range": answer.headers["Content-Range"]}, answer.body)

    buffer = memoryview(bytearray(KIB))
    with scripted_store(script) as server:
        versions = []
        for _ in range(2):
            with HttpSource(f"{server.endpoint}/m/", OPTIONS) as source:
                versions.append(source.read_into("a", 0, buffer).info.version)
                assert source.read_into("a", KIB, buffer, version=versions[-1]).length_bytes == KIB
    assert versions[0] != versions[1]


def test_a_redirect_is_followed_once_and_asked_for_anew_when_its_place_has_gone() -> None:
    signature = ["one"]

    def elsewhere(asked: Asked) -> Answer:
        assert "authorization" not in asked.headers, "the password is for the first host alone"
        assert "cookie" not in asked.headers
        return part(CONTENT, asked) if asked.path.endswith(f"sig={signature[0]}") else error(403, "AccessDenied")

    def first(asked: Asked) -> Answer:
        assert asked.headers["authorization"] == "Basic " + base64.b64encode(b"user:pa/ss").decode()
        return Answer(302, {"Location": f"{other.endpoint}/blob?sig={signature[0]}"})

    with scripted_store(elsewhere) as other, scripted_store(first) as server:
        address = server.endpoint.replace("//", "//user:pa%2Fss@")
        with HttpSource(f"{address}/m/", OPTIONS) as source:
            for _ in range(3):
                assert read(source) == CONTENT[8 * KIB : 16 * KIB]
            assert (len(server.asked), len(other.asked)) == (1, 3)
            signature[0] = "two"
            assert read(source) == CONTENT[8 * KIB : 16 * KIB]
            assert (len(server.asked), len(other.asked)) == (2, 5)


@pytest.mark.parametrize("target", ["/m/a", "file:///etc/passwd", "ftp://host/a"])
def test_a_redirect_that_leads_nowhere_ends(target: str) -> None:
    with opened(lambda asked: Answer(302, {"Location": target})) as (server, source), pytest.raises(StorageError):
        read(source)
    assert len(server.asked) <= 8


def test_a_mirror_without_a_listing_is_read_by_its_index(tmp_path: Path) -> None:
    """S-14."""
    objects = sharded(3, 20_000, {"config.json": b"{}"})
    with scripted_store(Files(objects, listed=False)) as server:
        address = f"{server.endpoint}/m/"
        assert contents_of(address, tmp_path) == objects


def test_a_plain_server_that_knows_no_ranges_is_read_from_the_beginning(tmp_path: Path) -> None:
    """S-09 (i): such as python -m http.server."""
    files = Files(sharded(2, 20_000, {"config.json": b"{}"}), listed=False)

    def script(asked: Asked) -> Answer:
        return files(replace(asked, headers={name: v for name, v in asked.headers.items() if name != "range"}))

    with scripted_store(script) as server:
        found = contents_of(f"{server.endpoint}/m/", tmp_path)
    assert found == {name: content for name, (content, _) in files.files.items()}


def test_a_signed_address_of_one_object_is_streamed_by_get_alone(tmp_path: Path) -> None:
    model = shard(1, 3 << 20)

    def script(asked: Asked) -> Answer:
        return ranged(model, asked, {"ETag": '"e1"'}) if asked.path == "/get?id=7&sig=s" else Answer(403)

    with scripted_store(script) as server:
        assert contents_of(f"{server.endpoint}/get?id=7&sig=s#{NAME}", tmp_path) == {NAME: model}
        assert {asked.method for asked in server.asked} == {"GET"}
        asked = len(server.asked)
        assert contents_of(f"{server.endpoint}/get?id=7&sig=s#{NAME}", tmp_path) == {NAME: model}
        assert len(server.asked) == asked + 1, "what is cached is not fetched again"


def contents_of(address: str, root: Path) -> Mapping[str, bytes]:
    options = StreamOptions(address=address, connections=4, part_bytes=256 * KIB, retry=RetryPolicy(attempts=2))
    with HttpSource(address, OPTIONS) as source, Streamer(source, Cache(root), options) as streamer:
        manifest = streamer.prepare()
        streamer.run()
        return contents(manifest)


SIGNED = (
    "X-Amz-Date=20200101T000000Z&X-Amz-Expires=60&X-Amz-Signature=sosecret",
    "Expires=1577836800&Signature=sosecret",
    "se=2020-01-01T00%3A01%3A00Z&sig=sosecret",
)


@pytest.mark.parametrize("query", SIGNED)
def test_a_signature_that_has_ended_is_told_from_one_that_is_wrong(query: str) -> None:
    """S-18."""
    with (
        scripted_store(lambda asked: error(403, "AccessDenied")) as server,
        HttpSource(f"{server.endpoint}/{NAME}?{query}", OPTIONS) as source,
        pytest.raises(CredentialsExpired, match="valid until 2020-01-01 00:0[01]:00Z"),
    ):
        list(source.list())


@pytest.mark.parametrize("code", [None, "AccessDenied", "InternalError"])
def test_no_secret_of_an_address_gets_into_errors_manifests_or_records(tmp_path: Path, code: str | None) -> None:
    model, told = shard(1, 3 << 20), []

    def script(asked: Asked) -> Answer:
        assert "sosecret" in asked.path
        return ranged(model, asked, {"ETag": '"e1"'}) if code is None or asked.number < 4 else error(403, code)

    with scripted_store(script) as server:
        address = f"{server.endpoint}/{NAME}?X-Amz-Signature=sosecret".replace("//", "//user:sopassword@")
        options = StreamOptions(address=address, connections=2, part_bytes=256 * KIB, retry=RetryPolicy(attempts=2))
        with HttpSource(address, OPTIONS) as source, Streamer(source, Cache(tmp_path), options) as streamer:
            manifest = streamer.prepare()
            manifest.write(tmp_path / "weights.json")
            told += [repr(source), repr(options), repr(manifest), source.store, str(vars(streamer.timeline))]
            try:
                streamer.run()
                streamer.sync()
            except AdapterError as failed:
                told += [repr(failed), str(failed.to_dict()), *traceback.format_exception(failed)]
    told += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    assert not [text for text in told if "sosecret" in text or "sopassword" in text]


def test_why_no_answer_came_is_told_apart() -> None:
    secret = "?sig=sosecret"
    with scripted_store(lambda asked: Answer()) as server:
        gone = server.endpoint
        plain = server.endpoint.replace("http:", "https:")
        with HttpSource(f"{plain}/{NAME}{secret}", OPTIONS) as source, pytest.raises(TlsFailed) as failed:
            list(source.list())
        texts = [str(failed.value.to_dict()), *traceback.format_exception(failed.value)]
    for address, kind in ((gone, ConnectionFailed), ("http://no-such-host.invalid", NameNotResolved)):
        with HttpSource(f"{address}/{NAME}{secret}", OPTIONS) as source, pytest.raises(kind) as missing:
            list(source.list())
        assert type(missing.value) is kind
        texts += [str(missing.value.to_dict()), *traceback.format_exception(missing.value)]
    assert not [text for text in texts if "sosecret" in text]


def test_the_proxy_of_the_environment_is_used_unless_the_host_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-15."""
    monkeypatch.setenv("HTTP_PROXY", "http://user:proxypassword@127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with opened(lambda asked: part(CONTENT, asked)) as (_, source):
        with pytest.raises(ConnectionFailed, match=r"by the proxy http://127\.0\.0\.1:9") as failed:
            read(source)
        assert "proxypassword" not in str(failed.value.to_dict())
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        assert read(source) == CONTENT[8 * KIB : 16 * KIB]


@pytest.mark.parametrize("key", ["../x", "a/../../x", "./a", "", "a//b"])
def test_a_key_that_leads_out_of_the_address_is_never_sent(key: str) -> None:
    """S-05."""
    with opened(lambda asked: part(CONTENT, asked)) as (server, source):
        with pytest.raises(AccessDenied, match="leads out"):
            source.read_into(key, 0, memoryview(bytearray(10)))
        assert server.asked == []


@pytest.mark.parametrize(
    "address", ["https://user:sosecret@/m", "https://host:port/m?x=sosecret", "http://[::1/?sosecret"]
)
def test_what_is_no_web_address_is_refused_and_its_secrets_not_repeated(address: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        HttpSource(address)
    assert "sosecret" not in str(refused.value.to_dict())


def test_connections_are_reused() -> None:
    """S-17."""
    with opened(lambda asked: part(CONTENT, asked)) as (server, source):
        for number in range(20):
            read(source, number * KIB, KIB)
    assert server.connections == 1
