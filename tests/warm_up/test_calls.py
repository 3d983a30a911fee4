from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from adapter import Cancelled
from adapter.errors import EncodeError, InvalidEvent, TruncatedRead, WarmUpError
from adapter.timeline import Timeline
from adapter.warm_up.calls import RecordedCall, run_recorded

CALLS = [RecordedCall({"text": "short"}, "user.py:9"), RecordedCall({"text": "long"}, "user.py:10")]


def test_calls_run_in_order_in_this_thread_each_as_one_span() -> None:
    """D11: the very same thread."""
    seen: list[tuple[Any, int]] = []
    timeline = Timeline("worker")
    run_recorded(CALLS, lambda event: seen.append((event, threading.get_ident())), timeline)
    assert seen == [({"text": "short"}, threading.get_ident()), ({"text": "long"}, threading.get_ident())]
    assert [(span.name, span.lane, span.fields["where"]) for span in timeline.spans()] == [
        ("warm_up[0]", "warm", "user.py:9"),
        ("warm_up[1]", "warm", "user.py:10"),
    ]


def test_each_run_has_its_own_copy_of_the_event() -> None:
    seen: list[int] = []

    def invoke(event: Any) -> None:
        seen.append(len(event))
        event.clear()

    for _ in range(2):  # a second time, as after a restore
        run_recorded(CALLS, invoke, Timeline("worker"))
    assert seen == [1, 1, 1, 1]


def test_nothing_recorded_is_nothing_done() -> None:
    timeline = Timeline("worker")
    run_recorded([], lambda event: pytest.fail("called"), timeline)
    assert timeline.spans() == ()


def user_code(event: Any) -> Any:
    if event["text"] == "long":
        raise ValueError("too long")
    return event


def test_a_call_that_raises_ends_the_warm_up_naming_the_call_and_the_cause() -> None:
    """A6."""
    timeline = Timeline("worker")
    with pytest.raises(WarmUpError) as caught:
        run_recorded(CALLS, user_code, timeline)
    error = caught.value
    assert error.message == "warm_up[1], recorded at user.py:10, failed: ValueError: too long"
    assert error.fields["index"] == 1
    assert error.fields["error_type"] == "ValueError"
    assert (error.fields["file"], error.fields["line"]) == (__file__, user_code.__code__.co_firstlineno + 2)
    assert "raise ValueError" in str(error.fields["trace"])
    assert isinstance(error.__cause__, ValueError)
    assert [span.fields.get("error") for span in timeline.spans()] == [None, "WarmUpError"]


@pytest.mark.parametrize("raised", [EncodeError("NaN", path="output.score"), InvalidEvent("no text"), SystemExit(3)])
def test_whatever_is_the_calls_own_fault_is_a_failed_warm_up(raised: BaseException) -> None:
    def invoke(event: Any) -> None:
        raise raised

    with pytest.raises(WarmUpError, match=r"warm_up\[0\]"):
        run_recorded(CALLS, invoke, Timeline("worker"))


def test_a_failed_stream_keeps_its_own_type() -> None:
    def invoke(event: Any) -> None:
        raise TruncatedRead("ended early", key="model.safetensors")

    with pytest.raises(TruncatedRead) as caught:
        run_recorded(CALLS, invoke, Timeline("worker"))
    assert caught.value.__notes__ == ["while warm_up[0] (user.py:9) ran"]


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Cancelled])
def test_what_ends_the_process_passes_through(signal: type[BaseException]) -> None:
    def invoke(event: Any) -> None:
        raise signal

    with pytest.raises(signal):
        run_recorded(CALLS, invoke, Timeline("worker"))


def test_warm_up_needs_no_framework() -> None:
    assert "adapter.warm_up.calls" in sys.modules
    assert not hasattr(sys.modules["adapter.warm_up.calls"], "torch")
