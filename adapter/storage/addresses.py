"""Addresses of weights as text: what they say, and what may be shown of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from adapter.checkpoint.index import SHARD_SUFFIX
from adapter.errors import ConfigurationError

_LOCAL = ("file", "memory")
_USER = re.compile(r"//[^/]*@")
_USER_WITH_PASSWORD = re.compile(r"//[^/@]*:[^/]*@")
"""`hf://model@revision` has the same sign for something else."""
_BROKEN_PASSWORD = re.compile(r"//(?!arn:)[^/@\[]*:(?!\d+/)[^/@]*/[^@]*@")
"""A password with a slash in it, which ends the host's part too early: keys of AWS have such. A port is none, nor an
access point's name (`s3://arn:aws:s3:…`)."""
_SIGNED = re.compile(
    r"\?(?:[^/]*&)?(?:X-Amz-[\w-]+|AWSAccessKeyId|Signature|sig|\w*token|\w*secret\w*)=.*", re.IGNORECASE | re.DOTALL
)


def shown_address(address: str) -> str:
    """The address without anything secret, which names the same place: for messages, logs, records and cache keys.

    User names and passwords are left out, and the whole query of web addresses: it may be a signature or a token, and
    signing anew gives another query for the same object. Of `s3://` addresses a query goes that looks like one.
    """
    scheme, separator, rest = address.partition("://")
    scheme = scheme.lower()
    if not separator or scheme in _LOCAL:
        return address
    address = _BROKEN_PASSWORD.sub("//", address, count=1)
    if scheme == "hf":
        return _USER_WITH_PASSWORD.sub("//", address, count=1)
    if scheme == "s3":
        return _SIGNED.sub("", _USER.sub("//", address, count=1))
    try:
        parts = urlsplit(address)
    except ValueError:
        return f"{scheme}://{rest.partition('/')[0].rpartition('@')[2]}/"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


@dataclass(frozen=True, slots=True)
class S3Address:
    """What an S3 address says."""

    bucket: str
    prefix: str
    """Ends at a slash, or is empty."""
    single: str | None = None
    """The one object that is meant, where it is not everything under the prefix."""
    version_id: str | None = None
    """Which version of that object."""
    anonymous: bool = False
    requester_pays: bool = False


def parse_s3(address: str) -> S3Address:
    """The parts of `s3://bucket/prefix/`, `s3://bucket/prefix/name.safetensors` and the options behind a `?`.

    Keys are taken as they are written, not percent-decoded (S-12). Options are `anonymous`, `requester-pays` and, for
    a single object, `versionId=…`; a question mark that begins anything else belongs to the key.

    Raises:
        ConfigurationError: It names no bucket, or has options that cannot be used.
    """
    shown = shown_address(address)
    bucket, _, path = address.removeprefix("s3://").partition("/")
    if not address.startswith("s3://") or not bucket:
        raise ConfigurationError(f"{shown!r} names no bucket; use s3://bucket/prefix/", address=shown)
    if "@" in bucket or (":" in bucket and not bucket.startswith("arn:")):  # the rest of a key with a slash in it
        message = f"{shown!r}: keys do not belong into an address; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        raise ConfigurationError(message, address=shown)
    path, options = _split_options(path)
    version_id = options.pop("versionId", "") or None
    folder, slash, name = path.rpartition("/")
    single = name if name and (version_id is not None or name.endswith(SHARD_SUFFIX)) else None
    if version_id is not None and single is None:
        raise ConfigurationError(f"{shown}: a versionId is that of one object, and no object is named", address=shown)
    prefix = f"{folder}{slash}" if single is not None or not name else f"{path}/"
    flags = {name.replace("-", "_"): True for name, value in options.items() if value.lower() in ("", "1", "true")}
    return S3Address(bucket, prefix, single, version_id, **flags)


_OPTIONS = re.compile(r"(?:(?:anonymous|requester-pays)(?:=\w*)?|versionId=[^&/?]*)", re.ASCII)


def _split_options(path: str) -> tuple[str, dict[str, str]]:
    before, mark, after = path.rpartition("?")
    options = after.split("&")
    if not mark or not all(_OPTIONS.fullmatch(option) for option in options):
        return path, {}
    return before, {name: value for name, _, value in (option.partition("=") for option in options)}


_AWS_DOMAINS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".amazonaws.eu", ".ic.gov", ".sgov.gov")
_LOOPBACK = re.compile(r"localhost|127\.[0-9.]+|::1", re.ASCII)


def is_aws(endpoint_url: str) -> bool:
    """Whether an endpoint is one of AWS."""
    return f".{urlsplit(endpoint_url).hostname or ''}".endswith(_AWS_DOMAINS)


def is_private_line(url: str) -> bool:
    """Whether nobody else hears what is sent there: encrypted, or within this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or bool(_LOOPBACK.fullmatch(parts.hostname or ""))
