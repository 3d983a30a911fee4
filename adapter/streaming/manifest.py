"""What a fetcher streams and where it puts it: one value, written once as a file, read by every other process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, cast, get_args

from adapter.checkpoint.tensor_filter import TensorFilter
from adapter.errors import CacheError, ConfigurationError
from adapter.streaming.waiting import Deadline, Failure, wait_for

Kind = Literal["shard", "index", "file"]

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One object of the store and its place on local disk.

    Either the published name is there, then it is complete; or the partial file and its journal are, and the journal
    says which bytes are. Both names lead to the same inode when a part is sealed.
    """

    name: str
    """Relative to the address, checked: it does not lead out of a directory it is joined to."""
    key: str
    """As the store knows it, relative to the address."""
    version: str
    size_bytes: int
    kind: Kind
    published: Path
    partial: Path
    journal: Path

    def to_json(self) -> dict[str, object]:
        """Its fields as JSON values."""
        return {
            "name": self.name,
            "key": self.key,
            "version": self.version,
            "size_bytes": self.size_bytes,
            "kind": self.kind,
            "published": str(self.published),
            "partial": str(self.partial),
            "journal": str(self.journal),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The entry that `to_json` described.

        Raises:
            KeyError, TypeError, ValueError: It is no such thing.
        """
        if value["kind"] not in get_args(Kind) or type(value["size_bytes"]) is not int:
            raise ValueError("not an entry of a stream manifest")
        return cls(
            name=str(value["name"]),
            key=str(value["key"]),
            version=str(value["version"]),
            size_bytes=value["size_bytes"],
            kind=cast(Kind, value["kind"]),
            published=Path(value["published"]),
            partial=Path(value["partial"]),
            journal=Path(value["journal"]),
        )


@dataclass(frozen=True, slots=True)
class StreamManifest:
    """All objects of one checkpoint: shards in the order in which they are streamed, then the files beside them."""

    address: str
    store: str
    objects: tuple[ObjectEntry, ...]
    tensors: TensorFilter = field(default_factory=TensorFilter)
    """What of the shards is streamed; the rest of them may stay empty."""

    def __iter__(self) -> Iterator[ObjectEntry]:
        return iter(self.objects)

    @property
    def shards(self) -> tuple[ObjectEntry, ...]:
        """The safetensors files."""
        return tuple(entry for entry in self.objects if entry.kind == "shard")

    @property
    def files(self) -> tuple[ObjectEntry, ...]:
        """Everything beside the shards, the index included."""
        return tuple(entry for entry in self.objects if entry.kind != "shard")

    @property
    def total_bytes(self) -> int:
        """Sum of the sizes of all objects."""
        return sum(entry.size_bytes for entry in self.objects)

    def find(self, name: str) -> ObjectEntry | None:
        """The entry of that name."""
        return next((entry for entry in self.objects if entry.name == name), None)

    def write(self, path: Path) -> None:
        """Put it under that name, whole or not at all, for this user only."""
        text = json.dumps(
            {
                "schema_version": _SCHEMA,
                "address": self.address,
                "store": self.store,
                "objects": [entry.to_json() for entry in self.objects],
                "only": self.tensors.only,
                "skip": self.tensors.skip,
            },
            separators=(",", ":"),
        )
        write_whole(path, text.encode() + b"\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        """The manifest under that name.

        Raises:
            FileNotFoundError: It has not been written.
            CacheError: It is no manifest, or one of another version of this package.
        """
        data = path.read_bytes()
        try:
            value = json.loads(data)
            if value["schema_version"] != _SCHEMA:
                raise ValueError(f"schema version {value['schema_version']!r}")
            return cls(
                address=str(value["address"]),
                store=str(value["store"]),
                objects=tuple(ObjectEntry.from_json(entry) for entry in value["objects"]),
                tensors=TensorFilter(value.get("only", ()), value.get("skip", ())),
            )
        except (ValueError, KeyError, TypeError, ConfigurationError) as error:
            raise CacheError(f"{path} is no stream manifest of this version: {error}", path=str(path)) from None


def wait_for_manifest(path: Path, failure: Failure | None = None, deadline: Deadline | None = None) -> StreamManifest:
    """The manifest, as soon as the fetcher has written it.

    Raises:
        AdapterError: The fetcher failed; its own error.
        InitTimeout: The deadline passed.
        CacheError: What is there is no manifest.
    """

    def look() -> StreamManifest | None:
        try:
            return StreamManifest.read(path)
        except FileNotFoundError:
            return None

    return wait_for(look, lambda: "the list of objects of the checkpoint", failure=failure, deadline=deadline)


def write_whole(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace a file by one rename: readers see the old or the new content, never a part.

    Args:
        path: The final name.
        data: All of its content.
        durable: Also survive a power cut (fsync of file and directory).
    """
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}-{os.urandom(4).hex()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        # after the rename: a temporary file that nobody has open is one that somebody left
        os.close(descriptor)
    if durable:
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
