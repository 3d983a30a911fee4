"""A cold start from COLD to READY, in order: the file to read first.

Two halves run at the same time in two processes of a replica, and meet in files:

    fetcher  stream_weights   connect, list, first ranges, stream ............ seal        -> fsync after READY
    worker   prepare          import framework, import handler, load (waits per tensor)
             warm_up                                                 recorded calls  -> READY

Every stage is one span of the timeline, so the report is this file with times.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapter.errors import AdapterError, CacheError
from adapter.handler import ColdstartHandler, find_handler
from adapter.handler_source import literal_address
from adapter.lifecycle import Phase
from adapter.settings import Settings
from adapter.timeline import Timeline
from adapter.warm_up.calls import run_recorded

if TYPE_CHECKING:
    from adapter.streaming.manifest import StreamManifest
    from adapter.weights import Weights

Origin = Literal["settings", "source", "record", "handler", "none"]
Handler = ColdstartHandler[Any, ..., Any]


@dataclass(frozen=True, slots=True)
class StartOrder:
    """What one start is about; both halves are given the same."""

    target: str
    """The handler, as `module:attribute`."""
    settings: Settings
    manifest: Path
    """Where the fetcher says what it streams."""
    search_path: tuple[str, ...]
    """Where user code is looked for."""
    timeline: Timeline


_TENSORS_NOTED = 10_000
"""0.5 MB of names, read in 5 ms; beyond that the order of the shards has to do."""


# -- before anything is imported: where are the weights? --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InitRecord:
    """What an earlier start of the same handler learnt; a hint only, versions always come from this start."""

    address: str
    use_order: tuple[str, ...]
    """Shards in the order in which `load` first asked for them."""
    whole: bool = True
    """Whether that is all of the address; what is secret in one is not kept."""
    tensors: tuple[str, ...] = ()
    """The first tensors in that order, as many as are worth their place in a file that each start reads."""

    def write(self, path: Path) -> None:
        """Keep it for the next start, whole or not at all."""
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path) -> InitRecord | None:
        """The record of the last start; None where there is none that can be read."""
        try:
            value = json.loads(path.read_bytes())
            names = tuple(str(name) for name in value["use_order"])
            tensors = tuple(str(name) for name in value.get("tensors", ()))
            return cls(str(value["address"]), names, value.get("whole", True) is True, tensors)
        except (OSError, ValueError, KeyError, TypeError):
            return None


def record_path(order: StartOrder) -> Path:
    """Where the init record of this handler is: one for each place of the code and each name."""
    identity = "\0".join((os.getcwd(), order.target))
    return order.settings.cache_dir / "v1" / "starts" / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"


def find_address(order: StartOrder) -> tuple[str | None, Origin]:
    """Where the weights are, known before the handler is imported (D1), and how that is known.

    The settings decide where they say anything. Else the literal in the handler's source is taken before the record
    of an earlier start: reading the source costs milliseconds, and it may have been edited since.
    """
    if order.settings.weights:
        return order.settings.weights, "settings"
    literal = literal_address(order.target, order.search_path)
    if literal is not None:
        return literal, "source"
    record = InitRecord.read(record_path(order))
    return (record.address, "record") if record is not None and record.whole else (None, "none")


# -- the fetcher's half -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamWatch:
    """How the rest of the replica follows the stream."""

    progress: Callable[[Mapping[str, float]], None]
    """Called several times a second with `done_bytes`, `total_bytes` and what else a report says of a stream."""
    may_sync: Callable[[], bool]
    """Blocks until what may wait can be done (the replica is ready); False: do not do it."""
    warn: Callable[[str], None] = lambda _: None
    """Called with what the operator should know, at most once a start."""


_PROGRESS_S = 0.1


def stream_weights(order: StartOrder, address: str, watch: StreamWatch) -> None:
    """Stream what is wanted of the address into the cache, and tell readers by the manifest where it is.

    Raises:
        StorageError, CheckpointError, CacheError: The weights cannot be had; what is here stays for the next start.
    """
    from adapter.checkpoint.tensor_filter import TensorFilter
    from adapter.storage.access import Access
    from adapter.storage.proxies import proxy_to
    from adapter.storage.sources import open_source
    from adapter.streaming.cache import Cache
    from adapter.streaming.options import StreamOptions
    from adapter.streaming.streamer import Streamer

    settings, timeline = order.settings, order.timeline
    tensors = TensorFilter(settings.only_tensors, settings.skip_tensors)
    options = StreamOptions.of(settings, address, tensors=tensors, previous=_manifest(order, address))
    record = InitRecord.read(record_path(order))
    if record is None or record.address != options.address:
        record = InitRecord(address, ())
    with timeline.span("storage.connect", "network") as span:
        source = open_source(address, connections=options.reads_at_most, access=Access.of(settings))
        if proxy := proxy_to(source.store):
            span.add(proxy=proxy)
    with source, Streamer(source, Cache.of(settings), options, timeline) as streamer:
        manifest = streamer.prepare(record.use_order, record.tensors)
        if streamer.notice is not None:
            watch.warn(streamer.notice)
        manifest.write(order.manifest)
        with _reporting(streamer.progress, watch.progress):
            streamer.run()
        if watch.may_sync():
            with timeline.span("weights.sync", "network"):
                streamer.sync()


class _reporting:  # noqa: N801 - reads as the verb it is
    """Tells a stream's progress several times a second while the `with` block runs, and once at its end."""

    def __init__(self, progress: Callable[[], Any], tell: Callable[[Mapping[str, float]], None]) -> None:
        self._progress = progress
        self._tell = tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._say()

    def _run(self) -> None:
        while not self._ended.wait(_PROGRESS_S):
            self._say()

    def _say(self) -> None:
        now = self._progress()
        self._tell({"done_bytes": now.done_bytes, **now.facts()})


# -- the worker's half ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Prepared:
    """A handler with its model loaded."""

    handler: Handler
    model: Any
    record: InitRecord | None
    """What the next start should know; None for a handler without weights."""


Tell = Callable[[Phase, Mapping[str, Any]], None]


def prepare(order: StartOrder, tell: Tell) -> Prepared:
    """Import the framework and the handler, and load the model while the weights still arrive.

    Args:
        order: What to start.
        tell: Hears of each phase as it begins; with LOADING comes `weights`, the address that is really wanted.

    Raises:
        HandlerImportError, HandlerNotFound, HandlerDefinitionError, LoadError: The user's part failed.
        CheckpointError, CacheError, DeviceError: The weights or the device are not what the model needs.
    """
    timeline = order.timeline
    tell(Phase.IMPORTING, {})
    if find_address(order)[0] is not None:  # weights mean tensors: the framework is needed whatever the handler imports
        from adapter.device.framework import import_framework

        with timeline.span("import.framework"):
            import_framework()
            import adapter.weights  # noqa: F401 - what reads tensors comes with it, not between two stages
    with timeline.span("import.handler", handler=order.target):
        handler = find_handler(order.target)
    address = order.settings.weights or handler.spec.weights
    tell(Phase.LOADING, {"weights": address, "init_timeout_s": handler.spec.init_timeout_s})
    weights = _weights(order, handler, address) if address is not None else None
    with timeline.span("model.load"):
        model = handler.make_model(weights)
    if address is not None and order.settings.verify != "size":
        _wait_until_verified(order, address)
    record = None
    if weights is not None:
        used = weights.use_order()
        record = InitRecord(weights.address, used.shards, weights.address == address, used.tensors[:_TENSORS_NOTED])
    tell(Phase.WARMING, {})
    return Prepared(handler, model, record)


def _weights(order: StartOrder, handler: Handler, address: str) -> Weights:
    from adapter.streaming.waiting import wait_for
    from adapter.weights import Weights

    # no deadline and no look at the fetcher's fate here: the supervisor ends a worker whose start has failed
    with order.timeline.span("weights.manifest"):
        manifest = wait_for(lambda: _manifest(order, address), lambda: "the list of objects of the checkpoint")
    return Weights.from_manifest(manifest, device=handler.spec.device, timeline=order.timeline)


def _wait_until_verified(order: StartOrder, address: str) -> None:
    """Until every file has its final name, which it gets once its checksums are right: readiness waits for that."""
    from adapter.streaming.waiting import wait_for

    manifest = _manifest(order, address)
    if manifest is not None:
        with order.timeline.span("weights.verify"):
            wait_for(
                lambda: all(entry.published.exists() for entry in manifest) or None,
                lambda: "the checksums of the weights",
            )


def _manifest(order: StartOrder, address: str) -> StreamManifest | None:
    """What this replica streams from that address; an early stream of another address does not count."""
    from adapter.storage.addresses import shown_address
    from adapter.streaming.manifest import StreamManifest

    try:
        manifest = StreamManifest.read(order.manifest)
    except FileNotFoundError:
        return None
    return manifest if manifest.address == shown_address(address) else None


def warm_up(order: StartOrder, prepared: Prepared, invoke: Callable[[Any], object]) -> None:
    """Run the recorded calls as invocations are run, then keep what was learnt for the next start.

    Raises:
        WarmUpError: A recorded call failed.
    """
    run_recorded(prepared.handler.recorded, invoke, order.timeline)
    if prepared.record is not None:
        try:
            prepared.record.write(record_path(order))
        except OSError as error:
            # a read-only cache is no reason not to serve
            order.timeline.mark("record.failed", cause=error.strerror)


def describe_failure(error: BaseException) -> AdapterError:
    """What ended a half of the start, as an error of ours."""
    if isinstance(error, AdapterError):
        return error
    if isinstance(error, OSError):
        return CacheError(f"the start failed: {error}", cause=type(error).__name__)
    return AdapterError(f"the start failed: {type(error).__name__}: {error}", cause=type(error).__name__)
