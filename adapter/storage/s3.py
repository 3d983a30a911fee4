"""Objects in S3 and stores that speak its protocol, read by range through boto3.

boto3 does credentials, signing, endpoint rules, proxies and the parsing of errors; it makes one attempt. Its answers
are not taken on trust: a whole body, another range, a cut or an encoded body come back from it without any error
(measured with botocore 1.43), so each answer is checked (S-09).
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn, Self
from urllib.parse import urlsplit

import boto3.session
import botocore.session
from botocore import UNSIGNED
from botocore import exceptions as sdk
from botocore.config import Config
from botocore.parsers import ResponseParserError

from adapter.errors import (
    AccessDenied,
    AdapterError,
    ConfigurationError,
    ConnectionFailed,
    CredentialsError,
    Field,
    ObjectNotFound,
    StorageError,
    StoreFailed,
    TruncatedRead,
    WrongRange,
)
from adapter.storage.checksums import StoredChecksum, from_s3
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, drain
from adapter.storage.checksums import StoredChecksum, from_s3
from adapter.storage.s3_answers import EXPIRED, Refusal, checked_range, error_of, version_of
from adapter.storage.s3_body import Expected, receive

_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".amazonaws.eu", ".ic.gov", ".sgov.gov")
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


class S3Source:
    """Objects under `s3://bucket/prefix/`, read by range. Thread-safe: one client, made here, for all threads.

    Args:
        address: `s3://bucket/prefix/`; the prefix is taken as it is written, not percent-decoded (S-12), and ends at
            a slash: `s3://bucket/p` never touches `p-2/` (S-16).
        options: How the store is spoken to.

    Raises:
        ConfigurationError: The address or the AWS configuration cannot be used.
    """

    def __init__(self, address: str, options: S3Options | None = None) -> None:
        bucket, _, prefix = address.removeprefix("s3://").partition("/")
        if not address.startswith("s3://") or not bucket:
            raise ConfigurationError(f"{address!r} names no bucket; use s3://bucket/prefix/", address=address)
        self._bucket = bucket
        self._prefix = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        self._options = options or S3Options()
        self._lock = threading.Lock()
        self._closed = False
        self._store = f"s3://{bucket}"
        self._endpoint = "the store"
        self._client, self._identity = self._make_client()
        self._retired: list[Any] = []
        endpoint = urlsplit(self._client.meta.endpoint_url)
        self._doubled = endpoint.hostname is not None and (
            endpoint.hostname.startswith(f"{bucket}.") or endpoint.path.rstrip("/").endswith(f"/{bucket}")
        )
        self._endpoint = f"{endpoint.hostname}:{endpoint.port}" if endpoint.port else str(endpoint.hostname)
        self._store = f"s3:{endpoint.scheme}://{self._endpoint}{endpoint.path.rstrip('/')}/{bucket}"

    @property
    def store(self) -> str:
        """The identity for cache keys: endpoint and bucket."""
        return self._store

    def list(self) -> Iterator[ObjectInfo]:
        """Every object under the prefix, all pages, markers of folders left out; keys relative to the prefix.

        Raises:
            ObjectNotFound: Nothing is there.
            StorageError: As the protocol says.
        """
        found = False
        following: dict[str, str] = {}
        while True:
            page = self._call(
                "list_objects_v2", "s3:ListBucket", "", Bucket=self._bucket, Prefix=self._prefix, **following
            )
            for entry in page.get("Contents", ()):
                key: str = entry["Key"]
                if key.endswith("/") or not key.startswith(self._prefix):
                    continue
                found = True
                size_bytes: int = entry["Size"]
                version = version_of({"etag": entry.get("ETag", "")}, size_bytes)
                yield ObjectInfo(key[len(self._prefix) :], size_bytes, version)
            token = page.get("NextContinuationToken") if page.get("IsTruncated") else None
            if not token:
                break
            if following.get("ContinuationToken") == token:
                raise StoreFailed(f"{self._address('')}: the listing does not go on", **self._facts(""))
            following = {"ContinuationToken": token}
        if not found:
            message = f"{self._address('')} holds no objects{self._hint()}"
            raise ObjectNotFound(message, **self._facts(""))

    def read_into(self, key: str, start: int, into: memoryview, *, version: str | None = None) -> RangeAnswer:
        """As `RangeSource.read_into`.

        Raises:
            StorageError: As the protocol says.
        """
        return drain(self.read_chunks(RangeRequest(key, start, len(into), version), into))

    def read_chunks(self, request: RangeRequest, buffer: memoryview) -> Generator[RangeAnswer]:
        """As `RangeSource.read_chunks`.

        Raises:
            StorageError: As the protocol says.
        """
        answer = self._get(request) if request.length_bytes else None
        if answer is None:
            yield RangeAnswer(0, self._head(request))
            return
        facts = self._facts(request.key, _range(request))
        body = answer["Body"]
        try:
            status = answer["ResponseMetadata"]["HTTPStatusCode"]
            info, length_bytes = checked_range(request, status, _headers(answer), facts)
        except StorageError:
            body.close()
            raise
        if length_bytes == 0:
            body.close()
            yield RangeAnswer(0, info)
            return
        expected = Expected(length_bytes, self._options.timeout_s, facts, request.watch)
        with closing(receive(body, buffer, expected)) as counts:
            for count in counts:
                yield RangeAnswer(count, info)
        wanted_bytes = min(request.length_bytes, info.size_bytes - request.start)
        if length_bytes < wanted_bytes:
            raise TruncatedRead(
                f"{self._address(request.key)}: the store gives {length_bytes} of {wanted_bytes} bytes at a time",
                **{**facts, "received_bytes": length_bytes, "shortened": True},
            )

    def stored_checksum(self, key: str, *, version: str | None = None) -> StoredChecksum | None:
        """The checksum of the whole object, as `ChecksummedSource.stored_checksum`.

        Raises:
            StorageError: It could not be asked.
        """
        return from_s3(self._object_call("head_object", RangeRequest(key, 0, 0, version), ChecksumMode="ENABLED"))

    def close(self) -> None:
        """Give back connections; reads after this raise."""
        with self._lock:
            self._closed = True
            for client in (self._client, *self._retired):
                client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _get(self, request: RangeRequest) -> dict[str, Any] | None:
        """The answer to a GET with a range; None where the object ends before its start."""
        try:
            return self._object_call("get_object", request, Range=f"bytes={_range(request)}")
        except StorageError as error:
            if error.fields.get("status") == 416:
                return None
            raise

    def _head(self, request: RangeRequest) -> ObjectInfo:
        answer = self._object_call("head_object", request)
        size_bytes = answer.get("ContentLength")
        if not isinstance(size_bytes, int):
            raise WrongRange(f"{self._address(request.key)}: HEAD gives no size", **self._facts(request.key))
        return ObjectInfo(request.key, size_bytes, version_of(_headers(answer), size_bytes))

    def _object_call(self, operation: str, request: RangeRequest, **arguments: str) -> dict[str, Any]:
        version = request.version
        if version is not None and " " not in version and not version.startswith("-"):
            arguments["IfMatch"] = f'"{version}"'
        key = f"{self._prefix}{request.key}"
        if not request.key or {".", ".."}.intersection(key.split("/")):  # HTTP clients resolve these segments (S-05)
            raise AccessDenied(f"{self._address(request.key)!r} leads out of its prefix", **self._facts(request.key))
        return self._call(operation, "s3:GetObject", request.key, Bucket=self._bucket, Key=key, **arguments)

    def _call(self, operation: str, action: str, key: str, **arguments: Any) -> dict[str, Any]:
        """One request; where credentials have expired meanwhile, one more with newly found ones (S-18)."""
        while True:
            if self._closed:
                raise StorageError(f"{self._address(key)}: the source is closed", **self._facts(key))
            client = self._client
            try:
                answer: dict[str, Any] = getattr(client, operation)(**arguments)
                return answer
            except sdk.ClientError as error:
                refusal = _refusal(error, action)
                if refusal.code in EXPIRED and self._renew(client):
                    continue
                told = error_of(refusal, self._address(key), self._facts(key, arguments.get("Range")))
                if isinstance(told, ObjectNotFound) and self._doubled:
                    told = ObjectNotFound(f"{told.message}{self._hint()}", **told.fields)
                raise told from error
            except (sdk.BotoCoreError, ResponseParserError) as error:
                self._raise_mapped(error, self._address(key), self._facts(key, arguments.get("Range")))

    def _make_client(self) -> tuple[Any, object]:
        """A client of its own session (the shared default one is not thread-safe, S-17), and whose it is."""
        try:
            core = botocore.session.get_session()
            session = boto3.session.Session(botocore_session=core)
            client = session.client("s3", endpoint_url=self._options.endpoint_url, config=self._config(None))
            path_style = self._options.path_style
            if path_style is None and not _is_aws(client.meta.endpoint_url):
                path_style = None if "addressing_style" in (core.get_scoped_config().get("s3") or {}) else True
            if path_style is not None:
                client.close()
                config = self._config("path" if path_style else "virtual")
                client = session.client("s3", endpoint_url=self._options.endpoint_url, config=config)
            return client, None if self._options.anonymous else _identity(session)
        except sdk.BotoCoreError as error:
            self._raise_mapped(error, self._store, {"store": self._store})
        except ValueError as error:
            raise ConfigurationError(f"{self._store}: {error}", store=self._store) from error

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

    def _renew(self, used: Any) -> bool:
        """Whether there is a client with other credentials than the one that was refused."""
        with self._lock:
            if self._client is not used:
                return True
            if self._closed or self._options.anonymous:
                return False
            client, identity = self._make_client()
            if identity == self._identity:
                client.close()
                return False
            self._retired.append(used)
            self._client, self._identity = client, identity
            return True

    def _raise_mapped(self, error: Exception, address: str, facts: dict[str, Field]) -> NoReturn:
        """Raise ours for an error that the SDK met without an answer from the store."""
        kind = type(error).__name__
        fields = {**facts, "cause": kind}
        ours: AdapterError
        if isinstance(error, sdk.NoCredentialsError):
            ours = CredentialsError(
                f"{address}: no credentials found (looked in the environment, the AWS files, and the roles of "
                "container and instance)",
                **fields,
            )
        elif isinstance(error, _CREDENTIAL_ERRORS):
            ours = CredentialsError(f"{address}: credentials could not be obtained ({kind})", **fields)
        elif isinstance(error, sdk.HTTPClientError | sdk.ConnectionError):
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                ours = ConfigurationError(f"{address}: the certificate of the store is not trusted", **fields)
            else:
                ours = ConnectionFailed(f"{address}: no answer from {self._endpoint} ({kind})", **fields)
        elif isinstance(error, ResponseParserError):
            ours = StoreFailed(f"{address}: the store's answer is not S3's XML", **fields)
        else:
            ours = ConfigurationError(f"{address}: {error}", **fields)
        raise ours from error

    def _address(self, key: str) -> str:
        return f"s3://{self._bucket}/{self._prefix}{key}"

    def _hint(self) -> str:
        if not self._doubled:
            return ""
        return (
            f"; the endpoint {self._endpoint} already names the bucket {self._bucket}, leave it out there (S3 "
            "clients add it)"
        )

    def _facts(self, key: str, asked: str | None = None) -> dict[str, Field]:
        return {"store": self._store, "key": f"{self._prefix}{key}", "range": (asked or "").removeprefix("bytes=")}


def _identity(session: boto3.session.Session) -> object:
    """What tells one set of credentials from another; compared, never shown."""
    credentials = session.get_credentials()
    return None if credentials is None else credentials.get_frozen_credentials()


def _range(request: RangeRequest) -> str:
    return f"{request.start}-{request.start + request.length_bytes - 1}"


def _is_aws(endpoint_url: str) -> bool:
    return f".{urlsplit(endpoint_url).hostname or ''}".endswith(_AWS_DOMAINS)


def _headers(answer: dict[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return {name.lower(): value for name, value in headers.items()}


def _refusal(error: sdk.ClientError, action: str) -> Refusal:
    about: dict[str, Any] = dict(error.response.get("ResponseMetadata", {}))
    code = str(error.response.get("Error", {}).get("Code", "unknown"))
    return Refusal(code, int(about.get("HTTPStatusCode", 0)), dict(about.get("HTTPHeaders", {})), action)
