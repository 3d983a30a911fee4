"""Credentials that end in the middle of a stream (S-18), and secrets that get nowhere."""

from __future__ import annotations

import base64
import hashlib
import logging
import threading
import traceback
from pathlib import Path

import pytest

from adapter.errors import AdapterError, CredentialsExpired
from adapter.settings import Secret
from adapter.storage.retry import RetryPolicy
from adapter.storage.s3 import S3Options, S3Source
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from tests.support.scripted_store import Answer, Asked, error, part, scripted_store
from tests.support.shard_bytes import shard
from tests.support.streams import contents

KIB = 1024
MODEL = shard(1, 3072 * KIB)
NAME = "model.safetensors"
LISTING = (
    f"<ListBucketResult><Contents><Key>m/{NAME}</Key><Size>{len(MODEL)}</Size>"
    "<ETag>&quot;e1&quot;</ETag></Contents></ListBucketResult>"
).encode()
OPTIONS = StreamOptions(
    address="s3://bucket/m/",
    connections=4,
    part_bytes=64 * KIB,
    retry=RetryPolicy(attempts=2, throttled_attempts=2, first_backoff_s=0.01),
)


def answered(asked: Asked) -> Answer:
    return Answer(200, {}, LISTING) if "list-type" in asked.path else part(MODEL, asked)


def credentials(file: Path, key: str, secret: str, token: str) -> None:
    lines = ("[default]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {secret}")
    fresh = file.with_name("fresh")
    fresh.write_text("\n".join((*lines, f"aws_session_token = {token}", "")))
    fresh.rename(file)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "credentials"
    for name, value in {
        "AWS_SHARED_CREDENTIALS_FILE": str(file),
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    credentials(file, "KEYA", "secreta", "tokena")
    return file


def test_only_the_missing_ranges_are_fetched_with_new_credentials(file: Path, tmp_path: Path) -> None:
    """S-18."""
    lock, accepted = threading.Lock(), [0]

    def script(asked: Asked) -> Answer:
        with lock:
            if "KEYA" in asked.headers["authorization"]:
                accepted[0] += 1
                if accepted[0] > 10:
                    credentials(file, "KEYB", "secretb", "tokenb")
                    return error(400, "ExpiredToken")
        return answered(asked)

    with scripted_store(script) as store:
        source = S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint))
        with source, Streamer(source, Cache(tmp_path / "cache"), OPTIONS) as streamer:
            manifest = streamer.prepare()
            done = streamer.run()
        assert contents(manifest) == {NAME: MODEL}
        refused = accepted[0] - 10
        assert 1 <= refused <= OPTIONS.connections, "each thread meets the end at the most once"
        asked_bytes = (
            sum(asked.span[1] - asked.span[0] for asked in store.gets if "range" in asked.headers)
            - refused * OPTIONS.part_bytes
        )
        assert asked_bytes == len(MODEL), "finished ranges are kept"
        assert done.retries == 0, "nothing failed as far as the stream can see"


def test_without_new_ones_the_stream_ends_at_once(file: Path, tmp_path: Path) -> None:
    """S-18."""

    def script(asked: Asked) -> Answer:
        return error(400, "ExpiredToken") if asked.number > 10 else answered(asked)

    with scripted_store(script) as store:
        source = S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint))
        with source, Streamer(source, Cache(tmp_path / "cache"), OPTIONS) as streamer:
            streamer.prepare()
            with pytest.raises(CredentialsExpired, match="have expired"):
                streamer.run()
        assert len(store.asked) <= 10 + OPTIONS.connections


SECRETS = ("secreta", "tokena", "KEYA", base64.b64encode(b"k" * 32).decode(), "secret-of-the-store")


@pytest.mark.parametrize("code", [None, "ExpiredToken", "AccessDenied", "SignatureDoesNotMatch", "SlowDown", "Odd"])
def test_no_secret_gets_into_errors_logs_manifests_or_records(
    file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: str | None
) -> None:
    """S-18."""
    caplog.set_level(logging.INFO)

    def script(asked: Asked) -> Answer:
        return answered(asked) if code is None or asked.number < 5 else error(403, code)

    told: list[str] = []
    with scripted_store(script) as store:
        options = S3Options(endpoint_url=store.endpoint, customer_key=Secret(SECRETS[3]))
        source = S3Source("s3://bucket/m/", options)
        with source, Streamer(source, Cache(tmp_path / "cache"), OPTIONS) as streamer:
            manifest = streamer.prepare()
            manifest.write(tmp_path / "weights.json")
            told += [repr(source), repr(options), repr(streamer), repr(manifest), str(vars(streamer.timeline))]
            try:
                streamer.run()
                streamer.sync()
            except AdapterError as failed:
                told += [str(failed), repr(failed), str(failed.to_dict()), *traceback.format_exception(failed)]
        assert any(SECRETS[3] in str(asked.headers) for asked in store.asked), "they were sent"
    told.append(caplog.text)
    model = hashlib.sha256(MODEL).digest()
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != file and hashlib.sha256(path.read_bytes()).digest() != model:
            told.append(path.read_bytes().decode("latin-1"))
    assert len(told) > 6
    assert not [secret for secret in SECRETS for text in told if secret in text]
