"""The boto3 client that speaks to a store: how it is made, and when another takes its place."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import boto3.session
import botocore.session
from botocore import UNSIGNED
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.credentials import CredentialResolver
from botocore.parsers import ResponseParserError

from adapter.errors import AdapterError, ConfigurationError, CredentialsError, CredentialsExpired, Field, StoreFailed
from adapter.settings import Secret
from adapter.storage.addresses import is_aws
from adapter.storage.causes import unanswered

LOOKED_IN = "the environment, the AWS files, and the roles of container and instance"
_CREDENTIAL_ERRORS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.NoAuthTokenError,
    sdk.MetadataRetrievalError,
    sdk.SSOError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Options:
    """How a store is spoken to. Endpoint, region and credentials are boto3's to find: environment, files, role."""

    connections: int = 16
    """Reads in flight at a time; the pool holds as many connections."""
    timeout_s: float = 20.0
    """Longest silence of the store, in seconds, before a request counts as failed."""
    connect_timeout_s: float = 5.0
    """Longest wait for a connection: a store that is there answers within a round trip."""
    anonymous: bool = False
    """Read a public bucket: nothing is signed, no credentials are looked for (S-15)."""
    path_style: bool | None = None
    """Bucket in the path, not in the host name; None: what the AWS configuration file says, else path style on an
    endpoint that is not AWS, whose name server knows no buckets (S-13)."""
    endpoint_url: str | None = None
    """Wins over `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL` and the AWS configuration file."""
    name: str | None = None
    """The endpoint's in the store's identity, instead of its address."""
    requester_pays: bool = False
    """Said with every request (S-14)."""
    customer_key: Secret | None = None
    """Base64 of the key that the objects were encrypted with by their owner (SSE-C), sent with every read."""
    credentials_timeout_s: float = 10.0
    """Longest search for credentials (S-15)."""


class S3Clients:
    """The client in use, of a session of its own (the shared default one is not thread-safe, S-17). Thread-safe.

    Args:
        options: How the store is spoken to.
        shown: The bucket's address, for messages.

    Raises:
        ConfigurationError: The AWS configuration cannot be used.
        CredentialsError: The search for credentials failed, or took too long.
    """

    def __init__(self, options: S3Options, shown: str) -> None:
        self._options = options
        self._shown = shown
        self._lock = threading.Lock()
        self._retired: list[Any] = []
        self._region: str | None = None
        self.closed: bool = False
        self.current: Any
        self.current, self._identity = self._make()

    @property
    def endpoint_url(self) -> str:
        """What requests are sent to, the bucket left out."""
        return str(self.current.meta.endpoint_url)

    @property
    def region(self) -> str | None:
        """The region that requests are signed for."""
        region = self.current.meta.region_name
        return str(region) if region else None

    def renew(self, used: Any) -> bool:
        """Whether there is a client with other credentials than the one that was refused (S-18)."""
        with self._lock:
            if self.current is not used:
                return True
            if self.closed or self._options.anonymous:
                return False
            client, identity = self._make()
            if identity == self._identity:
                client.close()
                return False
            self._replace(client, identity)
            return True

    def move(self, used: Any, region: str) -> bool:
        """Whether there is a client for another region than the one that was refused (S-14)."""
        with self._lock:
            if self.current is not used:
                return True
            if self.closed or region == self.region:
                return False
            self._region = region
            self._replace(*self._make())
            return True

    def close(self) -> None:
        """Give back connections."""
        with self._lock:
            self.closed = True
            for client in (self.current, *self._retired):
                client.close()

    def _replace(self, client: Any, identity: object) -> None:
        # others may be reading with it: it is closed at the end
        self._retired.append(self.current)
        self.current = client
        self._identity = identity

    def _make(self) -> tuple[Any, object]:
        """A client and whose it is: what tells one set of credentials from another; compared, never shown."""
        facts: dict[str, Field] = {"store": self._shown}
        try:
            core = botocore.session.get_session()
            identity = None if self._options.anonymous else self._credentials(core)
            if identity is None:
                # else the SDK would search once more, and wait for services that do not answer
                core.register_component("credential_provider", CredentialResolver([]))
            session = boto3.session.Session(botocore_session=core)
            client = self._client(session, None)
            path_style = self._options.path_style
            if path_style is None and not is_aws(client.meta.endpoint_url):
                path_style = None if "addressing_style" in (core.get_scoped_config().get("s3") or {}) else True
            if path_style is not None:
                client.close()
                client = self._client(session, "path" if path_style else "virtual")
            # what the SDK does itself about a wrong region recurses without end where the region is not told (measured
            # with botocore 1.44); the caller does it
            client.meta.events.register_last("before-parameter-build.s3", _no_redirects)
            return client, identity
        except sdk.BotoCoreError as error:
            raise unsaid(error, self._shown, self._shown, facts) from error
        except ValueError as error:
            raise ConfigurationError(f"{self._shown}: {error}", **facts) from error

    def _client(self, session: boto3.session.Session, addressing_style: str | None) -> Any:
        endpoint_url, config = self._options.endpoint_url, self._config(addressing_style)
        return session.client("s3", endpoint_url=endpoint_url, region_name=self._region, config=config)

    def _config(self, addressing_style: str | None) -> Config:
        """One attempt (retries are ours), a connection for every read, checksum headers only where S3 demands them."""
        options = self._options
        unsigned = {"signature_version": UNSIGNED} if options.anonymous else {}
        return Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=options.connections + 2,
            connect_timeout=min(options.connect_timeout_s, options.timeout_s),
            read_timeout=options.timeout_s,
            tcp_keepalive=True,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": addressing_style} if addressing_style else None,
            **unsigned,
        )

    def _credentials(self, core: botocore.session.Session) -> object:
        """The search of the SDK, but not for longer than it may take: its steps have timeouts of up to minutes."""
        found: list[object] = []

        def look() -> None:
            try:
                credentials = core.get_credentials()
                found.append(None if credentials is None else credentials.get_frozen_credentials())
            except Exception as error:  # noqa: BLE001 - raised again by whoever waits
                found.append(error)

        thread = threading.Thread(target=look, name="credentials", daemon=True)
        thread.start()
        thread.join(self._options.credentials_timeout_s)
        if not found:
            raise CredentialsError(
                f"{self._shown}: no credentials found within {self._options.credentials_timeout_s:g} s "
                f"(looked in {LOOKED_IN}; one of these does not answer)",
                store=self._shown,
                cause="timeout",
            )
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]


def unsaid(error: Exception, address: str, where: str, facts: Mapping[str, Field]) -> AdapterError:
    """Our error for one that the SDK met without an answer from the store.

    Args:
        error: Of the SDK.
        address: What was to be read, as it may be shown.
        where: The host that was asked.
        facts: Fields of the error.
    """
    kind = type(error).__name__
    fields: dict[str, Field] = {**facts, "cause": kind}
    if isinstance(error, sdk.NoCredentialsError):
        hint = "; a public bucket is read with ?anonymous at the end of the address, or COLDSTART_ANONYMOUS=1"
        return CredentialsError(f"{address}: no credentials found (looked in {LOOKED_IN}){hint}", **fields)
    if isinstance(error, sdk.UnauthorizedSSOTokenError | sdk.SSOTokenLoadError):
        return CredentialsExpired(f"{address}: the SSO session has expired or is missing ({kind})", **fields)
    if isinstance(error, _CREDENTIAL_ERRORS):
        return CredentialsError(f"{address}: credentials could not be obtained ({kind})", **fields)
    if isinstance(error, sdk.HTTPClientError | sdk.ConnectionError):
        return unanswered(error, address, where, fields)
    if isinstance(error, ResponseParserError):
        return StoreFailed(f"{address}: the store's answer is not S3's XML", **fields)
    return ConfigurationError(f"{address}: {error}", **fields)


def _no_redirects(context: dict[str, Any], **_: object) -> None:
    about = context.get("s3_redirect")
    if isinstance(about, dict):
        about["redirected"] = True
