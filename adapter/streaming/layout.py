"""A checkpoint's files under their own names in a directory: for volumes, image layers, and programs that want files.

<directory>/config.json, model.safetensors, …   each complete, or not there
            .coldstart-fetch.json               which versions they are: what has not changed is not fetched again
            .coldstart-fetch/                   a cache while files are fetched; what a killed fetch leaves there,
                                                the next one goes on with
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from adapter.errors import CacheError, CacheNotWritable
from adapter.streaming.cache import Cache
from adapter.streaming.manifest import ObjectEntry, StreamManifest, sync_directory, write_whole
from adapter.streaming.selection import Wanted

RECORD_NAME = ".coldstart-fetch.json"
STAGING_NAME = ".coldstart-fetch"
_MODE = 0o644
"""Of each file: an image's layer is read by whatever user the container runs as."""


class Layout:
    """A directory that a checkpoint is fetched into. A context manager: one process at a time.

    Args:
        directory: Made when it is missing.
    """

    def __init__(self, directory: Path) -> None:
        self.directory: Path = Path(os.path.abspath(directory))
        self._record: Path = self.directory / RECORD_NAME
        self._staging: Path = self.directory / STAGING_NAME
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Make and lock the directory.

        Raises:
            CacheNotWritable: It cannot be made, or is no directory.
            CacheError: Another process fetches into it.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._close()
            raise CacheError(
                f"another process fetches into {self.directory}: wait for its end", path=str(self.directory)
            ) from None
        except OSError as error:
            self._close()
            raise CacheNotWritable(
                f"{self.directory} cannot be used by uid {os.geteuid()}: {error.strerror}", path=str(self.directory)
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def cache(self) -> Cache:
        """Where files are filled, on the same filesystem."""
        return Cache(self._staging)

    def missing(self, wanted: Iterable[Wanted]) -> tuple[Wanted, ...]:
        """What has to be fetched: all that is not here in the very version, untouched since it was fetched."""
        record = self._read()
        return tuple(each for each in wanted if not self._is_here(each, record))

    def orders(self, address: str, store: str, missing: Iterable[Wanted]) -> StreamManifest:
        """The objects that a stream is to bring, as its option `previous` says them."""
        nowhere = Path(os.devnull)
        return StreamManifest(
            address,
            store,
            tuple(
                ObjectEntry(
                    name=each.info.key,
                    key=each.info.key,
                    version=each.info.version,
                    size_bytes=each.info.size_bytes,
                    kind=each.kind,
                    published=nowhere,
                    partial=nowhere,
                    journal=nowhere,
                )
                for each in missing
            ),
        )

    def take(self, streamed: StreamManifest) -> None:
        """Give what was streamed its own names, durably, and say in the record what it is.

        Raises:
            CacheError: A name cannot be had: a directory is in its place, or a file where it needs a directory.
        """
        record = self._read()
        for entry in streamed:
            target = self.directory / entry.name
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _settle(entry.published)
                entry.published.rename(target)
                status = target.stat()
                for parent in target.relative_to(self.directory).parents:
                    sync_directory(self.directory / parent)
            except OSError as error:
                raise CacheError(f"{target} cannot be written: {error.strerror}", path=str(target)) from error
            facts = {"version": entry.version, "size_bytes": entry.size_bytes, "mtime_ns": status.st_mtime_ns}
            record[entry.name] = {"store": streamed.store, **facts}
            self._write(record)
        shutil.rmtree(self._staging, ignore_errors=True)

    def _is_here(self, wanted: Wanted, record: Mapping[str, Any]) -> bool:
        noted = record.get(wanted.info.key)
        if not isinstance(noted, dict):
            return False
        try:
            status = os.stat(self.directory / wanted.info.key, follow_symlinks=False)
        except OSError:
            return False
        now = (wanted.info.version, wanted.info.size_bytes, status.st_size, status.st_mtime_ns)
        return now == (noted.get("version"), noted.get("size_bytes"), noted.get("size_bytes"), noted.get("mtime_ns"))

    def _read(self) -> dict[str, Any]:
        try:
            value = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return {}
        objects = value.get("objects") if isinstance(value, dict) and value.get("schema_version") == 1 else None
        return objects if isinstance(objects, dict) else {}

    def _write(self, objects: Mapping[str, Any]) -> None:
        text = json.dumps({"schema_version": 1, "objects": objects}, indent=1)
        write_whole(self._record, text.encode() + b"\n", durable=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _settle(path: Path) -> None:
    """Make a file durable and readable for everyone, before it gets its name."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.fchmod(descriptor, _MODE)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
