"""What is known of a published file: which object it is, whether it survives a power cut, and its checksums."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Self

from adapter.streaming.integrity import Checksums
from adapter.streaming.manifest import write_whole

RECORD_NAME = "record.json"
_SCHEMA = 1


class Trust(Enum):
    """What a published file may be taken for."""

    NONE = "none"
    """There is no proof of what it is."""
    UNPROVEN = "unproven"
    """It was complete in an earlier boot, and may not have reached the disk; its checksums tell."""
    FULL = "full"
    """It is complete."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What makes a cached object this one."""

    store: str
    key: str
    """The whole key: address and name, so that two addresses of one store do not meet by chance."""
    version: str
    size_bytes: int

    @property
    def digest(self) -> str:
        """Name of its directory."""
        text = f"{self.store}\0{self.key}\0{self.version}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class Record:
    """The proof beside a published file."""

    identity: Identity
    boot_id: str
    """The boot in which the file was written."""
    synced: bool
    """Whether a power cut does no harm."""
    completed_at: float
    """Seconds of the wall clock."""
    checksums: Checksums | None = None

    @classmethod
    def now(cls, identity: Identity, boot_id: str, checksums: Checksums | None = None) -> Self:
        """The record of a file that was completed just now."""
        return cls(identity, boot_id, False, time.time(), checksums)

    def trust(self, boot_id: str) -> Trust:
        """What it proves in this boot (D8)."""
        if self.synced or self.boot_id == boot_id:
            return Trust.FULL
        return Trust.UNPROVEN if self.checksums is not None else Trust.NONE

    def as_synced(self) -> Self:
        """The same, of a file that reached the disk."""
        return replace(self, synced=True)

    def write(self, path: Path) -> None:
        """Put it under that name, whole or not at all."""
        identity = self.identity
        value: dict[str, object] = {
            "record": _SCHEMA,
            "store": identity.store,
            "key": identity.key,
            "version": identity.version,
            "size_bytes": identity.size_bytes,
            "boot_id": self.boot_id,
            "synced": self.synced,
            "completed_at": self.completed_at,
        }
        if self.checksums is not None:
            value["checksums"] = self.checksums.to_json()
        write_whole(path, json.dumps(value, separators=(",", ":")).encode() + b"\n", durable=self.synced)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The record under that name; None where there is none that makes sense."""
        try:
            value = json.loads(path.read_bytes())
            if value["record"] != _SCHEMA or type(value["size_bytes"]) is not int:
                return None
            identity = Identity(str(value["store"]), str(value["key"]), str(value["version"]), value["size_bytes"])
            checksums = Checksums.from_json(value["checksums"]) if "checksums" in value else None
            if checksums is not None and checksums.size_bytes != identity.size_bytes:
                return None
            return cls(
                identity, str(value["boot_id"]), value["synced"] is True, float(value["completed_at"]), checksums
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
