"""What follows from a role's end: a pure function over values, apart from the process that acts on it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from adapter.errors import AdapterError, CheckpointError, ConfigurationError, RoleDied, StorageError
from adapter.runtime.roles import Role


class Verdict(StrEnum):
    """What follows when a role has ended."""

    DONE = "done"
    RESTART = "restart"
    FAIL = "fail"
    HOLD = "hold"
    """Wait: whether its error counts is known when the handler has been imported."""


@dataclass(frozen=True, slots=True)
class RoleEnd:
    """How a role ended, and in which circumstances."""

    role: Role
    status: int
    """Exit code, or minus the signal's number."""
    error: AdapterError | None
    """What it left in its error file."""
    ready: bool
    """Whether the replica was ready."""
    restarts: int
    """How often the role was started again since the replica was last ready."""
    address_is_hint: bool = False
    """Whether the fetcher's address is a guess that the handler has not confirmed yet."""
    sealed: bool = False
    """Whether every byte of the weights is in place."""


def judge_exit(end: RoleEnd, restart_limit: int) -> Verdict:
    """What to do about a role's end while the replica is meant to go on."""
    if end.role is Role.FETCHER:
        if end.status == 0 or end.sealed:
            return Verdict.DONE  # at most an fsync is lost, and the cache knows it
        if end.address_is_hint and isinstance(end.error, (StorageError, CheckpointError, ConfigurationError)):
            return Verdict.HOLD
    if end.error is not None and not (end.ready and end.error.retryable):
        # an error that the role itself could name comes again; a ready replica is worth another try where it may not
        return Verdict.FAIL
    return Verdict.RESTART if end.restarts < restart_limit else Verdict.FAIL


def describe_status(status: int) -> str:
    """An exit status for people."""
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def role_died(end: RoleEnd) -> RoleDied:
    """The error of a role that ended without saying why."""
    often = f" for the {end.restarts + 1}. time in a row" if end.restarts else ""
    hint = " (out of memory?)" if end.status == -signal.SIGKILL else ""
    return RoleDied(
        f"the {end.role} ended unexpectedly{often}: {describe_status(end.status)}{hint}. Its last log lines say more.",
        role=str(end.role),
        status=end.status,
    )
