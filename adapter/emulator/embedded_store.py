"""The object store beside the replicas: `coldstart store` as a child, over a directory of the user's."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from pathlib import Path
from typing import Any

from adapter.emulator.child import Child
from adapter.emulator.client import fetch_json
from adapter.emulator.options import BUCKET, EmulatorOptions
from adapter.errors import ConfigurationError

_LISTEN_LIMIT_S = 30.0
_STATS_TIMEOUT_S = 10.0
_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR")


class EmbeddedStore:
    """A running store.

    Args:
        options: What to serve, and how slowly.
        host: The emulated host's directory: where the tree of buckets is made.
    """

    def __init__(self, options: EmulatorOptions, host: Path) -> None:
        plan = options.weights
        assert plan.directory is not None, "there is something to serve"
        root = plan.directory
        if plan.name is not None:
            root = host / "store"
            (root / BUCKET).mkdir(parents=True)
            (root / BUCKET / plan.name).symlink_to(plan.directory)
        arguments = ["store", str(root), "--port", "0", "--first-byte-ms", f"{options.first_byte_ms:g}"]
        arguments += ["--link", options.link] if options.link else []
        environment = {
            name: value
            for name, value in options.environment.items()
            if name in _ENVIRONMENT or name.startswith(("PYTHON", "COLDSTART_"))
        }
        self._port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._said: deque[str] = deque(maxlen=20)
        self._child = Child(arguments, environment, self._on_line, self._said.append)
        self.endpoint: str = ""

    async def listening(self) -> None:
        """Returns when the store can be asked, and `endpoint` is known.

        Raises:
            ConfigurationError: It does not come up; the message has its last words.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_LIMIT_S):
                while not self._port.done() and self._child.exit_code is None:
                    await asyncio.wait((self._port,), timeout=0.05)
        if not self._port.done():
            raise ConfigurationError(f"the embedded store did not begin to listen: {' / '.join(self._said)}")

    async def stats(self) -> dict[str, Any]:
        """Requests and bytes that it has served: `requests`, `bytes_sent`, `by_key`.

        Raises:
            OSError: It does not answer.
        """
        value: dict[str, Any] = await fetch_json(self._port.result(), "/-/requests", timeout_s=_STATS_TIMEOUT_S)
        return value

    def close(self) -> None:
        """End it."""
        self._child.close()

    def _on_line(self, line: str) -> None:
        with contextlib.suppress(ValueError, TypeError, KeyError):
            endpoint = str(json.loads(line)["endpoint"])
            self.endpoint = endpoint
            if not self._port.done():
                self._port.set_result(int(endpoint.rpartition(":")[2]))
