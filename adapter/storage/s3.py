"""Objects in S3 and stores that speak its protocol, read by range through boto3.

boto3 does credentials, signing, endpoint rules, proxies and the parsing of errors; it makes one attempt. Its answers
are not taken on trust: a whole body, another range, a cut or an encoded body come back from it without any error
(measured with botocore 1.43), so each answer is checked (S-09).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from botocore import exceptions as sdk
from botocore.parsers import ResponseParserError

from adapter.errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsError,
    Field,
    ObjectNotFound,
    StorageError,
    StoreFailed,
    TruncatedRead,
    WrongRange,
    WrongRegion,
)
from adapter.storage.access import decoded_key
from adapter.storage.addresses import is_private_line, parse_s3
from adapter.storage.base import ObjectInfo, RangeAnswer, RangeRequest, drain
from adapter.storage.checksums import StoredChecksum, from_s3
from adapter.storage.proxies import proxy_of
from adapter.storage.s3_answers import Refusal, checked_range, error_of, version_of
from adapter.storage.s3_body import Expected, receive
from adapter.storage.s3_client import S3Clients, S3Options, unsaid
from adapter.storage.s3_requests import S3Requests

__all__ = ["S3Options", "S3Source"]


class S3Source:
    """Objects under `s3://bucket/prefix/`, read by range. Thread-safe: one client, made here, for all threads.

    Args:
        address: `s3://bucket/prefix/`; the prefix is taken as it is written, not percent-decoded (S-12), and ends at
            a slash: `s3://bucket/p` never touches `p-2/` (S-16). Options as `parse_s3` reads them.
        options: How the store is spoken to.

    Raises:
        ConfigurationError: The address or the AWS configuration cannot be used.
        CredentialsError: The search for credentials failed, or took too long.
    """

    def __init__(self, address: str, options: S3Options | None = None) -> None:
        self._parts = parse_s3(address)
        self._bucket, self._prefix = self._parts.bucket, self._parts.prefix
        options = options or S3Options()
        if self._parts.anonymous:
            options = replace(options, anonymous=True)
        self._options = options
        self._clients = S3Clients(options, f"s3://{self._bucket}")
        self._requests = S3Requests()
        url = self._clients.endpoint_url
        endpoint = urlsplit(url)
        self._doubled = endpoint.hostname is not None and (
            endpoint.hostname.startswith(f"{self._bucket}.") or endpoint.path.rstrip("/").endswith(f"/{self._bucket}")
        )
        self._endpoint = f"{endpoint.hostname}:{endpoint.port}" if endpoint.port else str(endpoint.hostname)
        self._proxy = proxy_of(url)
        named = options.name or f"{endpoint.scheme}://{self._endpoint}{endpoint.path.rstrip('/')}"
        self._store = f"s3:{named}/{self._bucket}"
        self._every, self._reading = self._terms(url)

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
        if self._parts.single is not None:
            yield self._head(RangeRequest(self._parts.single, 0, 0))
            return
        found = False
        following: dict[str, str] = {}
        while True:
            page = self._call("list_objects_v2", "s3:ListBucket", "", Prefix=self._prefix, **self._every, **following)
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
        self._clients.close()

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

    def _terms(self, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arguments of every request, and those of requests for an object (S-14)."""
        every = {"RequestPayer": "requester"} if self._options.requester_pays or self._parts.requester_pays else {}
        reading: dict[str, Any] = dict(every)
        if self._parts.version_id is not None:
            reading["VersionId"] = self._parts.version_id
        if self._options.customer_key is not None:
            if not is_private_line(url):
                message = f"{self._address('')}: a customer key is not sent to {url} in the clear; use https"
                raise ConfigurationError(message, store=self._store)
            try:
                reading["SSECustomerKey"] = decoded_key(self._options.customer_key)
            except ValueError as error:
                raise ConfigurationError(f"{self._address('')}: {error}", store=self._store) from None
            reading["SSECustomerAlgorithm"] = "AES256"
        return every, reading

    def _object_call(self, operation: str, request: RangeRequest, **arguments: Any) -> dict[str, Any]:
        version = request.version
        if version is not None and " " not in version and not version.startswith("-"):
            arguments["IfMatch"] = f'"{version}"'
        key = f"{self._prefix}{request.key}"
        if not request.key or {".", ".."}.intersection(key.split("/")):  # HTTP clients resolve these segments (S-05)
            raise AccessDenied(f"{self._address(request.key)!r} leads out of its prefix", **self._facts(request.key))
        return self._call(operation, "s3:GetObject", request.key, Key=key, **self._reading, **arguments)

    def _call(self, operation: str, action: str, key: str, **arguments: Any) -> dict[str, Any]:
        """One request; one more where the credentials have expired meanwhile or the region is another."""
        while True:
            if self._clients.closed:
                raise StorageError(f"{self._address(key)}: the source is closed", **self._facts(key))
            client = self._clients.current
            try:
                send = (
                    partial(self._requests.get_object, client)
                    if operation == "get_object"
                    else getattr(client, operation)
                )
                answer: dict[str, Any] = send(**{"Bucket": self._bucket, **arguments})
                return answer
            except sdk.ClientError as error:
                refusal, facts = _refusal(error, action), self._facts(key, arguments.get("Range"))
                told = error_of(refusal, self._address(key), facts)
                if isinstance(told, WrongRegion) and (region := told.fields.get("region")):
                    if self._clients.move(client, str(region)):
                        continue
                    if refusal.code == str(refusal.status):  # HEAD has no body to say more
                        message = f"{self._address(key)}: the store does not accept these credentials"
                        told = CredentialsError(f"{message} (HTTP {refusal.status})", **told.fields)
                if isinstance(told, CredentialsError) and self._clients.renew(client):
                    continue
                if isinstance(told, ObjectNotFound) and self._doubled:
                    told = ObjectNotFound(f"{told.message}{self._hint()}", **told.fields)
                # what the store said in its own words stays out of tracebacks
                raise told from None
            except (sdk.BotoCoreError, ResponseParserError) as error:
                where = self._endpoint if self._proxy is None else f"{self._endpoint} by the proxy {self._proxy}"
                facts = self._facts(key, arguments.get("Range"))
                raise unsaid(error, self._address(key), where, facts) from error

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


def _range(request: RangeRequest) -> str:
    return f"{request.start}-{request.start + request.length_bytes - 1}"


def _headers(answer: dict[str, Any]) -> dict[str, str]:
    headers: dict[str, str] = answer["ResponseMetadata"]["HTTPHeaders"]
    return {name.lower(): value for name, value in headers.items()}


def _refusal(error: sdk.ClientError, action: str) -> Refusal:
    about: dict[str, Any] = dict(error.response.get("ResponseMetadata", {}))
    said: dict[str, Any] = dict(error.response.get("Error", {}))
    headers = dict(about.get("HTTPHeaders", {}))
    if said.get("Region"):
        headers["x-amz-bucket-region"] = str(said["Region"])
    return Refusal(str(said.get("Code", "unknown")), int(about.get("HTTPStatusCode", 0)), headers, action)
