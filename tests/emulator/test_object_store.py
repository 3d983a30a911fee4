"""The embedded object store: what it answers, counts and slows down, as a child process over TCP."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3.session
import httpx
import pytest

from adapter.storage.s3 import S3Options, S3Source
from tests.support.stores import CREDENTIALS, REPOSITORY, Store, running_store

MEBIBYTE = 1 << 20
CONTENT = bytes(range(256)) * 16


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("store")) as running:
        running.put("bucket/a", CONTENT)
        running.put("bucket/empty", b"")
        yield running


@pytest.mark.parametrize(
    ("asked", "status", "label", "body"),
    [
        (None, 200, None, CONTENT),
        ("bytes=0-0", 206, "bytes 0-0/4096", CONTENT[:1]),
        ("bytes=100-199", 206, "bytes 100-199/4096", CONTENT[100:200]),
        ("bytes=4000-", 206, "bytes 4000-4095/4096", CONTENT[4000:]),
        ("bytes=4000-9999", 206, "bytes 4000-4095/4096", CONTENT[4000:]),
        ("bytes=-10", 206, "bytes 4086-4095/4096", CONTENT[-10:]),
        ("bytes=-9999", 206, "bytes 0-4095/4096", CONTENT),
        ("bytes=4096-", 416, "bytes */4096", None),
        ("bytes=-0", 416, "bytes */4096", None),
        ("bytes=9-3", 200, None, CONTENT),
        ("bytes=0-1,5-6", 200, None, CONTENT),
        ("bytes=-", 200, None, CONTENT),
        ("lines=0-1", 200, None, CONTENT),
        ("bytes=\u0661-\u0662".encode().decode("latin-1"), 200, None, CONTENT),
    ],
)
def test_ranges_are_answered_as_the_standard_says(
    store: Store, asked: str | None, status: int, label: str | None, body: bytes | None
) -> None:
    headers = {b"Range": asked.encode("latin-1")} if asked else {}
    answer = httpx.get(f"{store.endpoint}/bucket/a", headers=headers)
    assert (answer.status_code, answer.headers.get("content-range")) == (status, label)
    assert body is None or answer.content == body


def test_a_read_can_be_pinned_to_a_version(store: Store) -> None:
    store.put("bucket/pinned", b"one")
    url = f"{store.endpoint}/bucket/pinned"
    etag = httpx.get(url).headers["etag"]
    assert httpx.get(url, headers={"If-Match": etag}).content == b"one"
    assert httpx.get(url, headers={"If-Match": f'"x", {etag}'}).status_code == 200
    assert httpx.get(url, headers={"If-Match": "*"}).status_code == 200
    store.put("bucket/pinned", b"two")
    refused = httpx.get(url, headers={"If-Match": etag})
    assert (refused.status_code, "PreconditionFailed" in refused.text) == (412, True)


@pytest.mark.parametrize(
    "path", ["/bucket/absent", "/bucket/a/below", "/absent/a", "/bucket/..%2F..%2Fetc%2Fhostname", "/bucket/%00"]
)
def test_what_is_not_there_is_an_s3_error(store: Store, path: str) -> None:
    host, _, port = store.endpoint.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port))
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"<Code>NoSuch" in answer.read()
    connection.close()


def test_nothing_can_be_written(store: Store) -> None:
    assert httpx.put(f"{store.endpoint}/bucket/a", content=b"x").status_code == 405
    assert httpx.delete(f"{store.endpoint}/bucket/a").status_code == 405
    assert httpx.get(f"{store.endpoint}/bucket/a").content == CONTENT


def test_head_gives_what_get_would_without_the_body(store: Store) -> None:
    head, get = (httpx.request(method, f"{store.endpoint}/bucket/a") for method in ("HEAD", "GET"))
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "last-modified", "accept-ranges"):
        assert head.headers[name] == get.headers[name]


@pytest.fixture
def client(store: Store) -> Iterator[Any]:
    session = boto3.session.Session(
        aws_access_key_id=CREDENTIALS["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=CREDENTIALS["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-1",
    )
    client: Any = session.client("s3", endpoint_url=store.endpoint)
    yield client
    client.close()


def test_a_long_listing_comes_in_pages_and_in_order(store: Store, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-16: 1 205 objects, and no sibling whose name begins the same."""
    names = [f"p/{number:04d}" for number in range(1203)] + ["p/sub/x", "p/\U0001f600"]
    for name in [*names, "p-2/other"]:
        store.put(f"long/{name}", b"1")
    pages = list(client.get_paginator("list_objects_v2").paginate(Bucket="long", Prefix="p/"))
    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    assert [len(page["Contents"]) for page in pages] == [1000, 205]
    assert keys == sorted(names, key=str.encode)
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    with S3Source("s3://long/p", S3Options(connections=2)) as source:
        assert len(list(source.list())) == 1205


def test_a_listing_can_be_cut_into_folders(store: Store, client: Any) -> None:
    for name in ("d/a", "d/x/1", "d/x/2", "d/y/1", "d/z"):
        store.put(f"folders/{name}", b"1")
    got = client.list_objects_v2(Bucket="folders", Prefix="d/", Delimiter="/")
    assert [entry["Key"] for entry in got["Contents"]] == ["d/a", "d/z"]
    assert [entry["Prefix"] for entry in got["CommonPrefixes"]] == ["d/x/", "d/y/"]
    paged = client.get_paginator("list_objects_v2").paginate(
        Bucket="folders", Prefix="d/", Delimiter="/", PaginationConfig={"PageSize": 1}
    )
    assert sum(page["KeyCount"] for page in paged) == 4


def test_links_are_followed_but_not_in_circles(store: Store, client: Any) -> None:
    store.put("links/m/a", b"content")
    (store.root / "links" / "m" / "b").symlink_to(store.root / "bucket" / "a")
    (store.root / "links" / "m" / "circle").symlink_to(store.root / "links")
    keys = [entry["Key"] for entry in client.list_objects_v2(Bucket="links")["Contents"]]
    assert keys == ["m/a", "m/b"]
    assert httpx.get(f"{store.endpoint}/links/m/b").content == CONTENT


def test_requests_are_counted_with_the_bytes_that_were_sent(store: Store) -> None:
    store.reset()
    httpx.get(f"{store.endpoint}/bucket/a", headers={"Range": "bytes=0-99"})
    httpx.get(f"{store.endpoint}/bucket/a", headers={"Range": "bytes=100-299"})
    httpx.head(f"{store.endpoint}/bucket/a")
    assert store.stats() == {
        "requests": 3,
        "bytes_sent": 300,
        "by_key": {"bucket/a": {"requests": 3, "bytes_sent": 300}},
    }
    first = store.log()[0]
    assert (first["method"], first["range"], first["status"], first["bytes_sent"]) == ("GET", "bytes=0-99", 206, 100)
    assert abs(first["t"] - time.time()) < 60
    assert 0 < first["start_ns"] <= first["stop_ns"] <= time.monotonic_ns()


def test_a_limited_link_is_as_fast_as_it_says_and_shared(tmp_path: Path) -> None:
    with running_store(tmp_path, link="400Mbps") as limited:
        limited.put("b/x", bytes(10 * MEBIBYTE))
        with ThreadPoolExecutor(4) as pool:
            began = time.monotonic()
            sizes = list(pool.map(lambda _: len(httpx.get(f"{limited.endpoint}/b/x").content), range(4)))
            took_s = time.monotonic() - began
    assert sizes == [10 * MEBIBYTE] * 4
    assert took_s >= 40 * MEBIBYTE / 50e6 * 0.95, "no faster than the link"


def test_one_connection_and_the_first_byte_can_be_slow(tmp_path: Path) -> None:
    with running_store(tmp_path, connection="80Mbps", first_byte_ms=200) as limited:
        limited.put("b/x", bytes(2 * MEBIBYTE))
        began = time.monotonic()
        with httpx.stream("GET", f"{limited.endpoint}/b/x") as answer:
            assert time.monotonic() - began >= 0.2
            assert len(answer.read()) == 2 * MEBIBYTE
        assert time.monotonic() - began >= 0.2 + 2 * MEBIBYTE / 10e6 * 0.9


def test_a_client_that_goes_away_takes_no_more_of_the_link(tmp_path: Path) -> None:
    with running_store(tmp_path, link="80Mbps") as limited:
        limited.put("b/x", bytes(64 * MEBIBYTE))
        host, _, port = limited.endpoint.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as wire:
            wire.sendall(b"GET /b/x HTTP/1.1\r\nHost: x\r\n\r\n")
            assert wire.recv(100)
        deadline = time.monotonic() + 10
        while limited.log()[0]["stop_ns"] is None and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert limited.log()[0]["bytes_sent"] < 8 * MEBIBYTE


def test_the_command_writes_requests_down_and_ends_on_a_signal(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(b"content")
    log = tmp_path / "requests.jsonl"
    command = [sys.executable, "-m", "adapter.cli.store", str(tmp_path), "--port", "0", "--log", str(log)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        endpoint = json.loads(process.stdout.readline())["endpoint"]
        assert urllib.parse.urlsplit(endpoint).hostname == "127.0.0.1"
        assert httpx.get(f"{endpoint}/b/x").content == b"content"
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=10)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(line["key"], line["bytes_sent"]) for line in lines] == [("x", 7)]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["absent"], "absent is not a directory"),
        ([".", "--link", "fast"], "'fast' is no rate"),
        ([".", "--port", "-1"], "port -1"),
    ],
)
def test_a_store_that_cannot_start_says_why(tmp_path: Path, arguments: list[str], text: str) -> None:
    command = [sys.executable, "-m", "adapter.cli.store", *arguments]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ended.returncode == 10
    assert text in ended.stderr
    assert "Traceback" not in ended.stderr
