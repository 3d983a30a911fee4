"""Objects under a local directory. Nothing outside the directory is read, whatever names and symlinks say (S-05)."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from adapter.errors import AccessDenied, ObjectChanged, ObjectNotFound, StorageError
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, drain


class FileSource:
    """The files of a directory, read by range. Thread-safe; holds nothing open between reads.

    Args:
        directory: The address's directory; symlinks on the way to it are followed, symlinks out of it are refused.
    """

    def __init__(self, directory: Path) -> None:
        self._root = os.path.realpath(directory)
        self._closed = False

    @property
    def store(self) -> str:
        """The identity for cache keys."""
        return f"file://{self._root}"

    def list(self) -> Iterator[ObjectInfo]:
        """Every regular file below the directory, as `RangeSource.list`; links that lead out of it are left out.

        Raises:
            ObjectNotFound: The directory is missing or holds no file.
            AccessDenied: It may not be read.
        """
        self._refuse_closed()
        found: list[ObjectInfo] = []
        refused: list[str] = []
        try:
            for key in _walk(self._root, "", refused):
                status = os.stat(os.path.join(self._root, key))
                found.append(ObjectInfo(key, status.st_size, _version(status)))
        except OSError as error:
            raise self._mapped(error, "") from error
        if not found:
            hint = f"; {len(refused)} symlinks lead out of it and are not followed" if refused else ""
            raise ObjectNotFound(f"{self.store} holds no files{hint}", store=self.store)
        yield from sorted(found, key=lambda info: info.key)

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """As `RangeSource.read_into`.

        Raises:
            ObjectNotFound, AccessDenied: Not there, not readable, or outside the directory.
            ObjectChanged: The file is no longer `version`.
            StorageError: The disk failed.
        """
        return drain(self.read_chunks(RangeRequest(key, start, len(into), version), into))

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`.

        Raises:
            ObjectNotFound, AccessDenied: Not there, not readable, or outside the directory.
            ObjectChanged: The file is no longer `request.version`, or was changed while it was read.
            StorageError: The disk failed.
        """
        self._refuse_closed()
        descriptor = self._open(request.key)
        try:
            info = self._info(request.key, descriptor, request.version)
            stop = min(info.size_bytes, request.start + request.length_bytes)
            at = request.start
            while True:
                try:
                    count = os.preadv(descriptor, [buffer[: max(0, stop - at)]], at) if at < stop else 0
                except OSError as error:
                    raise self._mapped(error, request.key) from error
                self._info(request.key, descriptor, info.version)
                if at < stop and count == 0:
                    raise self._changed(request.key, info.version)
                yield RangeAnswer(count, info)
                at += count
                if at >= stop:
                    return
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Reads after this raise."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self, key: str) -> int:
        """A descriptor of the file, opened by its resolved path so that a link put there later is not followed."""
        if "\0" in key or not key:
            raise ObjectNotFound(f"{self.store} has no file {key!r}", store=self.store, key=key)
        resolved = os.path.realpath(os.path.join(self._root, key))
        if not resolved.startswith(self._root.rstrip("/") + "/"):
            raise AccessDenied(
                f"{key!r} leads out of {self._root} and is not read; put the file itself into the directory",
                store=self.store,
                key=key,
            )
        try:
            return os.open(resolved, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe never blocks
        except OSError as error:
            raise self._mapped(error, key) from error

    def _info(self, key: str, descriptor: int, version: str | None) -> ObjectInfo:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectNotFound(f"{self._root}/{key} is not a regular file", store=self.store, key=key)
        info = ObjectInfo(key, status.st_size, _version(status))
        if version is not None and info.version != version:
            raise self._changed(key, version)
        return info

    def _changed(self, key: str, version: str) -> ObjectChanged:
        return ObjectChanged(
            f"{self._root}/{key} was changed while it was being read (it was {version})", store=self.store, key=key
        )

    def _mapped(self, error: OSError, key: str) -> StorageError:
        path = os.path.join(self._root, key)
        facts = {"store": self.store, "key": key, "cause": errno.errorcode.get(error.errno or 0, str(error))}
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return ObjectNotFound(f"{path.rstrip('/')} {_what_is(Path(self._root))}", **facts)
        if error.errno in (errno.EACCES, errno.EPERM, errno.ELOOP):
            return AccessDenied(f"{path} may not be read by uid {os.geteuid()}: {error.strerror}", **facts)
        return StorageError(f"{path} could not be read: {error.strerror}", **facts)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StorageError(f"{self.store} is closed", store=self.store)


def _walk(root: str, below: str, refused: list[str]) -> Iterator[str]:
    """Keys of the regular files below; directories reached by a link are not entered, which also ends loops."""
    with os.scandir(os.path.join(root, below)) as entries:
        for entry in entries:
            key = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{key}/", refused)
            elif entry.is_file():
                inside = os.path.realpath(entry.path).startswith(root.rstrip("/") + "/")
                if inside or not entry.is_symlink():
                    yield key
                else:
                    refused.append(key)


def _version(status: os.stat_result) -> str:
    return f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"


def _what_is(root: Path) -> str:
    if root.is_file():
        return f"is a file: name the directory that it is in, {root.parent}"
    if root.is_dir():
        return "does not exist"
    return (
        "does not exist: --weights, COLDSTART_WEIGHTS or the handler's weights= names the directory; a relative path "
        f"counts from {os.getcwd()}"
    )
