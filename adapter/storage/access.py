"""Who reads, and on what terms: what every kind of store is told from outside."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Self

from adapter.settings import HUB_ENDPOINT, Secret, Settings

CUSTOMER_KEY_BYTES = 32
"""Length of a key for AES-256, the only algorithm that S3 knows for keys of customers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who reads, and on what terms. An address can add terms of its own: `s3://bucket/prefix/?anonymous`."""

    anonymous: bool = False
    """Nothing is signed and no token sent; credentials are not even looked for (S-15)."""
    requester_pays: bool = False
    """Said on every request of S3: whoever reads pays, which some buckets demand (S-14)."""
    customer_key: Secret | None = None
    """Base64 of the key that objects in S3 were encrypted with by their owner (SSE-C), sent with every read."""
    store_name: str | None = None
    """What the cache calls the S3 endpoint instead of its address, where one store is met at changing addresses."""
    credentials_timeout_s: float = 10.0
    """Longest search for credentials: a metadata service that never answers must not hang a start (S-15)."""
    hub_token: Secret | None = None
    """Token of the model hub; sent to the hub alone."""
    hub_endpoint: str = HUB_ENDPOINT

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the settings say."""
        return cls(
            anonymous=settings.anonymous,
            requester_pays=settings.requester_pays,
            customer_key=settings.customer_key,
            store_name=settings.store_name,
            credentials_timeout_s=settings.credentials_timeout_s,
            hub_token=settings.hub_token,
            hub_endpoint=settings.hub_endpoint,
        )


def decoded_key(key: Secret) -> bytes:
    """The customer's key as S3 takes it.

    Raises:
        ValueError: It is not the base64 of 32 bytes; the message does not repeat it.
    """
    try:
        data = base64.b64decode(key.text, validate=True)
    except binascii.Error:
        data = b""
    if len(data) != CUSTOMER_KEY_BYTES:
        raise ValueError(f"the customer key is not the base64 of {CUSTOMER_KEY_BYTES} bytes")
    return data
