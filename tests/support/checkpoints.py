"""Generated checkpoints of any size, written without holding them in memory."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

MEBIBYTE = 1 << 20


def write_checkpoint(path: Path, tensor_bytes: int, count: int) -> dict[str, int]:
    """A safetensors file of `count` U8 tensors `t0`, `t1`, … of `tensor_bytes` each; gives the CRC-32 of each.

    The content is a cheap function of tensor and position, different in every MiB.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    header = json.dumps(
        {
            f"t{i}": {
                "dtype": "U8",
                "shape": [tensor_bytes],
                "data_offsets": [i * tensor_bytes, (i + 1) * tensor_bytes],
            }
            for i in range(count)
        }
    ).encode()
    header += b" " * (-len(header) % 8)
    sums = {}
    pattern = bytes(range(251)) * (MEBIBYTE // 251 + 1)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for i in range(count):
            crc, left, block = 0, tensor_bytes, 0
            while left:
                stamp = f"{i}/{block}/".encode()
                data = (stamp + pattern)[: min(MEBIBYTE, left)]
                file.write(data)
                crc = zlib.crc32(data, crc)
                left -= len(data)
                block += 1
            sums[f"t{i}"] = crc
    return sums
