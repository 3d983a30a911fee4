"""Streams in tests: a checkpoint out of memory into a cache, and what came of it."""

from __future__ import annotations

from pathlib import Path

from adapter.checkpoint.ranges import ByteRange
from adapter.storage.memory import MemorySource
from adapter.storage.retry import RetryPolicy
from adapter.streaming.cache import Cache
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import Progress, StreamOptions
from adapter.streaming.reader import ObjectReader
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline

MEBIBYTE = 1 << 20
QUICK = RetryPolicy(attempts=3, first_backoff_s=0.001, longest_backoff_s=0.002)


def options(**changes: object) -> StreamOptions:
    """Options for a stream in a test: few connections, small parts, quick repeats."""
    values: dict[str, object] = {
        "address": "memory://m/",
        "connections": 4,
        "part_bytes": 2 * MEBIBYTE,
        "retry": QUICK,
        "deadline": Deadline.after(30),
    }
    return StreamOptions(**(values | changes))  # type: ignore[arg-type]


def stream(source: MemorySource, root: Path, **changes: object) -> tuple[StreamManifest, Progress]:
    """Stream everything; the manifest and the progress."""
    with Streamer(source, Cache(root), options(**changes)) as streamer:
        manifest = streamer.prepare()
        return manifest, streamer.run()


def contents(manifest: StreamManifest) -> dict[str, bytes]:
    """Every object of a manifest as a reader gives it, without waiting."""
    found = {}
    for entry in manifest:
        with ObjectReader(entry, deadline=Deadline.after(0)) as reader:
            found[entry.name] = reader.read(ByteRange(0, entry.size_bytes))
    return found


def left_names(root: Path) -> list[str]:
    """Names of the files below, leases left out."""
    return sorted(found.name for found in root.rglob("*") if found.is_file() and found.name != "lease")
