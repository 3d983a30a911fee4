"""What makes up the checkpoint under an address, also where the store does not let us list (S-14)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from adapter.checkpoint.index import INDEX_NAME, SINGLE_NAME, WeightIndex, find_index
from adapter.errors import AccessDenied, ObjectNotFound, WrongRange
from adapter.storage.base import ObjectInfo, RangeSource
from adapter.streaming.selection import WELL_KNOWN, Selection, select

_PROBES = 16
"""Objects asked for by name at a time, at the most."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects under an address: all of them, or those that were found by name."""

    objects: Mapping[str, ObjectInfo]
    denied: AccessDenied | None = None
    """Why names had to be guessed."""


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """Which objects are streamed, and the weight index they were chosen by."""

    selection: Selection
    index_name: str | None
    index: WeightIndex | None


def list_objects(source: RangeSource, *, connections: int) -> Listing:
    """What is there; where listing is denied, what is there of the names that checkpoints have.

    Raises:
        StorageError: The store could not be read.
    """
    try:
        return Listing({info.key: info for info in source.list()})
    except AccessDenied as error:
        return Listing(probe(source, (INDEX_NAME, SINGLE_NAME, *WELL_KNOWN), connections=connections), error)


def find_checkpoint(
    source: RangeSource,
    listing: Listing,
    read_index: Callable[[ObjectInfo], WeightIndex],
    *,
    address: str,
    order: Sequence[str] = (),
) -> FoundCheckpoint:
    """The checkpoint in a listing.

    Args:
        source: Where the objects are.
        listing: From `list_objects`.
        read_index: Gives the weight index that an object holds.
        address: For messages.
        order: Shards that are wanted first; a hint.

    Raises:
        AccessDenied: Listing is denied, and neither an index nor a single shard can be read by its name.
        WeightIndexError: Shards are missing, there are none, or the index is malformed.
        StorageError: The store could not be read.
    """
    objects = dict(listing.objects)
    name = find_index(objects)
    index = read_index(objects[name]) if name is not None else None
    if listing.denied is not None:
        if index is not None:
            objects |= probe(source, index.shards, connections=_PROBES)
        elif SINGLE_NAME not in objects:
            raise AccessDenied(
                f"{listing.denied.message}; without the permission to list, {INDEX_NAME} or {SINGLE_NAME} must be "
                "readable, and neither is there or permitted",
                **listing.denied.fields,
            ) from listing.denied
    return FoundCheckpoint(select(objects, index, name, address=address, order=order), name, index)


def probe(source: RangeSource, names: Iterable[str], *, connections: int) -> dict[str, ObjectInfo]:
    """Which of these objects are there, found by reading a byte of each, or no byte where ranges are ignored (S-09).

    Raises:
        StorageError: The store could not be read.
    """

    def look(name: str) -> ObjectInfo | None:
        try:
            return source.read_into(name, 0, memoryview(bytearray(1))).info
        except (ObjectNotFound, AccessDenied):
            return None
        except WrongRange as error:
            if not error.fields.get("ignores_range"):
                raise
            return source.read_into(name, 0, memoryview(b"")).info

    with ThreadPoolExecutor(min(connections, _PROBES)) as pool:
        return {info.key: info for info in pool.map(look, names) if info is not None}
