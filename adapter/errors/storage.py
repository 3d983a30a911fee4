"""The store cannot be read, or answers wrongly."""

from __future__ import annotations

from adapter.errors.base import AdapterError


class StorageError(AdapterError):
    """Reading from the store failed. Fields: store, key, range, attempts, cause.

    Causes that are no fault of the store have classes elsewhere: `ChecksumMismatch`, `InitTimeout` (the deadline),
    `InvocationCancelled`.
    """

    code = "storage"
    exit_code = 20


class ObjectNotFound(StorageError):
    """The object or prefix is not there, or may not be seen."""

    code = "storage.not_found"
    exit_code = 21


class AccessDenied(StorageError):
    """The store says no to these credentials: missing or not permitted."""

    code = "storage.access_denied"
    exit_code = 22


class CredentialsError(StorageError):
    """No credentials were found, or the store does not accept them."""

    code = "storage.credentials"
    exit_code = 23


class CredentialsExpired(CredentialsError):
    """What proved who reads is no longer valid, and nothing newer was found: a token, keys, a signed address."""

    code = "storage.expired"
    exit_code = 80


class WrongRegion(StorageError):
    """The bucket is in another region, or behind another endpoint. Fields: region, where the store names it."""

    code = "storage.region"
    exit_code = 81


class Throttled(StorageError):
    """The store asked to slow down (503 SlowDown, 429)."""

    code = "storage.throttled"
    exit_code = 24
    retryable = True


class ConnectionFailed(StorageError):
    """The store could not be reached, or the connection broke."""

    code = "storage.connection"
    exit_code = 25
    retryable = True


class NameNotResolved(ConnectionFailed):
    """The store's host name has no address here: it is wrong, or the name server does not answer."""

    code = "storage.dns"
    exit_code = 83


class TlsFailed(StorageError):
    """No encrypted connection comes about: the certificate is not trusted, or is of another host."""

    code = "storage.tls"
    exit_code = 82


class TruncatedRead(StorageError):
    """A body ended before the range it promised."""

    code = "storage.truncated"
    exit_code = 26
    retryable = True


class WrongRange(StorageError):
    """The answer is not the range that was asked for."""

    code = "storage.wrong_range"
    exit_code = 27
    retryable = True


class ObjectChanged(StorageError):
    """The object was replaced while it was being read."""

    code = "storage.changed"
    exit_code = 28


class StoreFailed(StorageError):
    """The store answered with an error of its own (5xx other than throttling)."""

    code = "storage.server"
    exit_code = 29
    retryable = True
