"""Ranges share one request that the SDK made and signed."""

from __future__ import annotations

from typing import Any

import boto3.session
import pytest

from adapter.errors import Throttled
from adapter.storage.s3_requests import S3Requests
from tests.support.scripted_s3 import CONTENT, opened
from tests.support.scripted_store import Answer, Asked, error, part, scripted_store
from tests.support.stores import CREDENTIALS


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def test_the_installed_sdk_shows_what_it_would_send() -> None:
    """It is asked by names that are not all public; when this fails, each range is built by it, slower."""
    with scripted_store(lambda asked: part(CONTENT, asked)) as store:
        client: Any = boto3.session.Session().client("s3", endpoint_url=store.endpoint)
        built: list[object] = []
        client.meta.events.register("before-call.s3.GetObject", lambda **_: built.append(None))
        requests = S3Requests()
        for start in (0, 100, 200):
            asked = {"Range": f"bytes={start}-{start + 99}", "IfMatch": '"v"'}
            answer = requests.get_object(client, Bucket="bucket", Key="a", **asked)
            assert answer["Body"].read() == CONTENT[start : start + 100]
        client.close()
    assert len(built) == 1
    assert [each.headers["range"] for each in store.asked] == ["bytes=0-99", "bytes=100-199", "bytes=200-299"]
    assert all(each.headers["if-match"] == '"v"' for each in store.asked)


def test_a_range_is_no_part_of_what_is_signed() -> None:
    """A signature over one range would refuse the next."""
    with opened(lambda asked: part(CONTENT, asked)) as (store, source):
        source.read_into("a", 0, memoryview(bytearray(10)), version="e1")
        source.read_into("a", 10, memoryview(bytearray(10)), version="e1")
    for asked in store.asked:
        signed = asked.headers["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert "host" in signed
        assert not {"range", "if-match"}.intersection(signed)


def test_another_object_has_a_request_of_its_own() -> None:
    with opened(lambda asked: part(CONTENT, asked)) as (store, source):
        for key in ("a", "b", "a"):
            source.read_into(key, 0, memoryview(bytearray(10)))
    assert [asked.path.rpartition("/")[2] for asked in store.asked] == ["a", "b", "a"]


def test_what_the_store_refuses_is_told_as_ever() -> None:
    answers = iter([error(503, "SlowDown", retry_after="7")])

    def script(asked: Asked) -> Answer:
        return next(answers, None) or part(CONTENT, asked)

    with opened(script) as (_, source):
        with pytest.raises(Throttled) as caught:
            source.read_into("a", 0, memoryview(bytearray(10)))
        assert caught.value.fields["retry_after_s"] == 7
        assert source.read_into("a", 0, memoryview(bytearray(10))).length_bytes == 10
