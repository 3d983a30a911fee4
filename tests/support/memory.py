"""What processes take of memory."""

from __future__ import annotations

from pathlib import Path


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that no file backs; 0 when it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:")), 0)
