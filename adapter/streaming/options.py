"""How a checkpoint is streamed, and how far a stream is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from adapter.checkpoint.header import HEADER_LIMIT_BYTES
from adapter.storage.retry import RetryPolicy
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.waiting import Deadline

MEBIBYTE = 1 << 20

Verify = Literal["size", "crc", "sha256"]
"""What is asked of a cached file before it is taken, beside its record: nothing, the checksums of its parts, or the
digest in a file SHA256SUMS beside the weights. The last two read all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a checkpoint is streamed."""

    address: str
    """What the source was opened with; part of every object's identity in the cache."""
    connections: int = 16
    part_bytes: int = 8 * MEBIBYTE
    """Length of one range read."""
    chunk_bytes: int = MEBIBYTE
    """Received, written and journalled at a time: what each connection may lose when the process is killed."""
    header_limit_bytes: int = HEADER_LIMIT_BYTES
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    deadline: Deadline | None = None
    stall_s: float = 30.0
    """Another fetcher that brings nothing for so long is not waited for any longer."""
    verify: Verify = "size"
    previous: StreamManifest | None = None
    """What a fetcher of the same replica that died was streaming: its objects, versions and files are gone on with."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stream is."""

    total_bytes: int
    done_bytes: int
    from_cache_bytes: int
    """Bytes that were on disk when the stream began."""
    fetched_bytes: int
    """Bytes that this process read from the store; what another fetcher brought meanwhile is not among them."""
    requests: int
    """Range reads sent, repeats included."""
    retries: int
