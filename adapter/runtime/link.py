"""The wire between the front and the worker: frames of one JSON head and raw bytes over a unix stream.

A frame is `length of all that follows (u32) | length of the head (u32) | head (JSON object) | body (bytes)`,
big-endian. The body carries events and results as encoded JSON that the front passes on unread.

| kind (worker to front) | head | body |
|---|---|---|
| hello    | pid, instance, start (`restored` after a restore) | |
| phase    | phase; with `loading` weights and init_timeout_s | |
| ready    | name, concurrency, timeout_s, streams | |
| progress | id | JSON |
| item     | id | one element of a stream, JSON |
| result   | id, seconds | JSON |
| end      | id, seconds: the stream is complete | |
| error    | id, seconds, error (as `AdapterError.to_dict`) | |

| kind (front to worker) | head | body |
|---|---|---|
| invoke   | id, deadline (unix seconds or null), cold | the event, JSON |
| cancel   | id, reason (`client_gone`, `deadline`, `drain`) | |
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from adapter.errors import LinkError

_LENGTHS = struct.Struct(">II")
FRAME_LIMIT_BYTES = 1 << 30
"""No event or result comes near; a larger length means that the two sides do not speak the same language."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One message."""

    kind: str
    head: Mapping[str, Any]
    body: bytes = b""

    def encode(self) -> bytes:
        """The bytes of the frame."""
        head = json.dumps({"kind": self.kind, **self.head}, separators=(",", ":")).encode()
        return _LENGTHS.pack(4 + len(head) + len(self.body), len(head)) + head + self.body


class FrameReader:
    """Frames out of bytes as they come; no I/O."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[Frame]:
        """Every frame that these bytes complete.

        Raises:
            LinkError: The bytes are not frames.
        """
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            total, head_length = _LENGTHS.unpack_from(self._buffer)
            if total > FRAME_LIMIT_BYTES or head_length + 4 > total:
                raise LinkError(f"a frame of {total} bytes with a head of {head_length} bytes cannot be")
            stop = 4 + total
            if len(self._buffer) < stop:
                return
            try:
                head = json.loads(self._buffer[_LENGTHS.size : _LENGTHS.size + head_length])
                kind = head.pop("kind")
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise LinkError(f"the head of a frame is not a JSON object with a kind: {error}") from None
            body = bytes(memoryview(self._buffer)[_LENGTHS.size + head_length : stop])
            del self._buffer[:stop]
            yield Frame(kind, head, body)
