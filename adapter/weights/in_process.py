"""Streaming in a thread of this process, where no fetcher does it."""

from __future__ import annotations

import threading

from adapter.errors import AdapterError
from adapter.streaming.streamer import Streamer


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
