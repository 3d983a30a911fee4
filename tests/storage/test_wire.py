"""Bodies received straight from their sockets: whole, broken off, slow, and followed by another on the connection."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.errors import ConnectionFailed, StorageError
from adapter.storage.base import RangeRequest
from adapter.storage.s3 import S3Options, S3Source
from adapter.storage.watch import ReadWatch
from tests.support.certificates import write_certificate
from tests.support.scripted_store import Answer, Asked, ScriptedStore, part, scripted_store
from tests.support.stores import CREDENTIALS

KIB = 1024
CONTENT = hashlib.shake_128(b"wire").digest(640 * KIB)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "certificate.pem")


class Script:
    """What the store answers: ranges, with changes."""

    def __init__(self) -> None:
        self.cut: int | None = None
        self.then: str = ""
        self.drip_s = 0.0

    def __call__(self, asked: Asked) -> Answer:
        answer = part(CONTENT, asked)
        if self.cut is None and not self.then and not self.drip_s:
            return answer
        headers = {**answer.headers, "Content-Length": str(len(answer.body))}
        return Answer(206, headers, answer.body[: self.cut], then=self.then, drip_s=self.drip_s)


@pytest.fixture(params=["http", "https"])
def opened(
    request: pytest.FixtureRequest, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Script, ScriptedStore, S3Source]]:
    """The store's script, the store, and a source whose silence is 0.6 s at the longest."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
    script = Script()
    with scripted_store(script, certificate=certificate if request.param == "https" else None) as store:
        options = S3Options(connections=2, timeout_s=0.6, endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source:
            yield script, store, source


def collect(source: S3Source, watch: ReadWatch, into: bytearray, chunk_bytes: int = 64 * KIB) -> None:
    buffer = memoryview(bytearray(chunk_bytes))
    for answer in source.read_chunks(RangeRequest("a", 0, len(CONTENT), watch=watch), buffer):
        into += buffer[: answer.length_bytes]


@pytest.mark.parametrize("chunk_bytes", [1000, 16 * KIB, 50_000, 64 * KIB, 1024 * KIB])
def test_bodies_arrive_whole_one_after_another_on_one_connection(
    opened: tuple[Script, ScriptedStore, S3Source], chunk_bytes: int
) -> None:
    _, store, source = opened
    for _ in range(3):
        found = bytearray()
        collect(source, ReadWatch(), found, chunk_bytes)
        assert found == CONTENT
    assert store.connections <= 1 + store.endpoint.startswith("https")


def test_a_body_that_is_broken_off_gives_no_other_bytes_than_the_object_has(
    opened: tuple[Script, ScriptedStore, S3Source],
) -> None:
    """What lies in the socket at that moment is encrypted where the connection is."""
    _, _, source = opened
    watch, found, buffer = ReadWatch(), bytearray(), memoryview(bytearray(32 * KIB))
    try:
        for answer in source.read_chunks(RangeRequest("a", 0, len(CONTENT), watch=watch), buffer):
            found += buffer[: answer.length_bytes]
            watch.interrupt("it is tested")
    except StorageError:
        pass
    assert len(found) >= 32 * KIB
    assert found == CONTENT[: len(found)]


def test_silence_ends_a_body_and_what_came_before_is_given_out(
    opened: tuple[Script, ScriptedStore, S3Source],
) -> None:
    """S-09."""
    script, _, source = opened
    script.cut, script.then = 100 * KIB + 7, "stall"
    found = bytearray()
    begun_s = time.monotonic()
    with pytest.raises(ConnectionFailed):
        collect(source, ReadWatch(), found)
    assert found == CONTENT[: 100 * KIB + 7]
    assert time.monotonic() - begun_s >= 0.6


def test_a_broken_connection_gives_out_what_came(opened: tuple[Script, ScriptedStore, S3Source]) -> None:
    """S-09."""
    script, _, source = opened
    script.cut, script.then = 100 * KIB + 7, "close"
    found = bytearray()
    with pytest.raises(StorageError) as caught:
        collect(source, ReadWatch(), found)
    assert found == CONTENT[: 100 * KIB + 7]
    assert caught.value.fields["received_bytes"] == len(found)


def test_a_slow_body_is_seen_to_move_before_the_buffer_is_full(
    opened: tuple[Script, ScriptedStore, S3Source],
) -> None:
    script, _, source = opened
    script.drip_s = 0.005
    seen: list[int] = []

    class Watch(ReadWatch):
        def received(self, count: int) -> None:
            super().received(count)
            seen.append(self.received_bytes)
            if len(seen) >= 4:
                self.interrupt("enough was seen")

    with pytest.raises(StorageError):
        collect(source, Watch(), bytearray())
    assert 0 < seen[0] < seen[1] < seen[2] < 16 * KIB
