"""Uploads against a store that compares every checksum it is given."""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import (
    AccessDenied,
    ChecksumMismatch,
    ConfigurationError,
    ObjectChanged,
    StorageError,
    StoreFailed,
    Throttled,
)
from adapter.settings import Secret
from adapter.storage.s3 import S3Options
from adapter.storage.s3_upload import LEAST_PART_BYTES, MOST_PARTS, S3Target, Uploaded, UploadOptions, upload_part_bytes
from adapter.streaming.integrity import CRC32, CRC64NVME
from tests.support.stores import CREDENTIALS
from tests.support.upload_store import Fault, Stored, UploadStore, upload_store

MEBIBYTE = 1 << 20
LONG = random.Random(1).randbytes(11 * MEBIBYTE + 17)
KEY = "b/m/model.safetensors"
needs_crt = pytest.mark.skipif(not CRC64NVME.available, reason="needs the extra crc")


def options(**changes: Any) -> UploadOptions:
    values: dict[str, Any] = {
        "checksum": CRC32,
        "read_bytes": MEBIBYTE,
        "connections": 3,
        "attempts": 3,
        "first_backoff_s": 0.001,
    }
    return UploadOptions(**(values | changes))


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_CONFIG_FILE": os.devnull, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def target(*faults: Fault, **settings: Any) -> Iterator[tuple[UploadStore, S3Target]]:
    with (
        upload_store(faults=faults, **settings) as store,
        S3Target("s3://b/m/", S3Options(endpoint_url=store.endpoint, timeout_s=5)) as place,
    ):
        yield store, place


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(LONG)
    return path


def put(place: S3Target, path: Path, **changes: Any) -> Uploaded:
    return place.upload(path, "model.safetensors", options(**changes))


@pytest.mark.parametrize("checksum", [CRC32, pytest.param(CRC64NVME, marks=needs_crt), None], ids=str)
def test_a_long_file_goes_in_parts_whose_checksums_make_that_of_the_whole(file: Path, checksum: Any) -> None:
    """The store refuses a wrong one of either: it compares both."""
    with target() as (store, place):
        counted: list[int] = []
        done = place.upload(file, "model.safetensors", options(checksum=checksum), counted.append)
        assert store.objects[KEY].data == LONG
        assert done == Uploaded("model.safetensors", len(LONG), len(LONG), 3)
        assert sum(counted) == len(LONG)
        assert store.kinds() == ["create", "part", "part", "part", "complete"]
        lengths = sorted(length for kind, _, length in store.log if kind == "part")
        assert lengths == [MEBIBYTE + 17, 5 * MEBIBYTE, 5 * MEBIBYTE]


@pytest.mark.parametrize("size_bytes", [0, 1, LEAST_PART_BYTES])
@pytest.mark.parametrize("checksum", [CRC32, None], ids=str)
def test_a_short_file_goes_in_one_request(tmp_path: Path, size_bytes: int, checksum: Any) -> None:
    (tmp_path / "x").write_bytes(LONG[:size_bytes])
    with target() as (store, place):
        assert put(place, tmp_path / "x", checksum=checksum).parts == 1
        assert (store.kinds(), store.objects[KEY].data) == (["put"], LONG[:size_bytes])


def test_what_is_there_is_not_sent_again(file: Path) -> None:
    with target() as (store, place):
        put(place, file)
        sent: list[int] = []
        assert place.upload(file, "model.safetensors", options(), sent.append).sent_bytes == 0
        assert sum(sent) == len(LONG)
        assert store.kinds().count("part") == 3
        assert put(place, file, always=True).sent_bytes == len(LONG)


def test_other_content_of_the_same_size_is_replaced(file: Path) -> None:
    with target() as (store, place):
        put(place, file)
        file.write_bytes(LONG[:-1] + bytes([LONG[-1] ^ 1]))
        assert put(place, file).sent_bytes == len(LONG)
        assert store.objects[KEY].data == file.read_bytes()


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("part", None),
        *(
            (kind, answer)
            for kind in ("create", "part", "complete")
            for answer in ((503, "SlowDown"), (500, "Internal"))
        ),
    ],
)
def test_what_can_go_well_later_is_tried_again(file: Path, kind: str, answer: tuple[int, str] | None) -> None:
    """None: a bit was flipped on the way, and the store's comparison finds it."""
    with target(Fault(kind, answer, times=2)) as (store, place):
        put(place, file)
        assert store.objects[KEY].data == LONG
        assert not store.unfinished


def test_a_lost_answer_to_the_last_request_is_no_failure(file: Path) -> None:
    with target(Fault("complete", after=True)) as (store, place):
        assert put(place, file).sent_bytes == len(LONG)
        assert store.objects[KEY].data == LONG


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("part", (503, "SlowDown"), times=99, skip=1), Throttled),
        (Fault("part", (500, "InternalError"), times=99), StoreFailed),
        (Fault("part", (403, "AccessDenied"), skip=2), AccessDenied),
        (Fault("part", None, times=99, skip=1), StorageError),
        (Fault("complete", (403, "AccessDenied")), AccessDenied),
    ],
    ids=["throttled", "failed", "denied", "damaged", "not completed"],
)
def test_what_fails_for_good_is_aborted(file: Path, fault: Fault, error: type[StorageError]) -> None:
    """No part is left in the store, which would cost room and be seen by nobody."""
    with target(fault) as (store, place):
        with pytest.raises(error, match=r"s3://b/m/model\.safetensors"):
            put(place, file)
        assert not store.unfinished
        assert not store.objects
        assert store.kinds().count("part") <= 3 * 3
        assert store.kinds()[-1] == "abort"


def test_attempts_are_bounded(file: Path) -> None:
    """S-11: the SDK's own attempts do not multiply ours."""
    with target(Fault("create", (503, "SlowDown"), times=99)) as (store, place):
        with pytest.raises(Throttled):
            put(place, file)
        assert store.kinds() == ["create"] * 3


def test_a_file_that_changes_meanwhile_is_not_published(file: Path) -> None:
    def change(kind: str) -> None:
        if kind == "part":
            os.utime(file, (1, 1))

    with target(on_request=change) as (store, place):
        with pytest.raises(ObjectChanged, match="changed while it was sent"):
            put(place, file)
        assert not store.objects
        assert not store.unfinished


def test_another_writer_is_noticed(file: Path) -> None:
    with target() as (store, place):

        class Overwritten(dict[str, Stored]):
            def __setitem__(self, key: str, value: Stored) -> None:
                super().__setitem__(key, Stored(value.data[:-1], value.headers))

        store.objects = Overwritten()
        with pytest.raises(ChecksumMismatch, match=f"{len(LONG) - 1} bytes where {len(LONG)} bytes were sent"):
            put(place, file)


def test_a_store_without_these_checksums_is_told_of_and_md5_works(file: Path) -> None:
    """S-13"""
    with target(knows_checksums=False) as (store, place):
        with pytest.raises(StorageError, match="--checksum md5"):
            put(place, file)
        put(place, file, checksum=None)
        assert store.objects[KEY].data == LONG


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with target() as (_, place), pytest.raises(ConfigurationError, match="gone cannot be read"):
        put(place, tmp_path / "gone")


@given(st.integers(0, 5 << 40), st.integers(1, 1 << 30))
def test_parts_hold_whole_ranges_of_the_reader_within_the_limits(size_bytes: int, read_bytes: int) -> None:
    part_bytes = upload_part_bytes(size_bytes, read_bytes)
    assert part_bytes % read_bytes == 0
    assert part_bytes >= LEAST_PART_BYTES
    assert -(-size_bytes // part_bytes) <= MOST_PARTS
    assert part_bytes < max(LEAST_PART_BYTES, -(-size_bytes // MOST_PARTS)) + read_bytes


def test_a_place_for_several_objects_is_wanted() -> None:
    with pytest.raises(ConfigurationError, match="is one object"):
        S3Target("s3://b/m/model.safetensors", S3Options(endpoint_url="http://127.0.0.1:9"))


def test_terms_of_the_bucket_go_with_every_request(file: Path) -> None:
    """S-14: also those that HEAD and the parts need."""
    key = base64.b64encode(bytes(range(32))).decode()
    with upload_store() as store:
        terms = S3Options(endpoint_url=store.endpoint, requester_pays=True, customer_key=Secret(key))
        with S3Target("s3://b/m/", terms) as place:
            put(place, file)
    assert {seen.get("x-amz-request-payer") for seen in store.seen} == {"requester"}
    assert {seen.get("x-amz-server-side-encryption-customer-key") for seen in store.seen} == {key}
