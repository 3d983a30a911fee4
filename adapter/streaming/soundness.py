"""Whether what lies in a cache may be taken: by its record, by its header, and by its checksums where that is asked."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from adapter.checkpoint.header import LENGTH_BYTES
from adapter.checkpoint.ranges import ByteRange
from adapter.errors import AdapterError, CacheError, CheckpointError
from adapter.streaming.filling import Filling
from adapter.streaming.integrity import sha256_of
from adapter.streaming.options import StreamOptions
from adapter.streaming.reader import open_sized, read_header
from adapter.streaming.record import Trust
from adapter.timeline import Timeline

_NAMED = 8
"""So many damaged ranges are named in the timeline; more tell nothing more."""


class Soundness:
    """Judges cached objects; each published file is read once at most.

    Args:
        options: `verify` says how much is asked of a file that is complete by its record.
        timeline: Where a file that is not taken is told, and why.
        ended: Tells whether there is no time left for reading files; its error is raised.
    """

    def __init__(self, options: StreamOptions, timeline: Timeline, ended: Callable[[], AdapterError | None]) -> None:
        self.digests: Mapping[str, str] = {}
        """SHA-256 by name, which `verify="sha256"` asks for."""
        self._options = options
        self._timeline = timeline
        self._ended = ended
        self._unsound: set[Path] = set()
        self._intact: set[Path] = set()

    def usable(self, filling: Filling, *, alone: bool) -> bool:
        """Whether the published file can be taken as it is.

        Args:
            filling: The object.
            alone: No other process checks it at this time, or could say so afterwards: what needs a proof by checksum
                is only then looked at, so that several replicas do not all read a large file.
        """
        slot = filling.slot
        trust = slot.trust()
        if trust is Trust.NONE or slot.published in self._unsound:
            return False
        if trust is Trust.UNPROVEN and not alone:
            return False
        if filling.kind == "shard":
            try:
                filling.check_header(self._options.header_limit_bytes)
            except CheckpointError as error:
                return self._refuse(filling, error.message)
        if slot.published not in self._intact:
            if (trust is Trust.UNPROVEN or self._options.verify == "crc") and not self._fits_checksums(filling):
                return False
            if self._options.verify == "sha256" and not self._fits_digest(filling):
                return False
            self._intact.add(slot.published)
        slot.sweep()
        return True

    def digest(self, name: str) -> str | None:
        """The SHA-256 digest that an object must have."""
        return self.digests.get(name)

    def usable_part(self, filling: Filling) -> bool:
        """Whether the header of a filling file, as far as it is there, makes sense."""

        class Missing(Exception):
            pass

        def read(wanted: ByteRange) -> bytes:
            if filling.missing(wanted):
                raise Missing
            return filling.read(wanted)

        if filling.kind != "shard" or filling.size_bytes < LENGTH_BYTES:
            return True
        try:
            read_header(read, filling.name, filling.size_bytes, self._options.header_limit_bytes)
        except Missing:
            return True
        except CheckpointError as error:
            return self._refuse(filling, error.message)
        return True

    def _fits_checksums(self, filling: Filling) -> bool:
        with self._timeline.span("cache.verify", "network", file=filling.name, bytes=filling.size_bytes):
            bad = filling.slot.damaged(self._ended)
        if bad is None:
            return self._refuse(filling, "it has no checksum that can be computed here")
        if bad:
            more = f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
            ranges = ", ".join(str(each) for each in bad[:_NAMED])
            return self._refuse(filling, f"bytes {ranges}{more} are not what their checksums say")
        return True

    def _fits_digest(self, filling: Filling) -> bool:
        expected = self.digest(filling.name)
        if expected is None:
            return True
        try:
            descriptor = open_sized(filling.slot.published, filling.size_bytes)
        except (FileNotFoundError, CacheError):
            return False
        try:
            with self._timeline.span("cache.verify", "network", file=filling.name, bytes=filling.size_bytes):
                found = sha256_of(descriptor, filling.size_bytes, self._ended)
        finally:
            os.close(descriptor)
        return found == expected or self._refuse(filling, f"its SHA-256 digest is {found}, not {expected}")

    def _refuse(self, filling: Filling, reason: str) -> bool:
        self._timeline.mark("cache.dropped", "network", file=filling.name, reason=reason)
        self._unsound.add(filling.slot.published)
        return False
