"""Range reads of what lies at web addresses: each answer is checked as those of S3 are."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Self

from adapter.errors import AccessDenied, Field, ObjectNotFound, StorageError, TruncatedRead, WrongRange
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, drain
from adapter.storage.s3_answers import checked_range
from adapter.storage.s3_body import Expected, receive
from adapter.storage.web_client import Reply, WebClient, WebOptions, refused

_STALE = (400, 401, 403, 404, 410)
"""What a place answers where a redirect led once, when its signature has ended or it has moved."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a redirect led."""

    url: str = field(repr=False)
    about: Mapping[str, str]
    """What the redirect said of the object."""


class WebSource:
    """Objects at web addresses; a subclass knows their addresses. Thread-safe.

    Args:
        store: The store's identity, for cache keys and messages.
        shown: Address of the source, as it may be shown; ends at a slash.
        prefix: What stands before a key in errors' fields.
        client: Sends requests.
        options: How servers are spoken to.
    """

    def __init__(self, store: str, shown: str, prefix: str, client: WebClient, options: WebOptions) -> None:
        self._store = store
        self._shown = shown
        self._prefix = prefix
        self._client = client
        self._options = options
        self._lock = threading.Lock()
        self._places: dict[str, Place] = {}
        self._comparable: set[str] = set()
        self._nonce = secrets.token_hex(8)

    @property
    def store(self) -> str:
        """The identity for cache keys."""
        return self._store

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """As `RangeSource.read_into`.

        Raises:
            StorageError: As the protocol says.
        """
        return drain(self.read_chunks(RangeRequest(key, start, len(into), version), into))

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`.

        Raises:
            StorageError: As the protocol says.
        """
        reply = self._ask(request) if request.length_bytes else None
        if reply is not None and reply.status == 416:
            reply.response.drain_conn()
            reply = None
        if reply is None:
            yield RangeAnswer(0, self._info(request.key, request.version))
            return
        facts = self._facts(request)
        info, length_bytes = self._checked(request, reply)
        if length_bytes == 0:
            reply.response.close()
            yield RangeAnswer(0, info)
            return
        expected = Expected(length_bytes, self._options.timeout_s, facts, request.watch)
        with closing(receive(_Body(reply.response), buffer, expected)) as counts:
            for count in counts:
                yield RangeAnswer(count, info)
        wanted_bytes = min(request.length_bytes, info.size_bytes - request.start)
        if length_bytes < wanted_bytes:
            raise TruncatedRead(
                f"{self._shown}{request.key}: the store gives {length_bytes} of {wanted_bytes} bytes at a time",
                **{**facts, "received_bytes": length_bytes, "shortened": True},
            )

    def close(self) -> None:
        """Give back connections; reads after this raise."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what a subclass knows ----------------------------------------------------------------------------------------

    def _url(self, key: str) -> str:
        """Where an object is asked for first."""
        raise ObjectNotFound(f"{self._shown}{key} has no address")

    def _described(self, headers: dict[str, str], about: Mapping[str, str]) -> dict[str, str]:
        """Headers whose ETag tells one version of the object from another.

        Args:
            headers: Of the answer.
            about: What a redirect said of the object.
        """
        etag = headers.get("etag", "").strip()
        if etag:
            if not etag.startswith("W/"):
                self._comparable.add(etag.strip('"'))
            return headers
        if headers.get("content-type", "").startswith("text/html"):
            return headers  # a page that says something is no object
        size = headers.get("content-range", "").rpartition("/")[2] or headers.get("content-length", "")
        # without any sign of its version, what was read is never taken for what is there at the next start
        return {**headers, "etag": f'"{headers.get("last-modified") or self._nonce} {size}"'}

    def _refused(self, reply: Reply, request: RangeRequest) -> StorageError:
        """The error that an answer means."""
        return refused(reply, f"{self._shown}{request.key}", self._facts(request))

    # -- requests -----------------------------------------------------------------------------------------------------

    def _ask(self, request: RangeRequest, *, whole: bool = False) -> Reply:
        """The answer to a range request, 200, 206 or 416."""
        headers = {} if whole else {"Range": f"bytes={_range(request)}"}
        if request.version in self._comparable:
            headers["If-Match"] = f'"{request.version}"'
        address, facts = f"{self._shown}{request.key}", self._facts(request)
        if not request.key or {"", ".", ".."}.intersection(request.key.split("/")):
            raise AccessDenied(f"{address!r} leads out of its address", **facts)  # clients resolve these (S-05)
        place = self._places.get(request.key)
        reply = self._client.get(place.url if place else self._url(request.key), headers, address, facts)
        if place is not None and reply.status in _STALE:
            reply.response.close()
            self._places.pop(request.key, None)
            reply = self._client.get(self._url(request.key), headers, address, facts)
        if reply.status not in (200, 206, 416):
            raise self._refused(reply, request)
        if reply.hops and reply.status != 416:
            about = {name: value for hop in reply.hops for name, value in hop.items()}
            with self._lock:
                self._places[request.key] = Place(reply.url, about)
        return reply

    def _checked(self, request: RangeRequest, reply: Reply) -> tuple[ObjectInfo, int]:
        place = self._places.get(request.key)
        try:
            headers = self._described(reply.headers, place.about if place else {})
            return checked_range(request, reply.status, headers, self._facts(request))
        except StorageError:
            reply.response.close()
            raise

    def _info(self, key: str, version: str | None = None) -> ObjectInfo:
        """Size and version, from the answer to a range of one byte: a signed address may allow no other method."""
        request = RangeRequest(key, 0, 1, version)
        reply = self._ask(request)
        if reply.status == 416:
            reply.response.drain_conn()
            reply = self._ask(request, whole=True)
        if reply.status == 200:
            reply.response.close()
            size = reply.headers.get("content-length", "")
            if not (size.isascii() and size.isdigit()):
                raise WrongRange(f"{self._shown}{key}: the answer gives no size", **self._facts(request))
            request = replace(request, length_bytes=int(size))
        info, _ = self._checked(request, reply)
        if reply.status == 206:
            expected = Expected(1, self._options.timeout_s, self._facts(request))
            with closing(receive(_Body(reply.response), memoryview(bytearray(1)), expected)) as counts:
                list(counts)
        return info

    def _facts(self, request: RangeRequest) -> dict[str, Field]:
        return {
            "store": self._store,
            "key": f"{self._prefix}{request.key}",
            "range": _range(request) if request.length_bytes else "",
        }


class _Body:
    """A response of the library as `receive` takes it."""

    def __init__(self, response: Any) -> None:
        self._response = response

    def __enter__(self) -> Any:
        return self._response

    def __exit__(self, *_: object) -> None:
        self.close()

    def readinto(self, view: memoryview) -> int:
        return int(self._response.readinto(view))

    def close(self) -> None:
        self._response.close()


def _range(request: RangeRequest) -> str:
    return f"{request.start}-{request.start + request.length_bytes - 1}"
