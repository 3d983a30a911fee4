"""Checkpoints of very many tensors and of very many bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from adapter.storage.memory import MemorySource, register_memory
from adapter.weights import Weights
from tests.support.memory import anonymous_bytes
from tests.support.safetensors_files import with_header
from tests.support.source_tree import ROOT

MEBIBYTE = 1 << 20
TENSORS = 200_000
PART_BYTES = 8 * MEBIBYTE

SERVE = """
import os
import sys
from adapter.weights import Weights
import torch

address, cache = sys.argv[1:]
torch.zeros(1)
print("idle", flush=True)
sys.stdin.readline()
with Weights.open(address, cache_dir=cache) as weights:
    for name, tensor in weights.items():
        stamps = [bytes(tensor[at : at + 8].tolist()).decode() for at in (0, len(tensor) // 2, len(tensor) - 8)]
        print(name, *stamps, flush=True)
    weights.path("model.safetensors")
    os._exit(0)  # what follows is fsync: not what is looked at here
"""


def test_two_hundred_thousand_tensors_cost_no_more_reads_than_their_bytes(tmp_path: Path) -> None:
    """B8: a read for each part of the file; a header of 16 MB, and a tensor for each of its names."""
    header = json.dumps(
        {f"model.layers.{i}.w": {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(TENSORS)},
        separators=(",", ":"),
    )
    content = with_header(header, bytes(i % 251 for i in range(TENSORS)))
    source = MemorySource({"model.safetensors": content}, name="many")
    with Weights.open(register_memory("many", source), cache_dir=tmp_path) as weights:
        assert len(weights) == TENSORS
        for i, (name, tensor) in enumerate(weights.items()):
            assert name == f"model.layers.{i}.w"
            assert tensor.item() == i % 251
    assert source.received_bytes == len(content)
    # the first MiB, the rest of the header, and what is left
    assert len(source.reads) <= 3 + len(content) // PART_BYTES


def write_stamped(path: Path, tensor_bytes: int, count: int) -> list[list[str]]:
    """A sparse file, whose zeros the kernel makes up; each tensor's name and the texts at its begin, middle and end."""
    header = json.dumps(
        {
            f"t{i}": {"dtype": "U8", "shape": [tensor_bytes], "data_offsets": [at, at + tensor_bytes]}
            for i, at in enumerate(range(0, tensor_bytes * count, tensor_bytes))
        }
    ).encode()
    start = 8 + len(header)
    written = []
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(start + tensor_bytes * count)
        for i in range(count):
            stamps = [f"t{i:03}a{number:03}" for number in range(3)]
            for stamp, at in zip(stamps, (0, tensor_bytes // 2, tensor_bytes - 8), strict=True):
                file.seek(start + i * tensor_bytes + at)
                file.write(stamp.encode())
            written.append([f"t{i}", *stamps])
    return written


@pytest.mark.timeout(300)
def test_seven_gigabytes_are_streamed_and_served_within_little_memory(tmp_path: Path) -> None:
    """B8, B2: anonymous memory of a process that does both, above what the framework takes when it is idle."""
    tensor_bytes, count = 512 * MEBIBYTE, 14
    if shutil.disk_usage(tmp_path).free < 2 * tensor_bytes * count:
        pytest.skip("needs room for 7 GB on the disk")
    model = tmp_path / "model"
    model.mkdir()
    expected = write_stamped(model / "model.safetensors", tensor_bytes, count)
    child = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model), str(tmp_path / "cache")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "idle\n"
        idle = peak = anonymous_bytes(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        while child.poll() is None:
            peak = max(peak, anonymous_bytes(child.pid))
            time.sleep(0.02)
        assert child.returncode == 0
        assert [line.split() for line in child.stdout] == expected
    finally:
        child.kill()
        child.communicate()
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    assert 0 < peak - idle <= 150 * MEBIBYTE, f"{(peak - idle) / MEBIBYTE:.0f} MiB more than when it was idle"
    print(f"{(peak - idle) / MEBIBYTE:.1f} MiB more than the {idle / MEBIBYTE:.1f} MiB of an idle process")
