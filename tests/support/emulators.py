"""Emulators as tests see them: `coldstart emulate` in a child process, asked over HTTP."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.replicas import REPOSITORY, TOKEN, until


@dataclass
class RunningEmulator:
    """A running `coldstart emulate`."""

    process: subprocess.Popen[str]
    token: str
    client: httpx.Client
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Where it listens."""
        return str(self.client.base_url)

    def invoke(self, event: Any, **headers: str) -> httpx.Response:
        """POST an event."""
        return self.client.post("/invoke", json=event, headers=headers)

    def get(self, path: str) -> Any:
        """The JSON value at a path."""
        return self.client.get(path).raise_for_status().json()

    def replicas(self) -> list[dict[str, Any]]:
        """Those that have not ended."""
        return [replica for replica in self.get("/replicas") if replica["state"] != "gone"]

    def shard_bytes(self) -> int:
        """What the embedded store has sent of .safetensors files."""
        by_key = self.get("/store")["by_key"]
        return sum(int(of["bytes_sent"]) for key, of in by_key.items() if key.endswith(".safetensors"))

    def survivors(self) -> list[str]:
        """Processes of this emulator that run, itself included."""
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with contextlib.suppress(OSError):
                    if f"{TOKEN}={self.token}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                        stat = Path(f"/proc/{entry}/stat").read_text()
                        if stat.rpartition(")")[2].split()[0] != "Z":
                            found.append(stat.partition(")")[0] + ")")
        return found

    def interrupt(self, number: int = signal.SIGINT) -> int:
        """Send a signal; the exit code, once nothing of it is left."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        until(lambda: not self.survivors(), within_s=5, what=lambda: f"the end of {self.survivors()}")
        return code

    def said(self) -> str:
        """Its log."""
        return "\n".join(self.lines)


@contextlib.contextmanager
def running_emulator(
    target: str, directory: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> Iterator[RunningEmulator]:
    """`coldstart emulate TARGET` run in `directory` until the block ends.

    Args:
        target: The handler.
        directory: Where user code is found.
        arguments: Further arguments.
        environment: Further variables, of the emulator; replicas see few of them.
    """
    token = uuid.uuid4().hex
    variables = {**os.environ, TOKEN: token, "PYTHONPATH": str(REPOSITORY), **(environment or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", "emulate", target, "--port", "0", *arguments],
        cwd=directory,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    stderr = process.stderr
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(line.rstrip() for line in stderr), daemon=True)
    reader.start()
    client: httpx.Client | None = None
    emulator: RunningEmulator | None = None
    try:
        line = process.stdout.readline()
        assert line, f"the emulator ended with {process.wait()} before it listened: {lines}"
        client = httpx.Client(base_url=json.loads(line)["emulator"], timeout=60)
        emulator = RunningEmulator(process, token, client, lines)
        yield emulator
    finally:
        if client is not None:
            client.close()
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(15)
        if process.poll() is None:
            process.kill()
        process.wait()
        reader.join(5)
        process.stdout.close()
        process.stderr.close()
        if emulator is not None:
            until(lambda: not emulator.survivors(), within_s=5, what=lambda: f"the end of {emulator.survivors()}")
