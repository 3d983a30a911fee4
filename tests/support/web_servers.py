"""Web servers for tests: a directory of files that nginx could serve, and a model hub with its file host."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.scripted_store import Answer, Asked, ScriptedStore, scripted_store


def ranged(content: bytes, asked: Asked, headers: Mapping[str, str]) -> Answer:
    """The answer of a server that keeps to RFC 9110."""
    wanted = asked.headers.get("if-match")
    if wanted is not None and wanted != headers.get("ETag"):
        return Answer(412)
    if "range" not in asked.headers:
        return Answer(200, dict(headers), content)
    start, stop = asked.span
    stop = min(stop, len(content))
    if start >= stop:
        return Answer(416, {"Content-Range": f"bytes */{len(content)}"})
    return Answer(206, {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}, content[start:stop])


class Files:
    """Files under `/m/`, with ETags and listings as nginx makes them."""

    def __init__(self, files: Mapping[str, bytes] | None = None, *, listed: bool = True) -> None:
        self.files: dict[str, tuple[bytes, str]] = {}
        self.listed = listed
        self._lock = threading.Lock()
        for name, content in (files or {}).items():
            self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        with self._lock:
            self.files[name] = (content, f'"{time.monotonic_ns():x}-{len(content):x}"')

    def __call__(self, asked: Asked) -> Answer:
        name = unquote(urlsplit(asked.path).path).removeprefix("/m/")
        if name.endswith("/") or not name:
            return self._listing(name)
        if name not in self.files:
            return Answer(404, {"Content-Type": "text/html"}, b"<html>404 Not Found</html>")
        content, etag = self.files[name]
        return ranged(content, asked, {"ETag": etag, "Last-Modified": "Tue, 01 Jul 2025 10:00:00 GMT"})

    def _listing(self, folder: str) -> Answer:
        if not self.listed:
            return Answer(403, {"Content-Type": "text/html"}, b"<html>403 Forbidden</html>")
        entries = {}
        for name, (content, _) in self.files.items():
            if name.startswith(folder):
                first, further, _ = name[len(folder) :].partition("/")
                entries[first] = {"name": first, "type": "directory" if further else "file", "size": len(content)}
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(list(entries.values())).encode())


class Hub:
    """A model hub with the one model `org/model`; files from `large_bytes` on lie on another host."""

    def __init__(self, *, token: str | None = None, large_bytes: int = 100, page: int = 1000) -> None:
        self.commits: dict[str, dict[str, bytes]] = {}
        self.head = "0" * 40
        self.token = token
        self.large_bytes = large_bytes
        self.page = page
        self.files: ScriptedStore | None = None
        self.signature = 0
        self._lock = threading.Lock()

    def put(self, name: str, content: bytes) -> None:
        """A new commit on `main`."""
        with self._lock:
            files = {**self.commits.get(self.head, {}), name: content}
            self.head = hashlib.sha1(repr((self.head, name, content)).encode()).hexdigest()
            self.commits[self.head] = files

    def answer(self, asked: Asked) -> Answer:
        """Of the hub itself."""
        if self.token is not None and asked.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        url = urlsplit(asked.path)
        if not url.path.startswith(("/api/models/org/model/", "/org/model/resolve/")):
            return Answer(401, {"X-Error-Code": "RepoNotFound"})
        _, kind, rest = url.path.rpartition("/org/model/")[2].partition("revision/")
        if kind:
            return Answer(200, {}, json.dumps({"sha": self.head}).encode()) if rest == "main" else self._missing()
        what, _, path = url.path.rpartition("/org/model/")[2].partition("/")
        commit, _, path = path.partition("/")
        files = self.commits.get(commit, {})
        if what == "tree":
            return self._tree(files, unquote(path), int(parse_qs(url.query).get("cursor", ["0"])[0]), asked)
        name = unquote(path)
        if name not in files:
            return Answer(404, {"X-Error-Code": "EntryNotFound"})
        content = files[name]
        if len(content) < self.large_bytes:
            return ranged(content, asked, {"ETag": f'"{git_name(content)}"', "X-Repo-Commit": commit})
        assert self.files is not None
        digest = hashlib.sha256(content).hexdigest()
        return Answer(
            302,
            {
                "Location": f"{self.files.endpoint}/lfs/{commit}/{path}?X-Amz-Signature=sig{self.signature}",
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(content)),
                "ETag": '"of the redirect"',
            },
        )

    def file(self, asked: Asked) -> Answer:
        """Of the host of large files."""
        assert "authorization" not in asked.headers, "the token is for the hub alone"
        url = urlsplit(asked.path)
        if parse_qs(url.query)["X-Amz-Signature"] != [f"sig{self.signature}"]:
            return Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        commit, _, path = url.path.removeprefix("/lfs/").partition("/")
        content = self.commits[commit][unquote(path)]
        return ranged(content, asked, {"ETag": '"of the other host"'})

    def _missing(self) -> Answer:
        return Answer(404, {"X-Error-Code": "RevisionNotFound"})

    def _tree(self, files: Mapping[str, bytes], folder: str, begin: int, asked: Asked) -> Answer:
        entries: list[dict[str, object]] = [{"type": "directory", "path": "unet", "oid": "x", "size": 0}]
        for name, content in sorted(files.items()):
            if not name.startswith(f"{folder}/" if folder else ""):
                continue
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(content), "oid": git_name(content)}
            if len(content) >= self.large_bytes:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
            entries.append(entry)
        headers = {}
        if begin + self.page < len(entries):
            path = urlsplit(asked.path).path
            headers["Link"] = f'<{path}?recursive=true&cursor={begin + self.page}>; rel="next"'
        return Answer(200, headers, json.dumps(entries[begin : begin + self.page]).encode())


def git_name(content: bytes) -> str:
    """How git names a content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running_hub(hub: Hub) -> Iterator[tuple[ScriptedStore, ScriptedStore]]:
    """The hub and the host of its large files."""
    with ExitStack() as running:
        hub.files = running.enter_context(scripted_store(hub.file))
        yield running.enter_context(scripted_store(hub.answer)), hub.files
