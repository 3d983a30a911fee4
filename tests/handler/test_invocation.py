from __future__ import annotations

import logging
import math
import time

import pytest

from adapter import Cancelled, InvocationContext
from adapter.invocation import user_frame, user_trace


def test_a_context_of_ones_own_has_no_limit_and_is_not_cancelled() -> None:
    context = InvocationContext()
    assert (context.request_id, context.remaining_ms(), context.cancelled, context.is_cold_start) == (
        "local",
        math.inf,
        False,
        False,
    )
    context.raise_if_cancelled()
    context.progress(0.5)


def test_a_deadline_is_a_point_of_the_wall_clock() -> None:
    """D17."""
    assert 59_000 < InvocationContext(deadline=time.time() + 60).remaining_ms() <= 60_000
    late = InvocationContext(deadline=time.time() - 1)
    assert late.remaining_ms() == 0
    assert late.cancelled
    with pytest.raises(Cancelled, match="deadline") as caught:
        late.raise_if_cancelled()
    assert caught.value.reason == "deadline"


def test_a_cancelled_invocation_leaves_the_handler_through_except_exception() -> None:
    reasons: list[str] = []
    context = InvocationContext(cancel_reason=lambda: reasons[-1] if reasons else None)
    assert not context.cancelled
    reasons.append("client_gone")
    assert context.cancelled

    def handler() -> str:
        try:
            context.raise_if_cancelled()
        except Exception:
            return "swallowed"
        return "went on"

    with pytest.raises(Cancelled, match="client_gone"):
        handler()


def test_progress_goes_where_the_runtime_says() -> None:
    told: list[object] = []
    InvocationContext(report_progress=told.append).progress({"done": 1})
    assert told == [{"done": 1}]


def test_log_records_carry_the_request_and_the_callers_extra(caplog: pytest.LogCaptureFixture) -> None:
    log = InvocationContext(request_id="r-7").log
    with caplog.at_level(logging.INFO, "coldstart.handler"):
        log.info("encoded %d", 3, extra={"tokens": 5})
        log.warning("plain")
    first, second = caplog.records
    assert (first.getMessage(), vars(first)["request_id"], vars(first)["tokens"]) == ("encoded 3", "r-7", 5)
    assert vars(second)["request_id"] == "r-7"


def raise_deep(depth: int) -> None:
    if depth:
        raise_deep(depth - 1)
    raise ValueError("deep")


def test_a_trace_has_bounded_frames_and_length() -> None:
    with pytest.raises(ValueError, match="deep") as caught:
        raise_deep(500)
    text = user_trace(caught.value)
    assert text.count("raise_deep") < 60
    assert text.endswith("ValueError: deep")
    assert len(user_trace(ValueError("x" * 100_000))) <= 8193


def test_a_trace_tells_causes_groups_and_notes() -> None:
    try:
        try:
            raise_deep(0)
        except ValueError as error:
            error.add_note("while encoding")
            raise ExceptionGroup("several", [KeyError("k")]) from error
    except ExceptionGroup as group:
        text = user_trace(group)
    assert "ValueError: deep" in text
    assert "while encoding" in text
    assert "KeyError: 'k'" in text
    assert "direct cause" in text


def read_json(text: str) -> object:
    import json

    return json.loads(text)


def test_the_users_frame_is_preferred_to_that_of_a_library() -> None:
    with pytest.raises(ValueError, match="Expecting") as caught:
        read_json("{")
    assert user_frame(caught.value) == (__file__, read_json.__code__.co_firstlineno + 3)
    assert user_frame(ValueError("never raised")) is None
