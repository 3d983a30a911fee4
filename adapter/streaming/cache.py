"""The cache directory: one slot an object, named by store, key and version; who fills it, and what may be trusted.

    <root>/v1/objects/<digest>/  <basename>               published: complete, read-only, never written again
                                 <basename>.part-<id>     filling
                                 <basename>.journal-<id>  which bytes of it are there
                                 record.json              what the published file is; without it the file is not trusted
                                 lease                    locked by the fetcher that fills (D6)

The record is written before the file is published, so a published name without one is not ours or lost its proof
(S-20). Nothing here is synced to disk before readiness (D8): a killed process loses nothing, since the page cache
stays; a rebooted machine may, so what was not yet synced counts only within the boot that wrote it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Self

from adapter.errors import CacheNotWritable
from adapter.settings import Settings
from adapter.streaming.budget import Budget
from adapter.streaming.private import lock_exclusively, make_private, not_writable, refuse_foreign
from adapter.streaming.record import Identity
from adapter.streaming.slot import Boot, Slot


class Cache:
    """A cache directory.

    Args:
        root: Settings.cache_dir.
        boot_id: What tells one boot from another; None reads the kernel's.
        lock: Locks a descriptor or says that another has it; a seam for filesystems whose locks lie.
        budget: How much it may grow.
        fallback: Where things go when this user cannot write there.
    """

    def __init__(
        self,
        root: Path,
        *,
        boot_id: str | None = None,
        lock: Callable[[int], bool] = lock_exclusively,
        budget: Budget | None = None,
        fallback: Path | None = None,
    ) -> None:
        # absolute without following links: the names are written into a manifest that other processes read
        self.root: Path = Path(os.path.abspath(root))
        self.boot_id: str = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.lock = lock
        self.budget: Budget = budget or Budget()
        self.objects: Path = self.root / "v1" / "objects"
        """Where the slots are."""
        self.fallback: Cache | None = (
            Cache(fallback, boot_id=boot_id, lock=lock, budget=budget) if fallback is not None else None
        )
        """Used when this one cannot be written (S-23)."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The cache that the settings ask for."""
        budget = Budget(settings.cache_limit_bytes, settings.cache_floor_bytes)
        return cls(settings.cache_dir, budget=budget, fallback=settings.cache_fallback)

    def slot(self, identity: Identity) -> Slot:
        """The place of one object; nothing is made on disk yet."""
        return Slot(self.objects, identity, Boot(self.boot_id, self.lock))

    def make(self, *, in_public: bool = False) -> None:
        """Make the directory for filling; S-23: whether that works is known before anything is fetched.

        Args:
            in_public: Everybody may make names beside it, as in /tmp: it must be this user's own, also for root.

        Raises:
            CacheNotWritable: This user cannot write there.
            CacheError: It belongs to somebody else, who could put anything there.
        """
        try:
            if in_public:
                make_private(self.root)
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign(self.root, os.stat(self.root), allow_any=os.geteuid() == 0)
            for path in (self.root / "v1", self.objects):
                make_private(path)
        except FileExistsError:
            raise CacheNotWritable(f"{self.root} is no directory", path=str(self.root)) from None
        except OSError as error:
            raise not_writable(self.root, error) from error
        if not os.access(self.objects, os.W_OK | os.X_OK):
            raise not_writable(self.root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
