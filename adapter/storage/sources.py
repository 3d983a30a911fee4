"""From an address to the source that reads it."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from adapter.errors import ConfigurationError
from adapter.storage.access import Access
from adapter.storage.addresses import shown_address
from adapter.storage.base import ClosingSource

SUPPORTED = (
    "s3://bucket/prefix/, https://host/path/, hf://org/model, file:///directory, a directory's path, or memory://name"
)


def open_source(
    address: str, *, connections: int, timeout_s: float = 20.0, access: Access | None = None
) -> ClosingSource:
    """The source of the objects under an address.

    Args:
        address: `s3://bucket/prefix/`, `https://host/path/`, `hf://org/model`, `file:///directory`, a directory's
            path, or `memory://name`.
        connections: Reads that may be in flight at a time.
        timeout_s: Longest silence of a store, in seconds, before a request counts as failed.
        access: Who reads, and on what terms.

    Raises:
        ConfigurationError: The address is malformed or of a scheme that is not supported.
        CredentialsError: No credentials were found where the store needs them.
    """
    access = access or Access()
    scheme, separator, rest = address.partition("://")
    if not separator:
        return _open_directory(address, address)
    match scheme.lower():
        case "s3":
            from adapter.storage.s3 import S3Options, S3Source  # boto3 costs 0.3 s: only where it is used

            options = S3Options(
                connections=connections,
                timeout_s=timeout_s,
                anonymous=access.anonymous,
                requester_pays=access.requester_pays,
                customer_key=access.customer_key,
                name=access.store_name,
                credentials_timeout_s=access.credentials_timeout_s,
            )
            return S3Source(address, options)
        case "http" | "https":
            from adapter.storage.http import HttpSource
            from adapter.storage.web_client import WebOptions

            return HttpSource(address, WebOptions(connections=connections, timeout_s=timeout_s))
        case "hf":
            from adapter.storage.hub import HubSource
            from adapter.storage.web_client import WebOptions

            return HubSource(address, WebOptions(connections=connections, timeout_s=timeout_s), access)
        case "file":
            host, slash, path = rest.partition("/")
            if host not in ("", "localhost"):
                raise ConfigurationError(f"{address}: a file address has three slashes: file:///directory")
            return _open_directory(unquote(slash + path), address)
        case "memory":
            from adapter.storage.memory import registered_memory

            return registered_memory(rest)
    shown = shown_address(address)
    raise ConfigurationError(f"{shown}: the scheme {scheme!r} is not supported; use {SUPPORTED}", address=shown)


def _open_directory(path: str, address: str) -> ClosingSource:
    from adapter.storage.files import FileSource

    if not path or "\0" in path:
        raise ConfigurationError(f"{address!r} names no directory; use {SUPPORTED}", address=address)
    return FileSource(Path(path))
