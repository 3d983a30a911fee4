"""A fetcher of its own: a child process that streams a checkpoint into a cache, to be killed and counted.

Run as `python -m tests.support.streaming_child '<json>'`. It prints one JSON line when the manifest is written
(`{"event": "manifest"}`) and one at its end (`done` with the progress, or `failed` with the error).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from adapter.errors import AdapterError
from adapter.storage.sources import open_source
from adapter.streaming.cache import Cache
from adapter.streaming.hedging import SlownessRule
from adapter.streaming.manifest import StreamManifest
from adapter.streaming.options import StreamOptions
from adapter.streaming.private import lock_exclusively
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline, wait_for

ROOT = Path(__file__).resolve().parents[2]


def start(
    address: str, cache: Path, manifest: Path, *, env: Mapping[str, str] | None = None, **more: Any
) -> subprocess.Popen[str]:
    """Start such a child.

    Args:
        address: What to stream.
        cache: The cache directory.
        manifest: Where the child writes its manifest.
        env: Environment, added to an almost empty one.
        more: `connections`, `most_connections`, `hedge_share`, `part_bytes`, `chunk_bytes`, `stall_s`, `deadline_s`,
            `lying_lock`, `previous`, `fork` (leave a child behind that has all its files open), and `go`: a path that
            the child waits for before it begins.
    """
    order = json.dumps({"address": address, "cache": str(cache), "manifest": str(manifest), **more})
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.streaming_child", order],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **(env or {})},
        stdout=subprocess.PIPE,
        text=True,
    )


def heard(child: subprocess.Popen[str]) -> dict[str, Any]:
    """The child's next line."""
    assert child.stdout is not None
    line = child.stdout.readline()
    assert line, f"the child ended with {child.wait()} and said nothing"
    value: dict[str, Any] = json.loads(line)
    return value


def result(child: subprocess.Popen[str]) -> dict[str, Any]:
    """What the child said last: its `done` or `failed` line."""
    said: dict[str, Any] = {"event": "nothing"}
    while said["event"] not in ("done", "failed"):
        said = heard(child)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()
    return said


def _say(**value: object) -> None:
    print(json.dumps(value), flush=True)


def _leave_a_child_behind() -> None:
    """A process that has every descriptor of this one and never ends by itself."""
    pid = os.fork()
    if pid == 0:
        os.close(1)
        while True:
            signal.pause()
    _say(event="forked", pid=pid)


def main() -> int:
    """Stream as ordered."""
    order = json.loads(sys.argv[1])
    manifest_path = Path(order["manifest"])
    options = StreamOptions(
        address=order["address"],
        connections=order.get("connections", 4),
        part_bytes=order.get("part_bytes", 4 << 20),
        chunk_bytes=order.get("chunk_bytes", 1 << 20),
        most_connections=order.get("most_connections"),
        slowness=SlownessRule(hedge_share=order.get("hedge_share", 0.03)),
        stall_s=order.get("stall_s", 30.0),
        deadline=Deadline.after(order.get("deadline_s", 60.0)),
        previous=StreamManifest.read(manifest_path) if order.get("previous") else None,
    )
    cache = Cache(Path(order["cache"]), lock=(lambda _: True) if order.get("lying_lock") else lock_exclusively)
    try:
        with (
            open_source(order["address"], connections=options.reads_at_most) as source,
            Streamer(source, cache, options) as streamer,
        ):
            if "go" in order:
                _say(event="waiting")
                wait_for(lambda: os.path.exists(order["go"]) or None, lambda: order["go"], deadline=options.deadline)
            streamer.prepare().write(manifest_path)
            _say(event="manifest")
            if order.get("fork"):
                _leave_a_child_behind()
            progress = streamer.run()
            _say(event="done", **asdict(progress))
            return 0
    except AdapterError as error:
        _say(event="failed", **error.to_dict())
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
