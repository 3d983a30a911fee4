"""Model hubs: one commit, tokens that go nowhere else, refusals by their cause."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from adapter.errors import AccessDenied, ConfigurationError, ObjectNotFound, StoreFailed
from adapter.settings import Secret
from adapter.storage.access import Access
from adapter.storage.hub import HubSource, parse_hub
from adapter.storage.sources import open_source
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from tests.support.scripted_store import Answer, scripted_store
from tests.support.shard_bytes import sharded
from tests.support.streams import contents
from tests.support.web_servers import Hub, running_hub

TOKEN = "hf_sosecret"
OBJECTS = sharded(3, 20_000, {"config.json": b"{}", "tokenizer.json": b'{"model": {}}'})


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("hf://gpt2", ("gpt2", "main", "")),
        ("hf://gpt2@v1", ("gpt2", "v1", "")),
        ("hf://org/model", ("org/model", "main", "")),
        ("hf://org/model/", ("org/model", "main", "")),
        ("hf://org/model@refs%2Fpr%2F1/unet/fp16", ("org/model", "refs/pr/1", "unet/fp16")),
    ],
)
def test_an_address_names_model_revision_and_folder(address: str, parsed: tuple[str, str, str]) -> None:
    assert parse_hub(address) == parsed


@pytest.mark.parametrize(
    "address", ["hf://", "hf://datasets/x", "hf://a b/c", "hf://org/..", "hf://org/m/../x", "hf:///x"]
)
def test_an_address_that_names_no_model_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_hub(address)


def test_a_model_is_streamed_and_the_token_goes_to_the_hub_alone(tmp_path: Path) -> None:
    hub = Hub(token=TOKEN, large_bytes=1000, page=2)
    for name, content in OBJECTS.items():
        hub.put(name, content)
    with running_hub(hub) as (server, files):
        access = Access(hub_endpoint=server.endpoint, hub_token=Secret(TOKEN))
        options = StreamOptions(address="hf://org/model", connections=4, part_bytes=4096)
        for number in range(2):
            files.asked.clear()
            with open_source("hf://org/model", connections=4, access=access) as source:
                listed = {info.key: info.version for info in source.list()}
                with Streamer(source, Cache(tmp_path), options) as streamer:
                    manifest = streamer.prepare()
                    manifest.write(tmp_path / "weights.json")
                    streamer.run()
            assert contents(manifest) == OBJECTS
            shown = [repr(source), repr(access), repr(manifest)]
            shown += [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
            assert not [text for text in shown if TOKEN in text or "sig0" in text]
            assert bool(files.asked) == (number == 0), "what is cached is not fetched again"
        assert not [asked for asked in files.asked if "authorization" in asked.headers]
        assert all(asked.headers.get("authorization") == f"Bearer {TOKEN}" for asked in server.asked)
    for name, content in OBJECTS.items():
        if len(content) >= hub.large_bytes:
            assert listed[name] == hashlib.sha256(content).hexdigest()


def test_a_place_whose_signature_has_ended_is_asked_for_again() -> None:
    """S-18."""
    hub = Hub(large_bytes=100)
    hub.put("a", bytes(1000))
    with running_hub(hub) as (server, files):
        with HubSource("hf://org/model", access=Access(hub_endpoint=server.endpoint)) as source:
            buffer = memoryview(bytearray(100))
            first = source.read_into("a", 0, buffer)
            hub.signature += 1
            assert source.read_into("a", 100, buffer, version=first.info.version) == first
        assert [asked.span[0] for asked in files.asked] == [0, 100, 100]


def test_a_branch_that_moves_under_way_mixes_nothing() -> None:
    """S-10."""
    hub = Hub()
    hub.put("a", b"1" * 200)
    hub.put("b", b"1" * 200)
    with running_hub(hub) as (server, _):
        with HubSource("hf://org/model", access=Access(hub_endpoint=server.endpoint)) as source:
            assert len(list(source.list())) == 2
            hub.put("b", b"2" * 200)
            buffer = bytearray(200)
            source.read_into("b", 0, memoryview(buffer))
            assert buffer == b"1" * 200
        assert sum("/revision/" in asked.path for asked in server.asked) == 1


def listing(address: str, access: Access) -> list[str]:
    with HubSource(address, access=access) as source:
        return [info.key for info in source.list()]


def test_what_is_private_or_missing_is_named_with_what_to_do() -> None:
    hub = Hub(token=TOKEN)
    hub.put("a", b"1")
    with running_hub(hub) as (server, _):
        access = Access(hub_endpoint=server.endpoint, hub_token=Secret(TOKEN))
        with pytest.raises(ObjectNotFound, match="no such model.*set HF_TOKEN"):
            listing("hf://org/model", replace(access, anonymous=True))
        assert "authorization" not in server.asked[0].headers
        assert listing("hf://org/model", access) == ["a"]
        with pytest.raises(ObjectNotFound, match="no such revision"):
            listing("hf://org/model@other", access)
        with (
            HubSource("hf://org/model", access=access) as source,
            pytest.raises(ObjectNotFound, match="b: no such file"),
        ):
            source.read_into("b", 0, memoryview(bytearray(1)))


def test_a_gated_model_is_told_from_a_missing_one() -> None:
    with scripted_store(lambda asked: Answer(403, {"X-Error-Code": "GatedRepo"})) as server:
        access = Access(hub_endpoint=server.endpoint)
        with pytest.raises(AccessDenied, match="gated"):
            listing("hf://org/model", access)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"sha": "../x"}', b"\xff"])
def test_a_hub_that_makes_no_sense_is_no_crash(body: bytes) -> None:
    with scripted_store(lambda asked: Answer(200, {}, body)) as server:
        access = Access(hub_endpoint=server.endpoint)
        with pytest.raises(StoreFailed):
            listing("hf://org/model", access)
