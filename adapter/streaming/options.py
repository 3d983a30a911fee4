"""How a checkpoint is streamed, and how far a stream is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Self

from adapter.checkpoint.header import HEADER_LIMIT_BYTES
from adapter.checkpoint.tensor_filter import TensorFilter
from adapter.settings import Settings, Verify
from adapter.storage.addresses import shown_address
from adapter.storage.retry import RetryPolicy
from adapter.streaming.hedging import SlownessRule
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.waiting import Deadline

MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How a checkpoint is streamed."""

    address: str
    """What the source was opened with; part of every object's identity in the cache, without what is secret in it."""
    connections: int = 16
    """Range reads in flight at the beginning."""
    most_connections: int | None = None
    """As many as there may be where more bring more bytes; None: no more than at the beginning."""
    part_bytes: int = 8 * MEBIBYTE
    """Length of one range read."""
    chunk_bytes: int = MEBIBYTE
    """Received, written and journalled at a time: what each connection may lose when the process is killed."""
    header_limit_bytes: int = HEADER_LIMIT_BYTES
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    deadline: Deadline | None = None
    stall_s: float = 30.0
    """Another fetcher that brings nothing for so long is not waited for any longer."""
    slowness: SlownessRule = field(default_factory=SlownessRule)
    verify: Verify = "size"
    """What is asked of a cached file before it is taken, as in the settings."""
    tensors: TensorFilter = field(default_factory=TensorFilter)
    """What of the shards is wanted; they stay files with holes where that is not all."""
    previous: StreamManifest | None = None
    """What a fetcher of the same replica that died was streaming: its objects, versions and files are gone on with."""

    def __post_init__(self) -> None:
        # it gets into manifests and records: a signature must not, and would name the same object anew each time
        object.__setattr__(self, "address", shown_address(self.address))

    @classmethod
    def of(
        cls,
        settings: Settings,
        address: str,
        *,
        tensors: TensorFilter | None = None,
        previous: StreamManifest | None = None,
    ) -> Self:
        """What the settings say, for one address; all tensors unless others are named."""
        return cls(
            address=address,
            connections=settings.connections,
            most_connections=settings.most_connections,
            part_bytes=settings.part_bytes,
            header_limit_bytes=settings.header_limit_bytes,
            slowness=SlownessRule(hedge_share=settings.hedge_percent / 100),
            verify=settings.verify,
            tensors=tensors or TensorFilter(),
            previous=previous,
        )

    @property
    def reads_at_most(self) -> int:
        """Range reads that may come to be in flight at a time."""
        return max(self.connections, self.most_connections or 0)


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
    """Failed requests that were followed by another."""
    throttles: int = 0
    """Answers that asked to slow down."""
    stalls: int = 0
    """Requests that were broken off because they hardly moved."""
    hedges: int = 0
    """Ranges asked for a second time, on another connection, because they took much longer than others."""
    twice_bytes: int = 0
    """Bytes read twice for that."""
    concurrency: int = 0
    """Requests that may be under way now."""
    seconds: float = 0.0
    """Since the stream began; with `fetched_bytes` it gives the goodput."""
    held_s: float = 0.0
    """Waiting to be let through (the store asked to slow down, a failure's wait), added up over all threads, as are
    the following."""
    first_byte_s: float = 0.0
    """From a request to its answer, connecting included."""
    body_s: float = 0.0
    """Receiving."""
    disk_s: float = 0.0
    """Checking and writing."""

    def facts(self) -> dict[str, int | float]:
        """What a report says about a stream: counts, goodput in bytes per second, seconds rounded to ms."""
        facts: dict[str, int | float] = {
            name.removeprefix("fetched_"): value if isinstance(value, int) else round(value, 3)
            for name, value in asdict(self).items()
            if name != "done_bytes"
        }
        return facts | {"goodput_bytes_per_s": round(self.goodput_bytes_per_s)}

    @property
    def goodput_bytes_per_s(self) -> float:
        """Bytes from the store that were wanted, over the whole stream so far."""
        return (self.fetched_bytes - self.twice_bytes) / self.seconds if self.seconds else 0.0
