"""Object stores as child processes: what tests stream from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_EC2_METADATA_DISABLED": "true"}
"""Any credentials do; none from the developer's own files are read."""


@dataclass(frozen=True, slots=True)
class Store:
    """A running store and what it has served."""

    endpoint: str
    root: Path
    process: subprocess.Popen[str]

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make boto3 in a child use this store."""
        return {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }

    def stats(self) -> dict[str, Any]:
        """`requests`, `bytes_sent` and `by_key` so far."""
        return self._fetch("/-/requests")

    def log(self) -> list[dict[str, Any]]:
        """Every request so far: method, bucket, key, range, status, bytes_sent, start_ns, stop_ns, t."""
        log: list[dict[str, Any]] = self._fetch("/-/requests?log=1")["log"]
        return log

    def bytes_sent(self) -> int:
        """Bytes of bodies sent so far."""
        return int(self.stats()["bytes_sent"])

    def reset(self) -> None:
        """Forget what was served."""
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}/-/reset", method="POST"), timeout=10):
            pass

    def put(self, name: str, content: bytes) -> Path:
        """Write the object `bucket/key`, replacing it as a whole."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.new")
        fresh.write_bytes(content)
        fresh.rename(path)
        return path

    def _fetch(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.endpoint}{path}", timeout=10) as answer:
            value: dict[str, Any] = json.load(answer)
            return value


@contextmanager
def running_store(
    root: Path,
    *,
    link: str | None = None,
    connection: str | None = None,
    first_byte_ms: float = 0.0,
    more: Sequence[str] = (),
) -> Iterator[Store]:
    """`coldstart store` over `root` in a child process, until the block ends.

    Args:
        root: Directory of buckets.
        link: Speed of all connections, such as `1Gbps`.
        connection: Speed of one connection.
        first_byte_ms: Wait before each answer.
        more: Other flags of the command, such as `--slow-one-in`; any free port unless `--port` is among them.
    """
    command = [sys.executable, "-m", "adapter.cli.store", str(root), "--port", "0", *more]
    command += ["--link", link] if link else []
    command += ["--connection", connection] if connection else []
    command += ["--first-byte-ms", str(first_byte_ms)] if first_byte_ms else []
    process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"the store ended with {process.wait()} before it listened"
        yield Store(json.loads(line)["endpoint"], root, process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
