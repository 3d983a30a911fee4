"""Which proxy requests go through, as the environment says; the rules are those of the standard library."""

from __future__ import annotations

import re
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from adapter.storage.addresses import shown_address


def proxy_url(url: str) -> str | None:
    """The proxy for requests to that address, with its user and password; None where there is none (S-15).

    `NO_PROXY` names hosts, domains, or `*`.
    """
    parts = urlsplit(url)
    found = getproxies()
    proxy = found.get(parts.scheme) or found.get("all")
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_of(url: str) -> str | None:
    """The same, as it may be shown."""
    proxy = proxy_url(url)
    return shown_address(proxy) if proxy is not None else None


def proxy_to(store: str) -> str | None:
    """The proxy on the way to a store, named by its identity, as it may be shown; None where there is none."""
    address = re.search(r"https?://[^/]+", store)
    return proxy_of(address[0]) if address is not None else None
