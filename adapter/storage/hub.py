"""Models of the Hugging Face Hub, or of a mirror of it: `hf://org/model[@revision][/folder]`.

A revision is resolved to its commit once, and everything is read of that commit: a branch that moves meanwhile mixes
nothing. Large files are behind redirects to other hosts, which are remembered, and get no token.

Source: Hub API endpoints (https://huggingface.co/docs/hub/api) and the headers that its own client reads.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from adapter.errors import AccessDenied, ConfigurationError, ObjectNotFound, StorageError, StoreFailed
from adapter.settings import Secret
from adapter.storage.access import Access
from adapter.storage.addresses import shown_address
from adapter.storage.base import ObjectInfo, RangeRequest
from adapter.storage.web_client import Reply, WebClient, WebOptions
from adapter.storage.web_source import WebSource

_ANSWER_BYTES = 32 << 20
"""Longest answer of the API that is read: a page of a listing has some 300 bytes a file."""
_MOST_PAGES = 1000
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,127})", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40,64}", re.ASCII)
_NEXT = re.compile(r'<([^<>]+)>\s*;\s*rel="next"')
_LIMITED = ("datasets", "spaces", "models")


class HubSource(WebSource):
    """Files of a model on the hub. Thread-safe.

    Args:
        address: `hf://org/model`, `hf://org/model@revision`, either followed by `/folder`; a slash in the revision is
            written `%2F`. The revision is `main` unless another is named.
        options: How servers are spoken to.
        access: The hub's address, and the token for it.

    Raises:
        ConfigurationError: The address names no model.
    """

    def __init__(self, address: str, options: WebOptions | None = None, access: Access | None = None) -> None:
        access = access or Access()
        options = options or WebOptions()
        self._model, self._revision, self._folder = parse_hub(address)
        self._hub = access.hub_endpoint.rstrip("/")
        self._told = access.hub_token is not None and not access.anonymous
        self._commit: str | None = None
        self._resolving = threading.Lock()
        token = access.hub_token
        authorization = Secret(f"Bearer {token.text}") if token is not None and self._told else None
        client = WebClient(self._hub, options, authorization)
        host = urlsplit(self._hub)
        store = f"hf:{host.scheme}://{host.netloc.rpartition('@')[2]}{host.path}"
        shown = f"{shown_address(address).rstrip('/')}/"
        super().__init__(store, shown, shown.removeprefix("hf://"), client, options)

    def list(self) -> Iterator[ObjectInfo]:
        """Every file of the model, or of its folder, at the commit.

        Raises:
            ObjectNotFound: There is no such model, revision or file, or it is private.
            AccessDenied: The model is gated.
            StorageError: As the protocol says.
        """
        where = f"{self._folder}/" if self._folder else ""
        path = f"/{quote(self._folder, safe='/')}" if self._folder else ""
        url: str | None = f"{self._hub}/api/models/{self._model}/tree/{self._at()}{path}?recursive=true"
        found = False
        for _ in range(_MOST_PAGES):
            if url is None:
                break
            entries, url = self._page(url)
            for entry in entries:
                info = _entry(entry, where)
                if info is not None:
                    found = True
                    yield info
        else:
            raise StoreFailed(f"{self._shown}: the listing does not end", store=self._store)
        if not found:
            raise ObjectNotFound(f"{self._shown} holds no files", store=self._store)

    def _url(self, key: str) -> str:
        path = quote(f"{self._folder}/{key}" if self._folder else key, safe="/")
        return f"{self._hub}/{self._model}/resolve/{self._at()}/{path}"

    def _described(self, headers: dict[str, str], about: Mapping[str, str]) -> dict[str, str]:
        """The hub's own name of the content; that of the host a redirect led to says nothing about it."""
        etag = about.get("x-linked-etag") or headers.get("x-linked-etag") or headers.get("etag") or ""
        size = about.get("x-linked-size") or headers.get("x-linked-size")
        total = headers.get("content-range", "").rpartition("/")[2]
        if size is not None and total.isdigit() and size != total:
            return {**headers, "etag": f'"{etag} of {total} bytes"'}  # no version that anybody asked for
        return {**headers, "etag": etag} if etag else headers

    def _refused(self, reply: Reply, request: RangeRequest) -> StorageError:
        address, facts = f"{self._shown}{request.key}", self._facts(request)
        said = reply.headers.get("x-error-code", "")
        facts |= {"cause": said or str(reply.status), "status": reply.status}
        advice = "" if self._told else "; set HF_TOKEN if it is private or gated"
        if said == "GatedRepo":
            reply.response.close()
            return AccessDenied(f"{address}: the model is gated, its owner has to grant access{advice}", **facts)
        if said in ("RepoNotFound", "EntryNotFound", "RevisionNotFound"):
            reply.response.close()
            what = {"RepoNotFound": "no such model", "EntryNotFound": "no such file"}.get(said, "no such revision")
            return ObjectNotFound(f"{address}: {what}, or it may not be seen ({said}){advice}", **facts)
        return super()._refused(reply, request)

    def _at(self) -> str:
        """The commit, the same for all threads."""
        with self._resolving:
            if self._commit is None:
                found = _COMMIT.fullmatch(self._revision)
                self._commit = self._revision if found else self._resolve()
            return self._commit

    def _resolve(self) -> str:
        value, _ = self._api(f"{self._hub}/api/models/{self._model}/revision/{quote(self._revision, safe='')}")
        commit = value.get("sha") if isinstance(value, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise StoreFailed(f"{self._shown}: the hub names no commit", store=self._store)
        return commit

    def _page(self, url: str) -> tuple[Sequence[object], str | None]:
        value, headers = self._api(url)
        if not isinstance(value, list):
            raise StoreFailed(f"{self._shown}: the hub's listing is none", store=self._store)
        following = _NEXT.search(headers.get("link", ""))
        return value, urljoin(url, following[1]) if following else None

    def _api(self, url: str) -> tuple[Any, dict[str, str]]:
        request = RangeRequest("", 0, 0)
        facts = self._facts(request)
        reply = self._client.get(url, {"Accept": "application/json"}, self._shown, facts)
        if reply.status != 200:
            raise self._refused(reply, request)
        try:
            return json.loads(reply.body(_ANSWER_BYTES)), reply.headers
        except (OSError, ValueError) as error:
            raise StoreFailed(f"{self._shown}: the hub's answer cannot be read ({error})", **facts) from None


def parse_hub(address: str) -> tuple[str, str, str]:
    """Model, revision and folder of `hf://org/model[@revision][/folder]`.

    Raises:
        ConfigurationError: It names no model.
    """
    shown = shown_address(address)
    segments = address.partition("://")[2].rstrip("/").split("/")
    # models of the first days have no organisation: one name, perhaps with a revision
    count = 1 if len(segments) == 1 or "@" in segments[0] else 2
    model, _, revision = "/".join(segments[:count]).partition("@")
    names = model.split("/")
    if names[0] in _LIMITED or not all(_NAME.fullmatch(name) and ".." not in name for name in names):
        raise ConfigurationError(f"{shown!r} names no model; use hf://org/model or hf://org/model@revision")
    folder = "/".join(segments[count:])
    if {"", ".", ".."}.intersection(segments[count:]):
        raise ConfigurationError(f"{shown!r}: the folder {folder!r} is none")
    return model, unquote(revision) or "main", folder


def _entry(entry: object, folder: str) -> ObjectInfo | None:
    """A file of a listing; large ones have the digest of their content, others git's."""
    if not isinstance(entry, dict) or entry.get("type") != "file":
        return None
    large = entry.get("lfs")
    about = large if isinstance(large, dict) else entry
    path, size, version = entry.get("path"), about.get("size"), about.get("oid")
    if not (isinstance(path, str) and type(size) is int and isinstance(version, str) and path.startswith(folder)):
        return None
    return ObjectInfo(path[len(folder) :], size, version)
