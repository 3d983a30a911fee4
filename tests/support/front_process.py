"""A front as the supervisor runs it: a child process with an inherited listener and a status pipe."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import httpx

from adapter.errors import AdapterError
from adapter.settings import Settings

PATIENCE_S = 10.0


class FrontProcess:
    """A running front over plain HTTP.

    Args:
        run_dir: An existing directory with a short path.
        settings: Fields of `Settings` by name.
    """

    def __init__(self, run_dir: Path, **settings: Any) -> None:
        self.run_dir = run_dir
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)  # no protocol's number, as in most programs
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.port: int = self.listener.getsockname()[1]
        self.client = httpx.Client(base_url=self.url, timeout=20)
        """For any thread."""
        self._status_read, status_write = os.pipe()
        os.set_blocking(self._status_read, False)
        self.log = (run_dir / "front.log").open("w+b")
        """What it writes to standard error."""
        self._status = b""
        descriptors = (self.listener.fileno(), status_write)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.front_process",
                str(run_dir),
                *map(str, descriptors),
                json.dumps(settings),
            ],
            pass_fds=descriptors,
            stderr=self.log,
            cwd=Path(__file__).parents[2],
        )
        os.close(status_write)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.listener.close()
        self.log.close()
        os.close(self._status_read)

    def wait_status(self, event: str) -> dict[str, Any]:
        """The first status line with this event that was not taken yet; lines before it are dropped.

        Raises:
            TimeoutError: It did not come.
        """
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            line, found, rest = self._status.partition(b"\n")
            if found:
                self._status = rest
                value: dict[str, Any] = json.loads(line)
                if value["event"] == event:
                    return value
                continue
            try:
                self._status += os.read(self._status_read, 65536)
            except BlockingIOError:
                time.sleep(0.002)
        raise TimeoutError(f"no status line {event}")

    def terminate(self) -> None:
        """Ask it to end."""
        self.process.send_signal(signal.SIGTERM)

    def fail(self, error: AdapterError) -> None:
        """What the supervisor does when a start has failed."""
        (self.run_dir / "failure.json").write_text(json.dumps(error.to_dict()))
        self.terminate()

    def log_lines(self) -> list[dict[str, Any]]:
        """Its log so far; each line is JSON."""
        return [json.loads(line) for line in (self.run_dir / "front.log").read_text().splitlines()]

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)


def _main(run_dir: Path, listener_fd: int, status_fd: int, settings: dict[str, Any]) -> int:
    from adapter import platforms
    from adapter.runtime import front
    from adapter.runtime.roles import ReplicaSpec

    spec = ReplicaSpec(
        "tests:fake", Settings(cache_dir=run_dir, run_root=run_dir, **settings), run_dir, time.monotonic_ns()
    )
    return front.run(
        front.FrontSetup(
            spec=spec,
            listener=socket.socket(fileno=listener_fd),
            status_fd=status_fd,
            platform=platforms.plain_http,
            report=lambda: b'{"outcome":"ready"}',
        )
    )


if __name__ == "__main__":
    sys.exit(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])))
