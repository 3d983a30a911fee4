"""What benchmarks of streams need: a checkpoint in memory, the compiled floor, an environment with the contenders."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapter.checkpoint.ranges import ByteRange
from adapter.streaming.integrity import best_algorithm, crc_of

REPOSITORY = Path(__file__).resolve().parents[1]
BUCKET, PREFIX, SHARDS = "models", "stack/", 4
TENSOR_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What is streamed."""

    root: Path
    names: list[str]
    sizes: list[int]
    checksums: list[int]
    tensors: list[int]
    """CRC-32 of each tensor, by name."""

    @property
    def size_bytes(self) -> int:
        """All shards together."""
        return sum(self.sizes)


@contextlib.contextmanager
def memory_directory() -> Iterator[Path]:
    """A directory on tmpfs that goes away whatever happens."""
    shared = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="coldstart-bench-", dir=shared if shared.is_dir() else None))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def made(directory: Path) -> Path:
    """The directory, made."""
    directory.mkdir(parents=True)
    return directory


def write_checkpoint(root: Path, gigabytes: float) -> Checkpoint:
    """Shards of random tensors of 16 MiB each."""
    directory = made(root / BUCKET / PREFIX)
    count = max(1, round(gigabytes * 1e9 / SHARDS / TENSOR_BYTES))
    names = [f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors" for shard in range(SHARDS)]
    tensors: dict[str, int] = {}
    for shard, name in enumerate(names):
        with (directory / name).open("wb") as file:
            described = {
                f"layers.{shard:02}.{i:04}.weight": {
                    "dtype": "BF16",
                    "shape": [TENSOR_BYTES // 8192, 4096],
                    "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
                }
                for i in range(count)
            }
            header = json.dumps(described).encode()
            header += b" " * (-(len(header) + 8) % 64)
            file.write(len(header).to_bytes(8, "little") + header)
            for tensor in described:
                data = os.urandom(TENSOR_BYTES)
                tensors[tensor] = zlib.crc32(data)
                file.write(data)
    weight_map = {tensor: names[int(tensor.split(".")[1])] for tensor in tensors}
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": len(tensors) * TENSOR_BYTES}, "weight_map": weight_map}))
    sizes = [(directory / name).stat().st_size for name in names]
    checksums = [checksum(directory / name, size) for name, size in zip(names, sizes, strict=True)]
    return Checkpoint(root, names, sizes, checksums, [tensors[name] for name in sorted(tensors)])


def checksum(path: Path, size_bytes: int) -> int:
    """Of a file that must have that size."""
    if path.stat().st_size != size_bytes:
        raise SystemExit(f"{path.name} has {path.stat().st_size} bytes, not {size_bytes}")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = crc_of(descriptor, ByteRange(0, size_bytes), best_algorithm(), memoryview(bytearray(1 << 20)))
    finally:
        os.close(descriptor)
    assert found is not None
    return found


def build_floor(work: Path) -> Path:
    """The compiled floor."""
    binary = work / "floor"
    source = Path(__file__).with_name("floor.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-o", str(binary), str(source), "-lpthread"], check=True)
    return binary


def make_venv() -> str:
    """Python of a virtual environment with the group `bench`, made when it is missing."""
    directory = Path(tempfile.gettempdir()) / f"coldstart-bench-venv-{os.getuid()}"
    python, stamp = directory / "bin" / "python", directory / ".ready"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
        subprocess.run([*pip, "-c", "constraints.txt", "--group", "bench"], check=True, cwd=REPOSITORY)
        stamp.touch()
    return str(python)
