"""An object store for laptops, demos and tests: the reading part of the S3 protocol over the files of a directory.

`DIR/bucket/key` is the object `key` of `bucket`. Any credentials are accepted. The link can be made as slow as a real
one, and every request is written down with the bytes that were really sent.

Source of the protocol: Amazon S3 API reference, GetObject, HeadObject, ListObjectsV2, error responses.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import escape

import aiofiles
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from adapter.emulator.request_log import OpenRequest, RequestLog
from adapter.emulator.shaping import RequestLimit, Shaping, TokenBucket

FAST_CHUNK_BYTES = 1 << 20
"""Sent at a time on an unlimited link; larger pieces gain nothing."""
SHAPED_CHUNK_BYTES = 256 << 10
"""Sent at a time on a limited link: 2 ms of 1 Gb/s, so that connections share it evenly."""
LIST_LIMIT = 1000
"""Keys a page of a listing holds at most, as in S3."""

_RANGE = re.compile(r"bytes=\s*([0-9]*)-([0-9]*)\s*", re.ASCII)

_Entry = tuple[str, os.stat_result]


def object_store(root: Path, shaping: Shaping | None = None, log: RequestLog | None = None) -> Starlette:
    """The ASGI application that serves the files under `root` as `/{bucket}/{key}`.

    `GET /-/requests` gives what was served (with `?log=1` each request too), `POST /-/reset` forgets it.

    Args:
        root: Directory of buckets; symlinks in it are followed.
        shaping: How slow the link is.
        log: Where requests are written down.
    """
    store = _Store(root, shaping or Shaping(), log or RequestLog())
    app = Starlette(
        routes=[
            Route("/-/requests", store.requests, methods=["GET"]),
            Route("/-/reset", store.reset, methods=["POST"]),
            Route("/{bucket}", store.bucket, methods=["GET", "HEAD"]),
            Route("/{bucket}/{key:path}", store.object, methods=["GET", "HEAD"]),
        ],
        exception_handlers={404: _no_such_route, 405: _not_allowed},
    )
    app.router.redirect_slashes = False
    return app


@dataclass(frozen=True, slots=True)
class _Found:
    """A file as it was when the request came."""

    path: str
    size_bytes: int
    etag: str
    modified_s: float


class _Store:
    def __init__(self, root: Path, shaping: Shaping, log: RequestLog) -> None:
        self.root = os.fspath(root)
        self.shaping = shaping
        self.log = log
        self.link = TokenBucket(shaping.bytes_per_s_total)
        self.limit = RequestLimit(shaping)
        self.bodies = 0

    async def requests(self, request: Request) -> Response:
        return JSONResponse(self.log.summary(with_log="log" in request.query_params))

    async def reset(self, request: Request) -> Response:
        self.log.reset()
        return Response(status_code=204)

    async def bucket(self, request: Request) -> Response:
        bucket = request.path_params["bucket"]
        opened = self.log.open(request.method, bucket, "", None)
        await self._first_byte()
        there = _is_plain(bucket) and await asyncio.to_thread(os.path.isdir, os.path.join(self.root, bucket))
        if self.limit.refuses():
            answer = self._slow_down(bucket)
        elif not there:
            answer = _error(404, "NoSuchBucket", "The specified bucket does not exist", bucket)
        elif request.method == "HEAD":
            answer = Response(status_code=200)
        elif request.query_params.get("list-type") != "2":
            answer = _error(501, "NotImplemented", "Of the bucket operations only ListObjectsV2 is there", bucket)
        else:
            answer = await self._list(bucket, request)
        self.log.close(opened, answer.status_code, len(answer.body))
        return answer

    async def object(self, request: Request) -> Response:
        bucket, key = request.path_params["bucket"], request.path_params["key"]
        if not key:
            return await self.bucket(request)
        asked = request.headers.get("range")
        opened = self.log.open(request.method, bucket, key, asked)
        await self._first_byte()
        answer = self._slow_down(key) if self.limit.refuses() else self._object(request, bucket, key, opened)
        if not isinstance(answer, _ObjectAnswer):
            self.log.close(opened, answer.status_code, 0 if request.method == "HEAD" else len(answer.body))
        return answer

    def _object(self, request: Request, bucket: str, key: str, opened: OpenRequest) -> Response:
        found = _find(self.root, bucket, key)
        if found is None:
            return _error(404, "NoSuchKey", "The specified key does not exist.", key)
        wanted = request.headers.get("if-match")
        if wanted is not None and wanted != "*" and found.etag not in (tag.strip() for tag in wanted.split(",")):
            return _error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold", key)
        asked = request.headers.get("range")
        span = _range(asked, found.size_bytes)
        if span is None:
            answer = _error(416, "InvalidRange", "The requested range is not satisfiable", key)
            answer.headers["Content-Range"] = f"bytes */{found.size_bytes}"
            return answer
        start, stop, partial = span
        headers = {
            "ETag": found.etag,
            "Accept-Ranges": "bytes",
            "Last-Modified": formatdate(found.modified_s, usegmt=True),
            "Content-Type": "application/octet-stream",
            "Content-Length": str(stop - start),
        }
        if partial:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{found.size_bytes}"
        if request.method == "HEAD":
            return Response(status_code=206 if partial else 200, headers=headers)
        return _ObjectAnswer(self, opened, found, (start, stop), headers)

    async def _list(self, bucket: str, request: Request) -> Response:
        query = request.query_params
        try:
            limit = min(LIST_LIMIT, int(query.get("max-keys", LIST_LIMIT)))
            token = query.get("continuation-token")
            after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
        except ValueError:
            return _error(400, "InvalidArgument", "max-keys or continuation-token cannot be used", bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        page = await asyncio.to_thread(_page, os.path.join(self.root, bucket), prefix, delimiter, (after, limit))
        return _listing(bucket, page, query.get("encoding-type") == "url", (prefix, delimiter, limit))

    def _slow_down(self, resource: str) -> Response:
        answer = _error(503, "SlowDown", "Please reduce your request rate.", resource)
        if self.shaping.retry_after_s is not None:
            answer.headers["Retry-After"] = str(self.shaping.retry_after_s)
        return answer

    def connection(self) -> TokenBucket:
        """The pace of the next body."""
        self.bodies += 1
        rate = self.shaping.bytes_per_s_connection
        if rate is not None and self.shaping.slow_one_in and self.bodies % self.shaping.slow_one_in == 0:
            rate /= self.shaping.slow_factor
        return TokenBucket(rate)

    async def _first_byte(self) -> None:
        if self.shaping.first_byte_s > 0:
            await asyncio.sleep(self.shaping.first_byte_s)


class _ObjectAnswer(Response):
    """An answer whose body is read piece by piece, at the pace of the link, until the client goes away."""

    def __init__(
        self, store: _Store, opened: OpenRequest, found: _Found, span: tuple[int, int], headers: dict[str, str]
    ) -> None:
        super().__init__(status_code=206 if "Content-Range" in headers else 200, headers=headers)
        self._store = store
        self._opened = opened
        self._found = found
        self._span = span

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        leaving = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            self._store.log.close(self._opened, self.status_code, 0)
        if not sending.cancelled() and (error := sending.exception()) is not None:
            raise error

    async def _send(self, send: Send) -> None:
        store, (at, stop) = self._store, self._span
        own = store.connection()
        chunk_bytes = SHAPED_CHUNK_BYTES if store.shaping.shaped else FAST_CHUNK_BYTES
        async with aiofiles.open(self._found.path, "rb", buffering=0) as file:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await file.seek(at)
            while at < stop:
                piece = await file.read(min(chunk_bytes, stop - at))
                if not piece:
                    raise OSError(f"{self._found.path} became shorter while it was served")
                await own.take(len(piece))
                await store.link.take(len(piece))
                at += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": at < stop})
                store.log.sent(self._opened, len(piece))
            if self._span[0] == stop:
                await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and "\0" not in name and "/" not in name


def _find(root: str, bucket: str, key: str) -> _Found | None:
    if not all(_is_plain(part) for part in (bucket, *key.split("/"))):
        return None
    path = os.path.join(root, bucket, key)
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return _Found(path, status.st_size, _etag(status), status.st_mtime)


def _etag(status: os.stat_result) -> str:
    """An ETag that changes whenever the file does; the `-1` says that it is no MD5 of the content, as in S3."""
    facts = f"{status.st_mtime_ns}-{status.st_size}-{status.st_ino}"
    return f'"{hashlib.md5(facts.encode(), usedforsecurity=False).hexdigest()}-1"'


def _range(asked: str | None, size_bytes: int) -> tuple[int, int, bool] | None:
    """Half-open bytes that a Range header asks for, and whether they are a part; None where nothing can be given.

    What is no single range is ignored: the whole is given. Source: RFC 9110 section 14.2.
    """
    match = _RANGE.fullmatch(asked or "")
    if match is None or not (match[1] or match[2]):
        return 0, size_bytes, False
    if not match[1]:
        start, stop = max(0, size_bytes - int(match[2])), size_bytes
    else:
        start, stop = int(match[1]), min(size_bytes, int(match[2]) + 1) if match[2] else size_bytes
        if match[2] and int(match[2]) < start:
            return 0, size_bytes, False
    return (start, stop, True) if start < stop else None


def _walk(directory: str, below: str = "", above: tuple[tuple[int, int], ...] = ()) -> Iterator[_Entry]:
    """Every file below; a directory that a link has led back to is not entered again."""
    status = os.stat(os.path.join(directory, below))
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    with os.scandir(os.path.join(directory, below)) as entries:
        for entry in entries:
            key = f"{below}{entry.name}"
            if entry.is_dir():
                yield from _walk(directory, f"{key}/", (*above, here))
            elif entry.is_file() and _is_text(key):
                yield key, entry.stat()


def _is_text(key: str) -> bool:
    """Whether the file's name is UTF-8: others cannot be written in a listing."""
    try:
        key.encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Page:
    """A page of a listing: keys with their files, common prefixes, and the last name if more follow."""

    objects: tuple[_Entry, ...]
    prefixes: tuple[str, ...]
    more_after: str | None


def _page(directory: str, prefix: str, delimiter: str, window: tuple[str, int]) -> _Page:
    """Up to `limit` names after `after`, in the order of their UTF-8 bytes, as S3 lists them."""
    after, limit = window
    names: dict[str, os.stat_result | None] = {}
    for key, status in _walk(directory):
        if not key.startswith(prefix):
            continue
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            names[key] = status
        else:
            names[key[: cut + len(delimiter)]] = None
    rest = sorted((name for name in names if name.encode() > after.encode()), key=str.encode)
    shown = rest[:limit]
    return _Page(
        tuple((name, file) for name in shown if (file := names[name]) is not None),
        tuple(name for name in shown if names[name] is None),
        shown[-1] if shown and len(rest) > limit else None,
    )


def _listing(bucket: str, page: _Page, encoded: bool, asked: tuple[str, str, int]) -> Response:
    prefix, delimiter, limit = asked

    def name(text: str) -> str:
        return quote(text, safe="/") if encoded else escape(text)

    contents = "".join(
        f"<Contents><Key>{name(key)}</Key><LastModified>{_iso(status.st_mtime)}</LastModified>"
        f"<ETag>{escape(_etag(status))}</ETag><Size>{status.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for key, status in page.objects
    )
    prefixes = "".join(f"<CommonPrefixes><Prefix>{name(text)}</Prefix></CommonPrefixes>" for text in page.prefixes)
    token = ""
    if page.more_after is not None:
        following = base64.urlsafe_b64encode(page.more_after.encode()).decode()
        token = f"<NextContinuationToken>{following}</NextContinuationToken>"
    return _xml(
        200,
        f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>{escape(bucket)}</Name>'
        f"<Prefix>{name(prefix)}</Prefix><Delimiter>{name(delimiter)}</Delimiter><MaxKeys>{limit}</MaxKeys>"
        + ("<EncodingType>url</EncodingType>" if encoded else "")
        + f"<KeyCount>{len(page.objects) + len(page.prefixes)}</KeyCount>"
        f"<IsTruncated>{'true' if token else 'false'}</IsTruncated>{token}{contents}{prefixes}</ListBucketResult>",
    )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _error(status: int, code: str, message: str, resource: str) -> Response:
    return _xml(
        status,
        f"<Error><Code>{code}</Code><Message>{escape(message)}</Message>"
        f"<Resource>{escape(resource)}</Resource></Error>",
    )


def _xml(status: int, text: str) -> Response:
    return Response(f'<?xml version="1.0" encoding="UTF-8"?>\n{text}', status, media_type="application/xml")


def _no_such_route(request: Request, error: Exception) -> Response:
    return _error(404, "NoSuchKey", "There is nothing under this path", request.url.path)


def _not_allowed(request: Request, error: Exception) -> Response:
    return _error(405, "MethodNotAllowed", "This store can be read only", request.url.path)
