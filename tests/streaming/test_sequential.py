"""Stores that answer every range with all of an object, over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from adapter.storage.s3 import S3Options, S3Source
from adapter.streaming.cache import Cache
from adapter.streaming.streamer import Streamer
from tests.support.scripted_store import Answer, Asked, ScriptedStore, scripted_store
from tests.support.shard_bytes import sharded
from tests.support.stores import CREDENTIALS
from tests.support.streams import MEBIBYTE, contents, options

OBJECTS = sharded(3, 6 * MEBIBYTE)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)


def listing() -> Answer:
    keys = "".join(
        f"<Contents><Key>m/{name}</Key><Size>{len(content)}</Size><ETag>&quot;e1&quot;</ETag></Contents>"
        for name, content in OBJECTS.items()
    )
    return Answer(body=f"<ListBucketResult>{keys}</ListBucketResult>".encode())


class WholeStore:
    """Always 200 with the whole body although it advertises ranges; breaks off the n-th whole body of each object."""

    def __init__(self, broken: int = 0) -> None:
        self.broken = broken
        self.bodies: dict[str, int] = {}

    def __call__(self, asked: Asked) -> Answer:
        if "list-type" in asked.path:
            return listing()
        name = asked.path.partition("?")[0].rpartition("/")[2]
        content = OBJECTS[name]
        headers = {"ETag": '"e1"', "Accept-Ranges": "bytes"}
        if asked.span == (0, len(content)):
            count = self.bodies[name] = self.bodies.get(name, 0) + 1
            if count <= self.broken:
                return Answer(200, headers | {"Content-Length": str(len(content))}, content[: MEBIBYTE * 2], "close")
        return Answer(200, headers, content)


@contextmanager
def streamer(script: WholeStore, root: Path) -> Iterator[tuple[ScriptedStore, Streamer]]:
    with (
        scripted_store(script) as store,
        S3Source("s3://bucket/m/", S3Options(endpoint_url=store.endpoint)) as source,
        Streamer(source, Cache(root), options(connections=4)) as streaming,
    ):
        yield store, streaming


def test_a_store_that_ignores_ranges_is_read_once_and_soon_not_asked_for_ranges_any_more(tmp_path: Path) -> None:
    """S-09 (i): one sequential download from byte 0, not one for each part."""
    script = WholeStore()
    with streamer(script, tmp_path) as (store, streaming):
        manifest = streaming.prepare()
        progress = streaming.run()
        assert contents(manifest) == OBJECTS
    assert progress.fetched_bytes == progress.total_bytes
    assert set(script.bodies.values()) == {1}
    # index, configuration, and a shard each: once as a whole, at most once more to find out
    assert len(store.gets) - 1 <= 2 + 2 * 3


def test_one_that_breaks_off_is_begun_again_and_never_patched_up(tmp_path: Path) -> None:
    """S-09 (i), S-08"""
    script = WholeStore(broken=1)
    with streamer(script, tmp_path) as (_, streaming):
        manifest = streaming.prepare()
        streaming.run()
        assert contents(manifest) == OBJECTS
    assert max(script.bodies.values()) <= 3
