"""Streaming costs a buffer a connection, whatever the size of the checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

from tests.support import streaming_child as child
from tests.support.memory import anonymous_bytes
from tests.support.stores import running_store

MEBIBYTE = 1 << 20
SIZE_BYTES = 256 * MEBIBYTE


def test_anonymous_memory_stays_far_below_what_is_streamed(tmp_path: Path) -> None:
    """A4: 16 connections with parts of 8 MiB; a part held as a whole would need 128 MiB."""
    header = b'{"t":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (SIZE_BYTES, SIZE_BYTES)
    model = tmp_path / "store" / "b" / "m" / "model.safetensors"
    model.parent.mkdir(parents=True)
    with model.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + SIZE_BYTES)
    with running_store(tmp_path / "store") as store:
        process = child.start(
            "s3://b/m/",
            tmp_path / "cache",
            tmp_path / "w.json",
            env=store.environment,
            connections=16,
            part_bytes=8 * MEBIBYTE,
        )
        assert child.heard(process) == {"event": "manifest"}
        before = peak = anonymous_bytes(process.pid)
        while process.poll() is None:
            peak = max(peak, anonymous_bytes(process.pid))
            time.sleep(0.01)
        assert child.result(process)["event"] == "done"
    assert before > 0
    assert peak - before <= 100 * MEBIBYTE, f"{(peak - before) / MEBIBYTE:.0f} MiB more than before the stream"
    print(f"{(peak - before) / MEBIBYTE:.1f} MiB more than the {before / MEBIBYTE:.1f} MiB before the stream")
