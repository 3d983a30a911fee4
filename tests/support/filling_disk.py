"""A disk that another process fills while a checkpoint streams onto it: run on a mount of 3 MiB.

`python -m tests.support.filling_disk DIRECTORY` prints one JSON line: the error's code, what was left, and how a
second stream ended after room was made.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from adapter.errors import AdapterError
from adapter.storage.base import RangeRequest
from adapter.storage.memory import MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from tests.support.shard_bytes import shard

MEBIBYTE = 1 << 20


def main() -> None:
    """Fill, stream, make room, stream."""
    directory = Path(sys.argv[1])
    filler = directory / "filler"

    def fill(request: RangeRequest) -> None:
        if request.start >= MEBIBYTE and not filler.exists():
            filler.write_bytes(bytes(1_500_000))

    objects = {"model.safetensors": shard(1, 2 * MEBIBYTE)}
    code = stream(MemorySource(objects, before_read=fill), directory)
    left = [found.name for found in directory.rglob("*") if found.is_file() and found.name not in ("filler", "lease")]
    filler.unlink()
    print(json.dumps({"code": code, "left": left, "second": stream(MemorySource(objects), directory)}))


def stream(source: MemorySource, directory: Path) -> str:
    """How it ended."""
    options = StreamOptions(address="memory://m", connections=1, part_bytes=MEBIBYTE)
    try:
        with Streamer(source, Cache(directory), options) as streamer:
            streamer.prepare()
            streamer.run()
    except AdapterError as error:
        return error.code
    return "done"


if __name__ == "__main__":
    main()
