"""A store that takes uploads as S3 does and is as strict: every checksum it is given, it compares."""

from __future__ import annotations

import base64
import hashlib
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.etree import ElementTree

from adapter.streaming.integrity import CRC64NVME

_SUMS: Mapping[str, Callable[[bytes], bytes]] = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-crc64nvme": lambda data: CRC64NVME.of(data).to_bytes(8, "big"),
    "content-md5": lambda data: hashlib.md5(data, usedforsecurity=False).digest(),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Requests of this kind (`put`, `create`, `part`, `complete`) go wrong, `times` of them after `skip` good ones."""

    kind: str
    answer: tuple[int, str] | None = None
    """Status and code; None flips a bit of what arrived."""
    times: int = 1
    skip: int = 0
    after: bool = False
    """The request is done, only its answer is lost."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One object, and the checksum headers that came with it."""

    data: bytes
    headers: Mapping[str, str]


@dataclass
class UploadStore:
    """What arrived."""

    endpoint: str = ""
    faults: Sequence[Fault] = ()
    knows_checksums: bool = True
    objects: dict[str, Stored] = field(default_factory=dict)
    unfinished: dict[str, dict[int, bytes]] = field(default_factory=dict)
    log: list[tuple[str, str, int]] = field(default_factory=list)
    """Kind, key, length of every request that wrote something."""
    seen: list[Mapping[str, str]] = field(default_factory=list)
    """Headers of every request, names in lower case."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    on_request: Callable[[str], None] = lambda kind: None

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.log]

    def fault(self, kind: str) -> Fault | None:
        """What is to go wrong with the request of that kind that was just logged."""
        number = self.kinds().count(kind)
        found = (f for f in self.faults if f.kind == kind and f.skip < number <= f.skip + f.times)
        return next(found, None)


@contextmanager
def upload_store(**settings: object) -> Iterator[UploadStore]:
    """The store, until the block ends."""
    store = UploadStore(**settings)  # type: ignore[arg-type]

    class Handler(_Handler):
        state = store

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    store.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: UploadStore
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_PUT(self) -> None:
        key, query, data = self._request()
        self._act("part" if "partNumber" in query else "put", key, query, data)

    def do_POST(self) -> None:
        key, query, data = self._request()
        self._act("create" if "uploads" in query else "complete", key, query, data)

    def do_DELETE(self) -> None:
        key, query, data = self._request()
        self._act("abort", key, query, data)

    def do_HEAD(self) -> None:
        key, _, _ = self._request()
        stored = self.state.objects.get(key)
        if stored is None:
            self._answer(404, {}, b"")
            return
        shown = stored.headers if self.headers.get("x-amz-checksum-mode") == "ENABLED" else {}
        self._answer(200, {"ETag": '"x"', "Content-Length": str(len(stored.data)), **shown}, b"")

    def _request(self) -> tuple[str, dict[str, str], bytes]:
        self.state.seen.append({name.lower(): value for name, value in self.headers.items()})
        parts = urlsplit(self.path)
        data = self.rfile.read(int(self.headers.get("content-length") or 0))
        return unquote(parts.path).lstrip("/"), dict(parse_qsl(parts.query, keep_blank_values=True)), data

    def _act(self, kind: str, key: str, query: dict[str, str], data: bytes) -> None:
        with self.state.lock:
            self.state.log.append((kind, key, len(data)))
            fault = self.state.fault(kind)
        self.state.on_request(kind)
        if fault is not None and fault.answer is not None and not fault.after:
            self._refuse(*fault.answer)
            return
        if fault is not None and fault.answer is None and not fault.after:
            data = bytes([data[0] ^ 1]) + data[1:]
        with self.state.lock:
            answer = self._do(kind, key, query, data)
        if fault is not None and fault.after:
            self.close_connection = True
        elif isinstance(answer, tuple):
            self._refuse(*answer)
        else:
            self._answer(200, {"ETag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'}, answer)

    def _do(self, kind: str, key: str, query: dict[str, str], data: bytes) -> bytes | tuple[int, str]:
        given = {name.lower(): value for name, value in self.headers.items()}
        sums = {name: value for name, value in given.items() if name in _SUMS}
        crc = any(name.startswith("x-amz-checksum") for name in given)
        if crc and not self.state.knows_checksums:
            return 501, "NotImplemented"
        if kind in ("put", "part") and (not sums or any(self._wrong(name, sums[name], data) for name in sums)):
            return 400, "BadDigest"
        upload = query.get("uploadId", "")
        if kind in ("part", "complete", "abort") and upload not in self.state.unfinished:
            return 404, "NoSuchUpload"
        kept = {name: value for name, value in sums.items() if name != "content-md5"}
        if kind == "put":
            self.state.objects[key] = Stored(data, kept)
        elif kind == "create":
            identifier = f"{key}-{len(self.state.log)}"
            self.state.unfinished[identifier] = {}
            root = "InitiateMultipartUploadResult"
            return f"<{root}><UploadId>{identifier}</UploadId></{root}>".encode()
        elif kind == "part":
            self.state.unfinished[upload][int(query["partNumber"])] = data
        elif kind == "abort":
            del self.state.unfinished[upload]
        else:
            return self._complete(key, upload, data, kept)
        return b""

    def _complete(self, key: str, upload: str, data: bytes, sums: dict[str, str]) -> bytes | tuple[int, str]:
        parts = self.state.unfinished[upload]
        listed = [
            int(each.text or 0) for each in ElementTree.fromstring(data).iter() if each.tag.endswith("PartNumber")
        ]
        whole = b"".join(parts[number] for number in listed)
        if any(len(parts[number]) < 5 << 20 for number in listed[:-1]):
            return 400, "EntityTooSmall"
        if listed != sorted(parts) or any(self._wrong(name, sums[name], whole) for name in sums):
            return 400, "BadDigest"
        shown = sums | ({"x-amz-checksum-type": "FULL_OBJECT"} if sums else {})
        self.state.objects[key] = Stored(whole, shown)
        del self.state.unfinished[upload]
        return b"<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"

    def _wrong(self, name: str, value: str, data: bytes) -> bool:
        return base64.b64decode(value) != _SUMS[name](data)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, {}, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
