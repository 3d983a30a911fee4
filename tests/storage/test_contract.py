"""What every source gives, held over all of them: memory, files, S3 against moto and the embedded store, web, hub."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from moto.server import ThreadedMotoServer

from adapter.errors import ObjectChanged, ObjectNotFound, StorageError
from adapter.settings import Secret
from adapter.storage.access import Access
from adapter.storage.base import ClosingSource, RangeRequest
from adapter.storage.memory import MemorySource, register_memory
from adapter.storage.sources import open_source
from tests.support.scripted_store import scripted_store
from tests.support.stores import CREDENTIALS, Store, running_store
from tests.support.web_servers import Files, Hub, running_hub

CONTENT = bytes(range(256)) * 40
HARD_KEYS = ("a b", "a+b", "a%2Bb", "100%", "한글", "\u00e9", "e\u0301", "unet/part-1", "q?x=1&y#z", "it's (1)!")


@dataclass
class World:
    """A store under test: what opens the source of its objects, and what replaces one of them."""

    open: Callable[[Mapping[str, bytes]], ClosingSource]
    put: Callable[[str, bytes], object]
    snapshot: bool = False
    """Whether an open source goes on reading what was there when it was opened."""


@pytest.fixture(scope="module")
def moto_client() -> Iterator[Any]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    session = boto3.session.Session("test", "test", region_name="us-east-1")
    client = session.client("s3", endpoint_url=f"http://{host}:{port}")
    yield client
    client.close()
    server.stop()


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(params=["memory", "files", "moto", "embedded", "http", "hub"])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    make = {"memory": _memory, "files": _files, "moto": _moto, "embedded": _embedded, "http": _http, "hub": _hub}
    return make[request.param](request, tmp_path, monkeypatch)


def _memory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    source = MemorySource({})

    def start(objects: Mapping[str, bytes]) -> ClosingSource:
        for key, content in objects.items():
            source.put(key, content)
        return open_source(register_memory("contract", source), connections=4)

    return World(start, source.put)


def _files(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    (tmp_path / "m").mkdir()

    def put(key: str, content: bytes) -> None:
        path = tmp_path / "m" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(path.name + ".new").write_bytes(content)
        path.with_name(path.name + ".new").rename(path)

    def start(objects: Mapping[str, bytes]) -> ClosingSource:
        for key, content in objects.items():
            put(key, content)
        return open_source(f"file://{tmp_path}/m", connections=4)

    return World(start, put)


def _moto(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    client = request.getfixturevalue("moto_client")
    endpoint = client.meta.endpoint_url
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": endpoint, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    bucket = f"contract-{abs(hash(request.node.nodeid))}"
    client.create_bucket(Bucket=bucket)

    def put(key: str, content: bytes) -> None:
        client.put_object(Bucket=bucket, Key=f"m/{key}", Body=content)

    return _s3_world(bucket, put)


def _embedded(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    store: Store = request.getfixturevalue("embedded")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"contract-{abs(hash(request.node.nodeid))}"
    (store.root / bucket).mkdir()
    return _s3_world(bucket, lambda key, content: store.put(f"{bucket}/m/{key}", content))


def _s3_world(bucket: str, put: Callable[[str, bytes], object]) -> World:
    def start(objects: Mapping[str, bytes]) -> ClosingSource:
        for key, content in objects.items():
            put(key, content)
        return open_source(f"s3://{bucket}/m", connections=4)

    return World(start, put)


def _http(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    files = Files()
    running = ExitStack()
    request.addfinalizer(running.close)
    server = running.enter_context(scripted_store(files))

    def start(objects: Mapping[str, bytes]) -> ClosingSource:
        for key, content in objects.items():
            files.put(key, content)
        return open_source(f"{server.endpoint}/m", connections=4)

    return World(start, files.put)


def _hub(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    hub = Hub(token="hf_secret", large_bytes=100, page=4)
    hub.put("README.md", b"outside")
    running = ExitStack()
    request.addfinalizer(running.close)
    server, _ = running.enter_context(running_hub(hub))
    access = Access(hub_endpoint=server.endpoint, hub_token=Secret("hf_secret"))

    def put(key: str, content: bytes) -> None:
        hub.put(f"m/{key}", content)

    def start(objects: Mapping[str, bytes]) -> ClosingSource:
        for key, content in objects.items():
            put(key, content)
        return open_source("hf://org/model/m", connections=4, access=access)

    return World(start, put, snapshot=True)


def _read(source: ClosingSource, key: str, start: int, length: int, version: str | None = None) -> bytes:
    buffer = bytearray(length)
    answer = source.read_into(key, start, memoryview(buffer), version=version)
    return bytes(buffer[: answer.length_bytes])


@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 10240), (17, 4096), (10239, 1), (10000, 5000), (0, 99999)])
def test_a_range_is_exactly_the_bytes_of_the_object(world: World, start: int, length: int) -> None:
    with world.open({"a": CONTENT}) as source:
        buffer = bytearray(b"\xff" * length)
        answer = source.read_into("a", start, memoryview(buffer))
    assert bytes(buffer[: answer.length_bytes]) == CONTENT[start : start + length]
    assert not buffer[answer.length_bytes :].strip(b"\xff"), "nothing is written beyond what was received"
    assert (answer.info.key, answer.info.size_bytes) == ("a", len(CONTENT))


@pytest.mark.parametrize("start", [len(CONTENT), len(CONTENT) + 5000])
def test_a_read_at_or_past_the_end_gives_no_bytes_but_the_size(world: World, start: int) -> None:
    with world.open({"a": CONTENT}) as source:
        answer = source.read_into("a", start, memoryview(bytearray(10)))
    assert (answer.length_bytes, answer.info.size_bytes) == (0, len(CONTENT))


@pytest.mark.parametrize("length", [0, 100])
def test_an_empty_object_is_read_without_an_error(world: World, length: int) -> None:
    """S-16."""
    with world.open({"empty": b"", "a": CONTENT}) as source:
        answer = source.read_into("empty", 0, memoryview(bytearray(length)))
        assert {info.key: info.size_bytes for info in source.list()}["empty"] == 0
    assert (answer.length_bytes, answer.info.size_bytes) == (0, 0)


def test_a_long_range_comes_in_order_through_a_short_buffer(world: World) -> None:
    with world.open({"a": CONTENT}) as source:
        buffer = memoryview(bytearray(1000))
        got = [
            bytes(buffer[: answer.length_bytes]) for answer in source.read_chunks(RangeRequest("a", 5, 9000), buffer)
        ]
    assert b"".join(got) == CONTENT[5:9005]
    assert [len(piece) for piece in got] == [1000] * 9


def test_a_read_that_is_left_early_does_not_disturb_the_next(world: World) -> None:
    with world.open({"a": CONTENT}) as source:
        for _ in range(10):
            buffer = memoryview(bytearray(100))
            chunks = source.read_chunks(RangeRequest("a", 0, len(CONTENT)), buffer)
            assert next(chunks).length_bytes == 100
            chunks.close()
        assert _read(source, "a", 300, 500) == CONTENT[300:800]


def test_a_pinned_read_is_refused_after_the_object_was_replaced(world: World) -> None:
    """S-10."""
    with world.open({"a": CONTENT}) as source:
        version = next(source.list()).version
        assert source.read_into("a", 0, memoryview(bytearray(1))).info.version == version
        assert _read(source, "a", 3, 7, version) == CONTENT[3:10]
        world.put("a", CONTENT[::-1])
        if world.snapshot:
            assert _read(source, "a", 3, 7, version) == CONTENT[3:10], "it is what was asked for"
            with pytest.raises(ObjectChanged):
                _read(source, "a", 3, 7, "another")
            with world.open({}) as later:
                assert _read(later, "a", 0, 4) == CONTENT[::-1][:4]
                assert next(later.list()).version != version
            return
        with pytest.raises(ObjectChanged) as refused:
            _read(source, "a", 3, 7, version)
        assert "a" in refused.value.message
        assert _read(source, "a", 0, 4) == CONTENT[::-1][:4], "unpinned, the new one is read"
        assert next(source.list()).version != version


def test_an_absent_object_is_named(world: World) -> None:
    with world.open({"a": CONTENT}) as source, pytest.raises(ObjectNotFound) as refused:
        _read(source, "unet/model-2.safetensors", 0, 10)
    assert "unet/model-2.safetensors" in refused.value.message
    assert not refused.value.retryable


def test_nothing_under_the_address_is_an_error(world: World) -> None:
    with world.open({}) as source, pytest.raises(ObjectNotFound):
        list(source.list())


def test_each_hard_key_reads_its_own_object(world: World) -> None:
    """S-12."""
    objects = {f"{key}.safetensors": f"content of {key!r}".encode() for key in HARD_KEYS}
    with world.open(objects) as source:
        listed = {info.key: info.size_bytes for info in source.list()}
        read = {key: _read(source, key, 0, 100) for key in objects}
    assert read == objects
    assert listed == {key: len(content) for key, content in objects.items()}


def test_many_threads_read_at_once(world: World) -> None:
    with world.open({"a": CONTENT}) as source, ThreadPoolExecutor(12) as pool:
        ready = threading.Barrier(12)

        def read(start: int) -> bytes:
            if start < 12:
                ready.wait()
            return _read(source, "a", start, 777)

        got = list(pool.map(read, range(200)))
    assert got == [CONTENT[start : start + 777] for start in range(200)]


def test_a_closed_source_refuses_reads(world: World) -> None:
    source = world.open({"a": CONTENT})
    source.close()
    with pytest.raises(StorageError):
        _read(source, "a", 0, 1)
    with pytest.raises(StorageError):
        list(source.list())
