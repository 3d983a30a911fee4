"""Keeps web pages of others away from the emulator, whose API starts code and kills processes without a password.

A page of another origin can make a browser send requests here; the browser names that origin. A page can also make its
own host name resolve to this machine (DNS rebinding); then the request names that host. An address in digits cannot be
made to mean another machine, so it is let in wherever the emulator listens; names are, that somebody gave.
Source: Fetch standard, `Origin` header; RFC 9110, section 7.2.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from adapter.errors import ConfigurationError

_READING = ("GET", "HEAD", "OPTIONS")
_NAME = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?", re.ASCII | re.IGNORECASE)


class Guard:
    """ASGI middleware.

    Args:
        app: What is guarded.
        names: What it may be called, beside `localhost` and addresses in digits.

    Raises:
        ConfigurationError: One of them is no host name.
    """

    def __init__(self, app: ASGIApp, *, names: Collection[str] = ()) -> None:
        self._app = app
        self._names = frozenset({"localhost", *host_names(names)})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            error = {"code": "forbidden", "message": refused, "retryable": False}
            await JSONResponse({"error": error}, 403)(scope, receive, send)

    def _refused(self, scope: Scope) -> str | None:
        headers = {name.lower(): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        name = _name_in(f"//{host}")
        if name is None or not (_is_address(name) or name in self._names):
            return f"this emulator is not called {host!r}; names that it may be called are given with --allow-host"
        if scope["method"] in _READING:
            return None
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return f"a page of {origin} may not change anything here"
        if headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            return "a page of another origin may not change anything here"
        return None


def host_names(given: Collection[str]) -> tuple[str, ...]:
    """Names as they are compared.

    Raises:
        ConfigurationError: One of them is no host name.
    """
    for name in given:
        if not _is_address(name) and _NAME.fullmatch(name) is None:
            raise ConfigurationError(f"--allow-host {name!r} cannot be used: a host's name is wanted, without a port")
    return tuple(name.lower() for name in given)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name_in(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # such as a bracket that is not closed
        return None
