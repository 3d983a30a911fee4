"""The store cannot be read, or answers wrongly."""

from __future__ import annotations

from adapter.errors.base import AdapterError


class StorageError(AdapterError):
    """Reading from the store failed. Fields: store, key, range, attempts, cause."""

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
    """No credentials were found, or the store does not accept them (wrong, expired)."""

    code = "storage.credentials"
    exit_code = 23


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
