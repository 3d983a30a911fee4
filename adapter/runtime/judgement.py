"""What follows from a role's end: a pure function over values, apart from the process that acts on it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum

from adapter.errors import AdapterError, RoleDied
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


def judge_exit(end: RoleEnd, restart_limit: int) -> Verdict:
    """What to do about a role's end while the replica is meant to go on."""
    if end.role is Role.FETCHER and end.status == 0:
        return Verdict.DONE
    if end.error is not None and not end.ready:
        return Verdict.HOLD if end.role is Role.FETCHER and end.address_is_hint else Verdict.FAIL
    if end.role is Role.FETCHER and end.ready:
        return Verdict.DONE  # everything is sealed; only an fsync is lost, and the cache knows it
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
