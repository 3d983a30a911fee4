"""Checksums that a store keeps of whole objects, where it keeps any: for what was read in ranges."""

from __future__ import annotations

import binascii
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from adapter.errors import StorageError

ALGORITHMS = ("crc64nvme", "crc32c", "crc32", "sha256")
"""As S3 names them; those that tell most first. The older ones that S3 also knows are never made for whole objects
that were uploaded in parts, or are no better."""


@dataclass(frozen=True, slots=True)
class StoredChecksum:
    """What a store says of a whole object."""

    algorithm: str
    """crc64nvme, crc32c, crc32 or sha256."""
    value: str
    """In hexadecimal digits."""


@runtime_checkable
class ChecksummedSource(Protocol):
    """A source that can say an object's checksum."""

    def stored_checksum(self, key: str, *, version: str | None = None) -> StoredChecksum | None:
        """The checksum of the whole object, when the store has one; one request.

        Raises:
            StorageError: It could not be asked, or the object is no longer that version.
        """
        ...


def stored_checksum(source: object, key: str, version: str | None) -> StoredChecksum | None:
    """The same of any source; None also where it could not be asked, since nobody promised one."""
    if isinstance(source, ChecksummedSource):
        with suppress(StorageError):
            return source.stored_checksum(key, version=version)
    return None


def from_s3(answer: Mapping[str, object]) -> StoredChecksum | None:
    """The checksum in an answer of HeadObject, when it is that of the whole object and not of its parts' checksums.

    Source: Amazon S3 user guide, "Checking object integrity": `x-amz-checksum-type` is FULL_OBJECT or COMPOSITE; where
    it is missing, a composite value ends in a dash and the number of parts.
    """
    if answer.get("ChecksumType") == "COMPOSITE":
        return None
    for name in ALGORITHMS:
        encoded = answer.get(f"Checksum{name.upper()}")
        if isinstance(encoded, str) and "-" not in encoded:
            try:
                return StoredChecksum(name, binascii.a2b_base64(encoded, strict_mode=True).hex())
            except ValueError:
                continue
    return None
