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

from adapter.errors import CacheNotWritable
from adapter.streaming.private import lock_exclusively, make_private, not_writable, refuse_foreign
from adapter.streaming.record import Identity
from adapter.streaming.slot import Boot, Slot


class Cache:
    """A cache directory.

    Args:
        root: Settings.cache_dir.
        boot_id: What tells one boot from another; None reads the kernel's.
        lock: Locks a descriptor or says that another has it; a seam for filesystems whose locks lie.
    """

    def __init__(
        self, root: Path, *, boot_id: str | None = None, lock: Callable[[int], bool] = lock_exclusively
    ) -> None:
        # absolute without following links: the names are written into a manifest that other processes read
        self.root: Path = Path(os.path.abspath(root))
        self.boot_id: str = boot_id or Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.lock = lock

    def slot(self, identity: Identity) -> Slot:
        """The place of one object; nothing is made on disk yet."""
        return Slot(self.root / "v1" / "objects", identity, Boot(self.boot_id, self.lock))

    def make(self) -> None:
        """Make the directory for filling; S-23: whether that works is known before anything is fetched.

        Raises:
            CacheNotWritable: This user cannot write there.
            CacheError: It belongs to somebody else, who could put anything there.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            refuse_foreign(self.root, os.stat(self.root), allow_any=os.geteuid() == 0)
            for path in (self.root / "v1", self.root / "v1" / "objects"):
                make_private(path)
        except FileExistsError:
            raise CacheNotWritable(f"{self.root} is no directory", path=str(self.root)) from None
        except OSError as error:
            raise not_writable(self.root, error) from error
        if not os.access(self.root / "v1" / "objects", os.W_OK | os.X_OK):
            raise not_writable(self.root, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
