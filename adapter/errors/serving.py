"""A role of a replica, or one invocation, ended badly."""

from __future__ import annotations

from adapter.errors.base import AdapterError


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
