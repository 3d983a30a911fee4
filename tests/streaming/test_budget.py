"""Room for a cache: what the disk has, what the tightest memory limit leaves, what the user allows."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapter.streaming.budget import Budget, Kernel, Memory, memory_of, room

GIB = 1 << 30


def kernel(root: Path, cgroup: str, files: dict[str, str]) -> Kernel:
    """A kernel's files, with 16 GiB in the machine, 12 of them available."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "meminfo").write_text(
        f"MemTotal:  {16 << 20} kB\nMemFree: 1 kB\nMemAvailable: {12 << 20} kB\nHugePages_Total:  0\n"
    )
    (root / "proc" / "self" / "cgroup").write_text(cgroup)
    for name, content in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return Kernel(root / "proc", root / "cgroup")


def test_without_limits_it_is_the_machine(tmp_path: Path) -> None:
    assert memory_of(kernel(tmp_path, "0::/a\n", {"a/memory.max": "max\n"})) == Memory(16 * GIB, 12 * GIB)
    assert memory_of(Kernel(tmp_path / "none", tmp_path / "none")) == Memory(0, 0)


def test_the_lowest_limit_counts_wherever_it_stands_and_clean_files_can_be_had(tmp_path: Path) -> None:
    """The group of the process allows more than the one around it."""
    files = {
        "pod/memory.max": f"{4 * GIB}\n",
        "pod/memory.current": f"{3 * GIB}\n",
        "pod/memory.stat": f"anon 5\nfile {2 * GIB}\ninactive_file {GIB}\nactive_file {GIB // 2}\n",
        "pod/app/memory.max": f"{8 * GIB}\n",
        "pod/app/memory.current": "0\n",
        "pod/app/memory.high": "max\n",
    }
    assert memory_of(kernel(tmp_path, "0::/pod/app\n", files)) == Memory(4 * GIB, GIB + GIB + GIB // 2)


def test_in_a_container_the_own_group_is_at_the_root(tmp_path: Path) -> None:
    files = {"memory.max": f"{2 * GIB}\n", "memory.current": f"{GIB}\n"}
    assert memory_of(kernel(tmp_path, "0::/../outside/name\n", files)) == Memory(2 * GIB, GIB)


def test_groups_of_version_one_are_read_as_well(tmp_path: Path) -> None:
    files = {
        "memory/docker/memory.limit_in_bytes": f"{GIB}\n",
        "memory/docker/memory.usage_in_bytes": f"{GIB}\n",
        "memory/docker/memory.stat": "inactive_file 1\ntotal_inactive_file 4096\n",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    found = memory_of(kernel(tmp_path, "4:cpu,cpuacct:/docker\n3:memory:/docker\n0::/\n", files))
    assert found == Memory(GIB, 4096)


def test_on_a_disk_the_room_is_that_of_the_disk(tmp_path: Path) -> None:
    found = room(tmp_path, Budget())
    assert found.limit_bytes is None
    assert room(tmp_path, Budget(limit_bytes=5)).limit_bytes == 5


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs")
def test_on_tmpfs_memory_is_what_counts(tmp_path: Path) -> None:
    files = {"memory.max": f"{GIB}\n", "memory.current": f"{GIB - 4096}\n"}
    found = room(Path("/dev/shm"), Budget(), kernel(tmp_path, "0::/\n", files))
    assert found.free_bytes == 4096
    assert found.limit_bytes == int(GIB * 0.8)
