"""Requests to web servers: pooled connections, proxies, redirects, and why no answer came.

Redirects are followed here, not by the library: what proves who reads goes to the first host alone, and where a
redirect led is remembered by the caller.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError

from adapter.errors import ConfigurationError, CredentialsExpired, Field, StorageError
from adapter.settings import Secret
from adapter.storage.addresses import shown_address
from adapter.storage.causes import unanswered
from adapter.storage.proxies import proxy_of, proxy_url
from adapter.storage.s3_answers import Refusal, error_of

_MOST_REDIRECTS = 6
_ERROR_BYTES = 16 << 10
"""As much of an error's body is read to find the store's code in it."""
_REDIRECTS = (301, 302, 303, 307, 308)
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions:
    """How a web server is spoken to."""

    connections: int = 16
    """Reads in flight at a time; the pool holds as many connections."""
    timeout_s: float = 20.0
    """Longest silence of the server, in seconds, before a request counts as failed."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection: a server that is there answers within a round trip."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is no redirect; its body has not been read."""

    response: Any
    status: int
    headers: dict[str, str]
    """Names in lower case."""
    url: str
    """Where it came from: a secret, where that is a signed address."""
    hops: tuple[dict[str, str], ...] = ()
    """Headers of the redirects on the way."""

    def body(self, limit_bytes: int) -> bytes:
        """The body, if it is not longer; the connection goes back.

        Raises:
            ValueError: It is longer.
            OSError: The connection broke.
        """
        try:
            data: bytes = self.response.read(limit_bytes + 1)
        except HTTPError as error:
            raise ConnectionError(type(error).__name__) from None
        if len(data) > limit_bytes:
            self.response.close()
            raise ValueError(f"longer than {limit_bytes} bytes")
        self.response.release_conn()
        return data


class WebClient:
    """Sends requests. Thread-safe.

    Args:
        home: The address that the secret is for: it is sent to this scheme, host and port only.
        options: How servers are spoken to.
        authorization: Value of the header of that name.
    """

    def __init__(self, home: str, options: WebOptions, authorization: Secret | None = None) -> None:
        self._home = _origin(home)
        self._options = options
        self._authorization = authorization
        self._lock = threading.Lock()
        self._pools: dict[str | None, urllib3.PoolManager] = {}
        self.closed: bool = False

    def get(self, url: str, headers: Mapping[str, str], address: str, facts: Mapping[str, Field]) -> Reply:
        """The answer to a GET, after redirects.

        Args:
            url: Without user and password.
            headers: Sent to every host on the way.
            address: What is read, as it may be shown.
            facts: Fields for errors.

        Raises:
            ConnectionFailed, TlsFailed: There was no answer.
            StorageError: The source is closed, or redirects lead nowhere.
        """
        hops: list[dict[str, str]] = []
        while True:
            response = self._send(url, headers, address, facts)
            said = {name.lower(): value for name, value in response.headers.items()}
            target = said.get("location")
            if response.status not in _REDIRECTS or not target:
                return Reply(response, response.status, said, url, tuple(hops))
            response.close() if int(said.get("content-length") or 1 << 20) > _ERROR_BYTES else response.drain_conn()
            hops.append(said)
            url = _next(url, target, address, facts)
            if len(hops) > _MOST_REDIRECTS:
                raise StorageError(f"{address}: redirects do not end", **facts)

    def where(self, url: str) -> str:
        """The host of an address, and the proxy on the way to it, as they may be shown."""
        host, proxy = urlsplit(url).netloc.rpartition("@")[2], proxy_of(url)
        return host if proxy is None else f"{host} by the proxy {proxy}"

    def close(self) -> None:
        """Give back connections; requests after this raise."""
        with self._lock:
            self.closed = True
            for pool in self._pools.values():
                pool.clear()

    def _send(self, url: str, headers: Mapping[str, str], address: str, facts: Mapping[str, Field]) -> Any:
        if self.closed:
            raise StorageError(f"{address}: the source is closed", **facts)
        sent = {"Accept-Encoding": "identity", "User-Agent": "coldstart-adapter", **headers}
        if self._authorization is not None and _origin(url) == self._home:
            sent["Authorization"] = self._authorization.text
        try:
            return self._pool(url).request(
                "GET", url, headers=sent, redirect=False, retries=False, preload_content=False, decode_content=False
            )
        except LocationValueError:
            raise ConfigurationError(f"{address}: that is no address that can be asked", **facts) from None
        except (HTTPError, OSError) as error:
            # the library's text may repeat a signed address: it is in no message, and in no traceback
            raise unanswered(error, address, self.where(url), facts) from None

    def _pool(self, url: str) -> urllib3.PoolManager:
        proxy = proxy_url(url)
        with self._lock:
            if proxy not in self._pools:
                options = self._options
                settings: dict[str, Any] = {
                    "num_pools": 16,
                    "maxsize": options.connections + 2,
                    "timeout": urllib3.Timeout(
                        connect=min(options.connect_timeout_s, options.timeout_s), read=options.timeout_s
                    ),
                }
                self._pools[proxy] = urllib3.PoolManager(**settings) if proxy is None else _through(proxy, settings)
            return self._pools[proxy]


def refused(reply: Reply, address: str, facts: Mapping[str, Field]) -> StorageError:
    """The error that an answer means; its body is used up."""
    try:
        found = _CODE.search(reply.body(_ERROR_BYTES))
    except (OSError, ValueError):
        found = None
    code = found[1].decode() if found else str(reply.status)
    if reply.status in (400, 401, 403):
        until = signed_until(reply.url)
        if until is not None and until < datetime.now(UTC):
            message = f"{address}: the signed address was valid until {until:%Y-%m-%d %H:%M:%SZ}; sign it anew"
            return CredentialsExpired(message, **facts, cause=code, status=reply.status)
    return error_of(Refusal(code, reply.status, reply.headers, "GET"), address, facts)


def signed_until(url: str) -> datetime | None:
    """When the signature in an address ends, as far as the address says.

    Source: Amazon S3 "Authenticating requests: using query parameters" (Google's are alike), CloudFront "signed URLs",
    Azure "service SAS".
    """
    said = {name.lower(): values[-1] for name, values in parse_qs(urlsplit(url).query).items()}
    try:
        for kind in ("amz", "goog"):
            if f"x-{kind}-date" in said and f"x-{kind}-expires" in said:
                begun = datetime.strptime(said[f"x-{kind}-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
                return begun + timedelta(seconds=int(said[f"x-{kind}-expires"]))
        if "expires" in said:
            return datetime.fromtimestamp(int(said["expires"]), UTC)
        if "se" in said and "sig" in said:
            found = datetime.fromisoformat(said["se"])
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def _through(proxy: str, settings: dict[str, Any]) -> urllib3.PoolManager:
    user = urlsplit(proxy)
    headers = None
    if user.username is not None:
        headers = urllib3.make_headers(proxy_basic_auth=f"{user.username}:{user.password or ''}")
    try:
        return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)
    except ValueError:
        raise ConfigurationError(f"the proxy {shown_address(proxy)} cannot be used; http:// is wanted") from None


def _next(url: str, target: str, address: str, facts: Mapping[str, Field]) -> str:
    further = urljoin(url, target)
    scheme, before = urlsplit(further).scheme, urlsplit(url).scheme
    if scheme not in ("http", "https") or (before == "https" and scheme == "http"):
        raise StorageError(f"{address}: a redirect leads from {before} to {scheme} and is not followed", **facts)
    parts = urlsplit(further)
    # a name and password in a redirect would be somebody else's idea
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment="").geturl()


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else 80)
