"""What the supervisor decides about a role's end, as a table."""

from __future__ import annotations

import pytest

from adapter.errors import (
    AdapterError,
    CacheNotWritable,
    ConnectionFailed,
    LoadError,
    ObjectChanged,
    ObjectNotFound,
)
from adapter.runtime.judgement import RoleEnd, Verdict, judge_exit
from adapter.runtime.roles import Role

KILLED = -9


@pytest.mark.parametrize(
    ("role", "status", "error", "ready", "restarts", "hint", "verdict"),
    [
        (Role.FETCHER, 0, None, False, 0, False, Verdict.DONE),
        (Role.FETCHER, KILLED, None, False, 0, False, Verdict.RESTART),
        (Role.FETCHER, KILLED, None, False, 3, False, Verdict.FAIL),
        (Role.FETCHER, KILLED, None, True, 0, False, Verdict.RESTART),
        (Role.FETCHER, 25, ConnectionFailed("gone"), True, 0, False, Verdict.RESTART),
        (Role.FETCHER, 25, ConnectionFailed("gone"), True, 3, False, Verdict.FAIL),
        (Role.FETCHER, 28, ObjectChanged("new"), True, 0, False, Verdict.FAIL),
        (Role.FETCHER, 42, CacheNotWritable("no"), False, 0, True, Verdict.FAIL),
        (Role.FETCHER, 21, ObjectNotFound("gone"), False, 0, False, Verdict.FAIL),
        (Role.FETCHER, 21, ObjectNotFound("gone"), False, 0, True, Verdict.HOLD),
        (Role.WORKER, 14, LoadError("raised"), False, 0, True, Verdict.FAIL),
        (Role.WORKER, KILLED, None, False, 0, False, Verdict.RESTART),
        (Role.WORKER, KILLED, None, False, 3, False, Verdict.FAIL),
        (Role.WORKER, 0, None, True, 0, False, Verdict.RESTART),
        (Role.FRONT, KILLED, None, True, 2, False, Verdict.RESTART),
        (Role.FRONT, 1, None, False, 3, False, Verdict.FAIL),
    ],
)
def test_each_end_has_its_verdict(
    role: Role, status: int, error: AdapterError | None, ready: bool, restarts: int, hint: bool, verdict: Verdict
) -> None:
    assert judge_exit(RoleEnd(role, status, error, ready, restarts, hint), 3) is verdict


def test_a_fetcher_that_has_sealed_everything_is_not_missed() -> None:
    end = RoleEnd(Role.FETCHER, KILLED, None, True, 0, sealed=True)
    assert judge_exit(end, 3) is Verdict.DONE
