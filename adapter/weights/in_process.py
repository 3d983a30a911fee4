"""Streaming in threads of this process, where no fetcher does it."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from adapter.errors import AdapterError
from adapter.storage.access import Access
from adapter.storage.sources import open_source
from adapter.streaming.cache import Cache
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from adapter.weights.objects import Waiting


class Begun(NamedTuple):
    """A stream that runs."""

    manifest: StreamManifest
    waiting: Waiting
    owned: ExitStack
    """Ends it, wherever it is."""


def begin(address: str, options: StreamOptions, cache_dir: Path | None, access: Access | None) -> Begun:
    """Stream an address into a cache.

    Args:
        address: With what is secret in it.
        options: How.
        cache_dir: Where the cache is; None is `~/.cache/coldstart`.
        access: Who reads.

    Raises:
        ConfigurationError, StorageError, CheckpointError, CacheError: It cannot be read, or is no checkpoint.
    """
    cache = Cache(cache_dir if cache_dir is not None else Path.home() / ".cache" / "coldstart")
    with ExitStack() as opened:
        source = opened.enter_context(open_source(address, connections=options.connections, access=access))
        streamer = opened.enter_context(Streamer(source, cache, options))
        manifest = streamer.prepare()
        stream = InProcessStream(streamer)
        opened.callback(stream.stop)
        return Begun(manifest, Waiting(stream.failure, None, streamer.timeline), opened.pop_all())


class InProcessStream:
    """A streamer that runs in a thread of this process."""

    def __init__(self, streamer: Streamer) -> None:
        self._streamer = streamer
        self._error: AdapterError | None = None
        self._thread = threading.Thread(target=self._run, name="coldstart-stream", daemon=True)
        self._thread.start()

    def failure(self) -> AdapterError | None:
        """What ended it, if it failed."""
        return self._error

    def stop(self) -> None:
        """End it, wherever it is."""
        self._streamer.cancel()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._streamer.run()
            self._streamer.sync()
        except AdapterError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 (whatever it is, who waits for the stream must not wait for ever)
            self._error = AdapterError(f"the stream ended with {type(error).__name__}: {error}")
