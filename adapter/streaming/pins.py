"""Pins: files in a slot of the cache that keep it from being evicted, each with a name of who needs it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from adapter.errors import CacheError
from adapter.streaming.manifest import write_whole

PREFIX = "pin-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def pin(slot: Path, name: str, reason: str = "") -> None:
    """Keep what is in the slot until `unpin`; any number of names may.

    Args:
        slot: The slot's directory.
        name: Who needs it, such as an image's id.
        reason: For people.

    Raises:
        CacheError: That is no name for a file, or the slot is gone.
    """
    path = _path(slot, name)
    try:
        write_whole(path, reason.encode() + b"\n")
    except OSError as error:
        raise CacheError(f"{slot} cannot be pinned: {error.strerror}", path=str(slot)) from error


def unpin(slot: Path, name: str) -> None:
    """Take the pin of that name away; none is no error.

    Raises:
        CacheError: That is no name for a file.
    """
    with suppress(FileNotFoundError):
        _path(slot, name).unlink()


def pins(slot: Path) -> tuple[str, ...]:
    """Names of those who need the slot."""
    try:
        return tuple(sorted(found.name.removeprefix(PREFIX) for found in slot.iterdir() if _is_pin(found.name)))
    except FileNotFoundError:
        return ()


def _path(slot: Path, name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise CacheError(f"{name!r} is no name for a pin: letters, digits, dot, dash and underscore are", name=name)
    return slot / f"{PREFIX}{name}"


def _is_pin(name: str) -> bool:
    return name.startswith(PREFIX) and ".tmp-" not in name
