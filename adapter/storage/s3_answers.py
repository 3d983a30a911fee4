"""What an S3 answer means: errors by code and status, ranges by header. Values only; the SDK is not needed here.

Source: Amazon S3 API reference, "Error responses"; RFC 9110 sections 10.2.3 (Retry-After) and 14.4 (Content-Range).
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from adapter.errors import (
    AccessDenied,
    ConnectionFailed,
    CredentialsError,
    CredentialsExpired,
    Field,
    ObjectChanged,
    ObjectNotFound,
    StorageError,
    StoreFailed,
    Throttled,
    WrongRange,
    WrongRegion,
)
from adapter.storage.base import ObjectInfo, RangeRequest

_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_CREDENTIALS = frozenset(
    {
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "InvalidToken",
        "InvalidSecurity",
        "RequestTimeTooSkewed",
        "UnrecognizedClientException",
        "AuthorizationHeaderMalformed",
    }
)
"""After these and the former, credentials are looked up again: a rotated file may hold new ones by now (S-18)."""
_THROTTLED = frozenset(
    {"SlowDown", "ServiceUnavailable", "TooManyRequests", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
    | {"BandwidthLimitExceeded", "503", "429"}
)
_NOT_FOUND = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchVersion", "NotFound", "404"})
_REGION = frozenset({"PermanentRedirect", "TemporaryRedirect", "301", "307", "IllegalLocationConstraintException"})
_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error: its code, status and headers (names in lower case)."""

    code: str
    status: int
    headers: Mapping[str, str]
    action: str
    """The permission that the request needs, such as `s3:GetObject`."""


def error_of(refusal: Refusal, address: str, facts: Mapping[str, Field]) -> StorageError:
    """The error that says what the store said; its text has no word of the store's own, which could hold a secret.

    Args:
        refusal: The answer.
        address: `s3://bucket/key`, for the message.
        facts: Fields of the error.
    """
    code, status = refusal.code, refusal.status
    said = f"{code}, HTTP {status}" if code != str(status) else f"HTTP {status}"
    fields: dict[str, Field] = {**facts, "cause": code, "status": status}
    region = refusal.headers.get("x-amz-bucket-region")
    elsewhere = status == 400 and region is not None and code in (str(status), "AuthorizationHeaderMalformed")
    if code in _REGION or status in (301, 307) or elsewhere:
        where = f"it is in {region}" if region else "it is in another region or behind another endpoint"
        advice = "" if region else "; set AWS_REGION or AWS_ENDPOINT_URL_S3"
        return WrongRegion(f"{address}: wrong region or endpoint, {where} ({said}){advice}", **fields, region=region)
    if code in _THROTTLED or status in (429, 503):
        return Throttled(f"{address}: the store asks to slow down ({said})", **fields, **_retry_after(refusal.headers))
    if code in _EXPIRED:
        return CredentialsExpired(f"{address}: the credentials have expired, and there are no newer ({said})", **fields)
    if code in _CREDENTIALS or status == 401:
        return CredentialsError(f"{address}: the store does not accept these credentials ({said})", **fields)
    if code == "NoSuchBucket":
        return ObjectNotFound(f"{address}: there is no such bucket ({said})", **fields)
    if code in _NOT_FOUND or status == 404:
        return ObjectNotFound(f"{address} does not exist ({said})", **fields)
    if status == 403:
        return AccessDenied(
            f"{address} is missing or not permitted: the store denies {refusal.action} ({said})",
            **fields,
            action=refusal.action,
        )
    if status == 412:
        return ObjectChanged(f"{address} was replaced while it was being read ({said})", **fields)
    if code in ("RequestTimeout", "IncompleteBody") or status == 408:
        return ConnectionFailed(f"{address}: the request timed out at the store ({said})", **fields)
    if status >= 500:
        return StoreFailed(f"{address}: the store failed ({said})", **fields, **_retry_after(refusal.headers))
    return StorageError(f"{address} could not be read: the store refuses {refusal.action} ({said})", **fields)


def checked_range(
    request: RangeRequest, status: int, headers: Mapping[str, str], facts: Mapping[str, Field]
) -> tuple[ObjectInfo, int]:
    """The object and how many of the bytes asked for this answer brings.

    A rightly labelled but shorter answer is fine here; the caller asks for the rest (S-09).

    Args:
        request: What was asked.
        status: 200 or 206.
        headers: Names in lower case.
        facts: Fields for errors.

    Raises:
        WrongRange: It is not the range that was asked for.
        ObjectChanged: It is of another version.
    """
    address = f"{facts.get('store')}/{facts.get('key', request.key)}"
    length = headers.get("content-length")
    length_bytes = int(length) if length is not None and length.isascii() and length.isdigit() else None
    encoding = headers.get("content-encoding", "identity").lower()
    if encoding not in ("", "identity", "aws-chunked"):
        raise WrongRange(f"{address}: the answer is encoded as {encoding}, its bytes are not the object's", **facts)
    if status == 206:
        match = _CONTENT_RANGE.fullmatch(headers.get("content-range", "").strip())
        if match is None:
            raise _wrong(request, f"has the Content-Range {headers.get('content-range')!r}", facts)
        first, last, total = (int(text) for text in match.groups())
        if first != request.start or not first <= last < total or last >= request.start + request.length_bytes:
            raise _wrong(request, f"is of bytes {first}-{last} of {total}", facts)
        count = last - first + 1
        if length_bytes not in (None, count):
            raise _wrong(request, f"has {length_bytes} bytes under the label of {count}", facts)
    elif "etag" not in headers:
        raise _wrong(request, f"is no object (HTTP {status}, {headers.get('content-type')})", facts)
    elif length_bytes is None or request.start or length_bytes > request.length_bytes:
        raise _wrong(request, "is the whole object: it ignores ranges", {**facts, "ignores_range": True})
    else:
        count = total = length_bytes
    version = version_of(headers, total)
    if request.version is not None and version != request.version:
        raise ObjectChanged(f"{address} was replaced while it was being read", **facts, found_version=version)
    return ObjectInfo(request.key, total, version), count


def version_of(headers: Mapping[str, str], size_bytes: int) -> str:
    """The ETag without quotes; where a store has none, what else tells versions apart."""
    etag = headers.get("etag", "").strip().removeprefix("W/").strip('"')
    return etag or f"{headers.get('last-modified', '')}-{size_bytes}"


def _wrong(request: RangeRequest, what: str, facts: Mapping[str, Field]) -> WrongRange:
    asked = f"bytes {request.start}-{request.start + request.length_bytes - 1}"
    address = f"{facts.get('store')}/{facts.get('key', request.key)}"
    return WrongRange(f"{address}: the answer to {asked} {what}", **facts)


def _retry_after(headers: Mapping[str, str]) -> dict[str, Field]:
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return {"retry_after_s": float(text)}
    try:
        return {"retry_after_s": max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())}
    except (ValueError, TypeError):
        return {}
