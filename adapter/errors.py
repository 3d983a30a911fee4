"""One tree of errors: every failure names what happened, where, and what to do.

Each class says whether a later try can succeed (`retryable`), which exit code ends a process for it (`exit_code`),
and a stable name for machines (`code`). Errors travel between the roles of a replica as JSON: `to_dict`, `from_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

Field = str | int | float | bool | None


class AdapterError(Exception):
    """The root: anything this package raises on purpose.

    Args:
        message: What happened, where, and what to do; one or two sentences, never a secret.
        fields: Facts for machines (key, range, attempts, cause …); JSON scalars only.
    """

    code: ClassVar[str] = "adapter.error"
    exit_code: ClassVar[int] = 70
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **fields: Field) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Field] = dict(fields)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.fields))

    def to_dict(self) -> dict[str, object]:
        """The error as JSON values: code, type, message, retryable, exit_code, fields."""
        said: dict[str, object] = {"code": self.code, "type": type(self).__name__, "message": self.message}
        return said | {"retryable": self.retryable, "exit_code": self.exit_code, "fields": self.fields}

    @staticmethod
    def from_dict(value: Mapping[str, object]) -> AdapterError:
        """The error that `to_dict` described; an unknown code gives the root class with the message kept."""
        found = _BY_CODE.get(str(value.get("code")), AdapterError)
        fields = value.get("fields")
        clean = {str(k): v for k, v in fields.items() if isinstance(v, Field)} if isinstance(fields, Mapping) else {}
        return _rebuild(found, str(value.get("message", "unknown error")), clean)


def _rebuild(cls: type[AdapterError], message: str, fields: Mapping[str, Field]) -> AdapterError:
    error = cls.__new__(cls)
    AdapterError.__init__(error, message, **fields)
    return error


class ConfigurationError(AdapterError):
    """A setting, flag or argument has no usable value; the message names it."""

    code = "configuration"
    exit_code = 10


class HandlerImportError(AdapterError):
    """The handler's module could not be imported."""

    code = "handler.import"
    exit_code = 11


class HandlerNotFound(AdapterError):
    """The module has no such handler, or what is there is not one."""

    code = "handler.not_found"
    exit_code = 12


class HandlerDefinitionError(AdapterError):
    """`coldstart_handler` was used in a way that cannot work."""

    code = "handler.definition"
    exit_code = 13


class LoadError(AdapterError):
    """The user's `load` raised."""

    code = "load"
    exit_code = 14


class WarmUpError(AdapterError):
    """A recorded warm-up call raised."""

    code = "warm_up"
    exit_code = 15


class InitTimeout(AdapterError):
    """The start did not reach readiness in time; the message names the stage and its progress."""

    code = "init_timeout"
    exit_code = 16
    retryable = True


class MissingExtra(AdapterError):
    """An optional part is not installed; the message names the extra to install."""

    code = "missing_extra"
    exit_code = 17


class PlatformUnsupported(AdapterError):
    """This operating system cannot run what was asked."""

    code = "platform_unsupported"
    exit_code = 18


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


class CheckpointError(AdapterError):
    """The checkpoint is not what it should be. Fields: file, tensor, rule."""

    code = "checkpoint"
    exit_code = 30


class NotSafetensors(CheckpointError):
    """The file is not a safetensors file; the message says what it looks like."""

    code = "checkpoint.not_safetensors"
    exit_code = 31


class HeaderError(CheckpointError):
    """The header breaks a rule of the format, named in the field `rule`."""

    code = "checkpoint.header"
    exit_code = 32


class WeightIndexError(CheckpointError):
    """The weight index is malformed, names a file it must not, or a file that is missing."""

    code = "checkpoint.index"
    exit_code = 33


class UnsupportedDtype(CheckpointError):
    """The installed torch has no such dtype (or no view for it)."""

    code = "checkpoint.dtype"
    exit_code = 34


class MissingTensor(CheckpointError):
    """The checkpoint has no tensor of that name, or the model wants one it does not hold."""

    code = "checkpoint.missing_tensor"
    exit_code = 35


class TensorMismatch(CheckpointError):
    """A tensor's shape is not what the model wants, or the checkpoint holds tensors the model does not want."""

    code = "checkpoint.mismatch"
    exit_code = 36


class ChecksumMismatch(CheckpointError):
    """What arrived is not what its checksum says, or there is none to ask. Fields: file, algorithm, expected, found."""

    code = "checkpoint.checksum"
    exit_code = 37


class CacheError(AdapterError):
    """The cache directory cannot be used. Fields: path."""

    code = "cache"
    exit_code = 40


class NoSpace(CacheError):
    """The disk is full or would be. Fields: path, needed_bytes, free_bytes."""

    code = "cache.no_space"
    exit_code = 41


class CacheNotWritable(CacheError):
    """The cache directory cannot be written by this user."""

    code = "cache.not_writable"
    exit_code = 42


class LeaseTimeout(CacheError):
    """Another process held the lease on a shard longer than this start may wait."""

    code = "cache.lease_timeout"
    exit_code = 43
    retryable = True


class DeviceError(AdapterError):
    """A device could not be used."""

    code = "device"
    exit_code = 50


class DeviceUnavailable(DeviceError):
    """The device that was asked for is not on this machine."""

    code = "device.unavailable"
    exit_code = 51


class ForkedContext(DeviceError):
    """A device context made before a fork was used in the child."""

    code = "device.forked_context"
    exit_code = 52


class RoleDied(AdapterError):
    """A role of the replica ended unexpectedly. Fields: role, status."""

    code = "role_died"
    exit_code = 60
    retryable = True


class WorkerDied(RoleDied):
    """The worker ended while it held this invocation; whether it took effect is unknown."""

    code = "worker_died"
    exit_code = 61
    retryable = True


class InvalidEvent(AdapterError):
    """The event of an invocation is not valid: not JSON, or refused by the handler's type."""

    code = "invalid_event"
    exit_code = 62


class EventTooLarge(InvalidEvent):
    """The event is larger than what is taken. Fields: size_bytes, limit_bytes."""

    code = "event_too_large"
    exit_code = 74


class HandlerFailed(AdapterError):
    """The handler raised. Fields: error_type."""

    code = "handler.failed"
    exit_code = 63


class EncodeError(AdapterError):
    """The result cannot be carried as strict JSON; the field `path` names the value (`output.scores[3]`)."""

    code = "encode"
    exit_code = 66


class InvocationTimeout(AdapterError):
    """The invocation's deadline passed."""

    code = "invocation.timeout"
    exit_code = 67
    retryable = True


class InvocationCancelled(AdapterError):
    """The caller went away or cancelled."""

    code = "invocation.cancelled"
    exit_code = 68


class QueueFull(AdapterError):
    """More invocations wait than the queue may hold."""

    code = "queue_full"
    exit_code = 69
    retryable = True


class Draining(AdapterError):
    """The replica is ending and takes no new work."""

    code = "draining"
    exit_code = 71
    retryable = True


class ResponseTooLarge(AdapterError):
    """The encoded result is larger than the platform's limit. Fields: size_bytes, limit_bytes."""

    code = "response_too_large"
    exit_code = 72


class LinkError(AdapterError):
    """The wire between two roles carried something that is no frame."""

    code = "link"
    exit_code = 73


def _tree(cls: type[AdapterError]) -> list[type[AdapterError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _tree(child))]


_BY_CODE: dict[str, type[AdapterError]] = {cls.code: cls for cls in _tree(AdapterError)}
