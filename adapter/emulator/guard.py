"""Keeps web pages of others away from the emulator, whose API starts code and kills processes without a password.

A page of another origin can make a browser send requests here; the browser names that origin. A page can also make its
own host name resolve to this machine (DNS rebinding); then the request names that host.
Source: Fetch standard, `Origin` header; RFC 9110, section 7.2.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_READING = ("GET", "HEAD", "OPTIONS")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Guard:
    """ASGI middleware.

    Args:
        app: What is guarded.
        loopback: Whether requests come from this machine only: no other host name is answered then.
    """

    def __init__(self, app: ASGIApp, *, loopback: bool) -> None:
        self._app = app
        self._loopback = loopback

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
        if self._loopback and _name_in(f"//{host}") not in _LOOPBACK:
            return f"this emulator listens on this machine only, and is not called {host!r}"
        if scope["method"] in _READING:
            return None
        origin = headers.get(b"origin")
        if origin is not None and origin.partition("://")[2] != host:
            return f"a page of {origin} may not change anything here"
        if headers.get(b"sec-fetch-site") in ("cross-site", "same-site"):
            return "a page of another origin may not change anything here"
        return None


def _name_in(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:  # such as a bracket that is not closed
        return None
