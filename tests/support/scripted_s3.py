"""An S3 source on a store whose answers a test writes down."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from adapter.storage.base import RangeSource
from adapter.storage.retry import RetryPolicy
from adapter.storage.s3 import S3Options, S3Source
from tests.support.scripted_store import Answer, Asked, ScriptedStore, scripted_store

KIB = 1024
CONTENT = hashlib.shake_128(b"content").digest(64 * KIB)
QUICK = RetryPolicy(attempts=4, first_backoff_s=0.001, longest_backoff_s=0.002)


@contextmanager
def opened(script: Callable[[Asked], Answer], *, timeout_s: float = 5.0) -> Iterator[tuple[ScriptedStore, S3Source]]:
    """The store and a source of `s3://bucket/m/` in it."""
    with scripted_store(script) as store:
        options = S3Options(connections=4, timeout_s=timeout_s, endpoint_url=store.endpoint)
        with S3Source("s3://bucket/m/", options) as source:
            yield store, source


def read(source: RangeSource, start: int = 8 * KIB, length: int = 8 * KIB) -> bytes:
    """The bytes of the object `a` from `start` on."""
    buffer = bytearray(length)
    answer = source.read_into("a", start, memoryview(buffer))
    return bytes(buffer[: answer.length_bytes])
