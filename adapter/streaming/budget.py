"""How much a cache may grow: the room on its disk, or in memory where the disk is memory, and what the user allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from adapter.streaming.shard_file import free_bytes, is_memory

MEMORY_SHARE = 0.8
"""So much of the memory may be cache where the cache is memory and no limit is set: the rest is for the interpreter,
the framework and what serving needs."""
_UNLIMITED = 1 << 60
"""Version 1 of control groups says "no limit" by a number near 2 ** 63."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What the user allows."""

    limit_bytes: int | None = None
    """The most that all cached files may have together; more is refused."""
    floor_bytes: int = 0
    """So much of the disk is left free as long as anything can be evicted for it; a start never fails for it."""


@dataclass(frozen=True, slots=True)
class Room:
    """What there is."""

    free_bytes: int
    """What can be written now."""
    limit_bytes: int | None
    """The most that all cached files may have together."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Where the kernel tells about memory; other directories in tests."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


def room(directory: Path, budget: Budget, kernel: Kernel | None = None) -> Room:
    """The room for files in a directory."""
    free, limit = free_bytes(directory), budget.limit_bytes
    if is_memory(directory):
        memory = memory_of(kernel or Kernel())
        free = min(free, memory.available_bytes)
        limit = int(memory.total_bytes * MEMORY_SHARE) if limit is None else limit
    return Room(free, limit)


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory that this process may use, by the lowest of all limits that hold for it."""

    total_bytes: int
    available_bytes: int
    """Of it, what can be had without taking it from another process: free, or clean cached files."""


def memory_of(kernel: Kernel) -> Memory:
    """Memory of the machine or of the tightest control group around this process, version 1 or 2.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst. Pages of tmpfs count as
    anonymous there, so what `inactive_file` and `active_file` count can be dropped.
    """
    machine = _table(kernel.proc / "meminfo")
    total = machine.get("MemTotal", 0) * 1024
    available = machine.get("MemAvailable", machine.get("MemFree", 0)) * 1024
    for group in _groups(kernel):
        limits = [_number(group / name) for name in ("memory.max", "memory.high", "memory.limit_in_bytes")]
        limit = min((each for each in limits if each is not None and each < _UNLIMITED), default=None)
        if limit is None:
            continue
        used = _number(group / "memory.current") or _number(group / "memory.usage_in_bytes") or 0
        counts = _table(group / "memory.stat")
        clean = sum(counts.get(f"total_{name}", counts.get(name, 0)) for name in ("inactive_file", "active_file"))
        total = min(total, limit) if total else limit
        available = min(available, max(0, limit - used + clean))
    return Memory(total, available)


def _groups(kernel: Kernel) -> Iterator[Path]:
    """The directories of the control groups of this process, the innermost first, up to the root that can be seen."""
    try:
        lines = (kernel.proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory") and "memory" not in controllers.split(","):
            continue
        root = kernel.cgroup if not controllers else kernel.cgroup / "memory"
        group = root / path.lstrip("/")
        # a container often sees its own group at the root, while the path is the one outside
        group = group if group.is_dir() and ".." not in group.parts else root
        yield group
        while group != root:
            group = group.parent
            yield group


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _table(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines:
        words = line.replace(":", " ").split()
        if len(words) >= 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found
