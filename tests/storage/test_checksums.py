"""Checksums of whole objects, as stores keep them."""

from __future__ import annotations

import base64
import zlib
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from adapter.errors import ConnectionFailed, StorageError
from adapter.storage.checksums import StoredChecksum, from_s3, stored_checksum
from adapter.storage.files import FileSource
from adapter.storage.s3 import S3Source

VALUE = base64.b64encode(bytes(range(8))).decode()


def test_the_checksum_of_the_whole_object_is_taken() -> None:
    answer = {"ChecksumCRC64NVME": VALUE, "ChecksumType": "FULL_OBJECT", "ETag": '"x"'}
    assert from_s3(answer) == StoredChecksum("crc64nvme", "0001020304050607")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"ChecksumCRC32": "AAAAAA==", "ChecksumType": "COMPOSITE"},
        {"ChecksumSHA256": f"{VALUE}-3"},
        {"ChecksumCRC32": "not base64!"},
        {"ChecksumCRC32": None},
        {"ChecksumMD5": VALUE},
    ],
)
def test_what_is_no_checksum_of_the_whole_object_is_none(answer: dict[str, object]) -> None:
    assert from_s3(answer) is None


def test_a_source_that_keeps_none_or_cannot_be_asked_gives_none(tmp_path: Path) -> None:
    class Broken:
        def stored_checksum(self, key: str, *, version: str | None = None) -> StoredChecksum | None:
            raise ConnectionFailed("gone", key=key)

    assert stored_checksum(FileSource(tmp_path), "m", "v") is None
    assert stored_checksum(Broken(), "m", "v") is None


def test_s3_says_what_was_given_at_the_upload(monkeypatch: pytest.MonkeyPatch) -> None:
    """D4"""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    server = ThreadedMotoServer(port=0)
    server.start()
    try:
        host, port = server.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        client = boto3.client("s3")
        client.create_bucket(Bucket="bucket")
        client.put_object(Bucket="bucket", Key="m/x", Body=b"content", ChecksumAlgorithm="CRC32")
        with S3Source("s3://bucket/m/") as source:
            found = source.stored_checksum("x")
            with pytest.raises(StorageError):
                source.stored_checksum("y")
        assert found == StoredChecksum("crc32", f"{zlib.crc32(b'content'):08x}")
    finally:
        server.stop()
