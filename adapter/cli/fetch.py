"""`coldstart fetch URI`: weights onto this machine before a replica asks for them."""

from __future__ import annotations

import os
import time
from argparse import ArgumentParser, Namespace
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from adapter.cli import Subparsers
from adapter.cli.plain_text import printable, readable_bytes
from adapter.cli.progress import Telling, amount
from adapter.settings import Settings

if TYPE_CHECKING:
    from adapter.storage.base import RangeSource
    from adapter.streaming.layout import Layout
    from adapter.streaming.manifest import StreamManifest
    from adapter.streaming.options import Progress, StreamOptions
    from adapter.streaming.streamer import Streamer

_POLL_S = 0.1


def add_parser(subparsers: Subparsers) -> None:
    """Describe the command."""
    parser: ArgumentParser = subparsers.add_parser(
        "fetch",
        description="Fetch a checkpoint ahead of a start: into the cache that replicas use (a volume, an image's "
        "layer), or with --to under its own file names into a directory. What is here already is not fetched again, "
        "and what an earlier try left behind is gone on with. A bar on a terminal, JSON lines elsewhere.",
    )
    parser.add_argument("address", metavar="URI", help="address of the weights, as in the decorator")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--to", metavar="DIR", type=Path, help="write the files there under their own names")
    place.add_argument("--cache-dir", metavar="DIR", type=Path, help="fill this cache (COLDSTART_CACHE_DIR)")
    parser.add_argument("--connections", metavar="N", type=int, help="range reads in flight (COLDSTART_CONNECTIONS)")
    parser.add_argument("--json", action="store_true", help="JSON lines also on a terminal")
    parser.set_defaults(run=run)


def run(arguments: Namespace) -> int:
    """Fetch; 0 when everything is here and survives a power cut.

    Raises:
        StorageError, CheckpointError, CacheError: It could not be fetched; what came stays for the next try.
    """
    from adapter.storage.access import Access
    from adapter.storage.sources import open_source

    settings = Settings.from_env(os.environ).with_(
        cache_dir=arguments.cache_dir, connections=arguments.connections and max(1, arguments.connections)
    )
    with (
        Telling("fetch", json_lines=arguments.json) as telling,
        open_source(
            arguments.address,
            connections=max(settings.connections, settings.most_connections),
            access=Access.of(settings),
        ) as source,
    ):
        if arguments.to is None:
            _into_cache(source, arguments.address, settings, telling)
        else:
            _into_directory(source, arguments.address, arguments.to, settings, telling)
    return 0


def _into_cache(source: RangeSource, address: str, settings: Settings, telling: Telling) -> None:
    from adapter.storage.addresses import shown_address
    from adapter.streaming.budget import Budget
    from adapter.streaming.cache import Cache
    from adapter.streaming.streamer import Streamer

    begun_s = time.monotonic()
    # no fall-back to another directory: what is baked must be where it was asked to be
    cache = Cache(settings.cache_dir, budget=Budget(settings.cache_limit_bytes, settings.cache_floor_bytes))
    with Streamer(source, cache, _options(address, settings)) as streamer:
        manifest = streamer.prepare()
        place = str(settings.cache_dir)
        shown = shown_address(address)
        telling.started(address=shown, to=place, objects=len(manifest.objects), total_bytes=manifest.total_bytes)
        done = _run(streamer, telling)
        streamer.sync()
    _complete(telling, _Done(shown, place, done, 0, time.monotonic() - begun_s))


def _into_directory(source: RangeSource, address: str, directory: Path, settings: Settings, telling: Telling) -> None:
    from adapter.storage.addresses import shown_address
    from adapter.storage.retry import RetryingSource
    from adapter.streaming.inspection import read_index
    from adapter.streaming.layout import Layout
    from adapter.streaming.listing import find_checkpoint, list_objects

    begun_s = time.monotonic()
    shown = shown_address(address)
    trying = RetryingSource(source)
    listing = list_objects(trying, connections=settings.connections)
    found = find_checkpoint(trying, listing, lambda info: read_index(trying, info), address=shown)
    wanted = found.selection.wanted
    with Layout(directory) as layout:
        missing = layout.missing(wanted)
        total_bytes = sum(each.info.size_bytes for each in wanted)
        telling.started(address=shown, to=str(layout.directory), objects=len(wanted), total_bytes=total_bytes)
        kept_bytes = total_bytes - sum(each.info.size_bytes for each in missing)
        done = None
        if missing:
            options = _options(address, settings, layout.orders(address, source.store, missing))
            done = _fill(source, layout, options, telling)
    _complete(telling, _Done(shown, str(layout.directory), done, kept_bytes, time.monotonic() - begun_s))


def _fill(source: RangeSource, layout: Layout, options: StreamOptions, telling: Telling) -> Progress:
    from adapter.streaming.streamer import Streamer

    with Streamer(source, layout.cache, options) as streamer:
        manifest = streamer.prepare()
        done = _run(streamer, telling)
    layout.take(manifest)
    return done


def _run(streamer: Streamer, telling: Telling) -> Progress:
    """Stream in a thread, so that this one can tell how far it is and hear Ctrl-C."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(streamer.run)
        try:
            while not wait((running,), _POLL_S).done:
                now = streamer.progress()
                telling.now(now.done_bytes, now.total_bytes)
        except BaseException:
            streamer.cancel()
            raise
        return running.result()


def _options(address: str, settings: Settings, previous: StreamManifest | None = None) -> StreamOptions:
    from adapter.streaming.options import StreamOptions

    return StreamOptions.of(settings, address, previous=previous)


@dataclass(frozen=True, slots=True)
class _Done:
    """What a fetch did."""

    address: str
    place: str
    fetched: Progress | None
    """None where everything was here."""
    kept_bytes: int
    """Bytes of files that were here and are left as they were."""
    seconds: float


def _complete(telling: Telling, done: _Done) -> None:
    here = done.kept_bytes + (done.fetched.from_cache_bytes if done.fetched else 0)
    fetched_bytes = done.fetched.fetched_bytes if done.fetched else 0
    telling.complete(
        f"{printable(done.address)}: fetched {amount(fetched_bytes, done.seconds)}, {readable_bytes(here)} were here; "
        f"in {printable(done.place)}",
        address=done.address,
        to=done.place,
        fetched_bytes=fetched_bytes,
        from_cache_bytes=here,
        requests=done.fetched.requests if done.fetched else 0,
        retries=done.fetched.retries if done.fetched else 0,
        seconds=round(done.seconds, 3),
    )
