"""Objects of a web server: signed addresses, mirrors, a directory served as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote, unquote, urlsplit

import urllib3

from adapter.checkpoint.index import SHARD_SUFFIX
from adapter.errors import AccessDenied, ConfigurationError, ObjectNotFound, StoreFailed
from adapter.settings import Secret
from adapter.storage.addresses import shown_address
from adapter.storage.base import ObjectInfo, RangeRequest
from adapter.storage.web_client import WebClient, WebOptions
from adapter.storage.web_source import WebSource

_LISTING_BYTES = 16 << 20
_MOST_FOLDERS = 1000
_LOOKS = 16
"""Objects asked for their size at a time, at the most."""
_NO_LIST = "the server lists no files (nginx does with autoindex_format json)"


class HttpSource(WebSource):
    """Objects under `https://host/path/`, or the one object at `https://host/path/name.safetensors`. Thread-safe.

    A query, such as a signature, goes with every request. An address that ends in no name, or in one that does not
    say what it is, names one object by its fragment: `https://host/get?id=7#model.safetensors`.

    Args:
        address: Of the directory or the object; a user and password in it are sent to its host alone.
        options: How the server is spoken to.

    Raises:
        ConfigurationError: It is no web address.
    """

    def __init__(self, address: str, options: WebOptions | None = None) -> None:
        shown = shown_address(address)
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if not host or port == 0 or parts.scheme not in ("http", "https"):
            raise ConfigurationError(f"{shown!r} is no web address; use https://host/path/", address=shown)
        options = options or WebOptions()
        folder, _, name = (parts.path or "/").rpartition("/")
        self._single: str | None = None
        if parts.fragment or name.endswith(SHARD_SUFFIX):
            self._single = parts.fragment or unquote(name)
        elif name:
            folder = f"{folder}/{name}"
        self._whole = parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()
        self._base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{folder}/"
        self._query = f"?{parts.query}" if parts.query else ""
        authorization = None
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = Secret(urllib3.make_headers(basic_auth=user)["authorization"])
        store = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        super().__init__(
            store, self._base, unquote(folder).lstrip("/") + "/", WebClient(address, options, authorization), options
        )

    def list(self) -> Iterator[ObjectInfo]:
        """The one object, or every file below the directory where the server lists them as JSON.

        Raises:
            ObjectNotFound: Nothing is there.
            AccessDenied: The server lists nothing; objects can be read by name all the same.
            StorageError: As the protocol says.
        """
        if self._single is not None:
            yield self._info(self._single)
            return
        keys = list(self._below())
        if not keys:
            raise ObjectNotFound(f"{self._shown} holds no files", store=self._store)
        with ThreadPoolExecutor(min(_LOOKS, self._options.connections)) as pool:
            yield from pool.map(self._info, keys)

    def _url(self, key: str) -> str:
        if self._single is None:
            return f"{self._base}{quote(key, safe='/')}{self._query}"
        if key != self._single:
            raise ObjectNotFound(f"{self._shown}{key}: the address names {self._single} alone", store=self._store)
        return self._whole

    def _below(self) -> Iterator[str]:
        waiting, seen = [""], 0
        while waiting:
            folder = waiting.pop()
            seen += 1
            if seen > _MOST_FOLDERS:
                raise StoreFailed(f"{self._shown}: the listing does not end", store=self._store)
            for name, is_folder in self._entries(folder):
                if is_folder:
                    waiting.append(f"{folder}{name}/")
                else:
                    yield f"{folder}{name}"

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Names in a folder. Source: nginx, module ngx_http_autoindex_module."""
        request = RangeRequest(folder, 0, 0)
        facts = self._facts(request)
        url = f"{self._base}{quote(folder, safe='/')}{self._query}"
        reply = self._client.get(url, {"Accept": "application/json"}, f"{self._shown}{folder}", facts)
        if reply.status in (200, 403, 404, 405):
            value: object = None
            if reply.status == 200 and "json" in reply.headers.get("content-type", ""):
                try:
                    value = json.loads(reply.body(_LISTING_BYTES))
                except ValueError:
                    value = None
                except OSError as error:
                    raise StoreFailed(f"{self._shown}: the listing broke off ({error})", **facts) from None
            if not isinstance(value, list):
                reply.response.close()
                raise AccessDenied(f"{self._shown}: {_NO_LIST}", **facts, status=reply.status)
        else:
            raise self._refused(reply, request)
        for entry in value:
            name = entry.get("name") if isinstance(entry, dict) else None
            if isinstance(name, str) and name not in ("", ".", "..") and "/" not in name:
                yield name, entry.get("type") == "directory"
