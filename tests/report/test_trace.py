from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import ObjectNotFound
from adapter.init_report import InitReport, init_report
from adapter.report.trace import trace_json, tracks
from adapter.timeline import Lane, Span, Value

MS = 1_000_000

DOCUMENTED: Mapping[str, tuple[set[str], set[str]]] = {
    "X": ({"name", "ph", "ts", "dur", "pid", "tid"}, {"cat", "args", "cname", "tts", "tdur"}),
    "i": ({"name", "ph", "ts", "pid", "tid", "s"}, {"cat", "args", "cname"}),
    "M": ({"name", "ph", "pid", "args"}, {"tid"}),
}
"""By kind of event: the fields that it must have, and those that it may have besides."""
METADATA = {
    "process_name": ("name", str),
    "process_labels": ("labels", str),
    "process_sort_index": ("sort_index", int),
    "thread_name": ("name", str),
    "thread_sort_index": ("sort_index", int),
}


def span(role: str, name: str, start_ms: int, stop_ms: int, lane: Lane = "cpu", **fields: Value) -> Span:
    return Span(name, role, lane, start_ms * MS, stop_ms * MS, 1, fields)


def report() -> InitReport:
    return init_report(
        [
            span("supervisor", "process.start", 0, 100, "process"),
            span("fetcher", "weights.stream", 100, 900, "network", bytes=90_900_000, requests=12),
            span("fetcher", "weights.header", 150, 250, "network", file="a"),
            span("fetcher", "weights.header", 200, 300, "network", file="b"),
            span("worker", "import.framework", 100, 500),
            span("worker", "model.load", 500, 900),
            span("worker", "weights.wait", 700, 900),
            span("front", "replica.ready", 1000, 1000, "process"),
        ],
        handler="handlers.echo:echo",
    )


def check(trace: str) -> list[dict[str, Any]]:
    """The events, each of which has the documented fields and no other."""
    value = json.loads(trace, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert set(value) <= {"traceEvents", "displayTimeUnit", "systemTraceEvents", "otherData", "stackFrames", "samples"}
    assert value["displayTimeUnit"] in ("ms", "ns")
    events: list[dict[str, Any]] = value["traceEvents"]
    for event in events:
        required, allowed = DOCUMENTED[event["ph"]]
        assert required <= set(event) <= required | allowed, event
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event.get("tid", 0), int)
        assert isinstance(event.get("args", {}), dict)
        if event["ph"] == "M":
            key, kind = METADATA[event["name"]]
            assert set(event["args"]) == {key}
            assert isinstance(event["args"][key], kind)
        else:
            assert isinstance(event["ts"], (int, float))
            assert event["ts"] >= 0
            assert event.get("dur", 0) >= 0
            assert event.get("s", "t") in ("g", "p", "t")
    return events


def names(events: list[dict[str, Any]], kind: str) -> dict[int, str]:
    return {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M" and event["name"] == kind}


def stages_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What stands in the roles' processes."""
    roles = {pid for pid, name in names(events, "process_name").items() if not name.endswith("critical path")}
    return [event for event in events if event["ph"] in ("X", "i") and event["pid"] in roles]


def ends(event: Mapping[str, Any]) -> tuple[int, int]:
    """Start and stop in nanoseconds."""
    start, length = round(event["ts"] * 1000), round(event.get("dur", 0) * 1000)
    return start, start + length


def assert_threads_nest(events: list[dict[str, Any]]) -> None:
    """Any two events of a thread lie apart or one in the other; else viewers draw something that did not happen."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append(ends(event))
    for spans in threads.values():
        for (a, b), (c, d) in itertools.combinations(spans, 2):
            assert b <= c or d <= a or (a <= c and d <= b) or (c <= a and b <= d), spans


def test_every_event_has_the_documented_fields() -> None:
    """G5."""
    assert check(trace_json([report()]))


def test_roles_are_processes_and_lanes_their_threads() -> None:
    """G5."""
    events = check(trace_json([report()]))
    assert list(names(events, "process_name").values()) == [
        "critical path",
        "supervisor",
        "fetcher",
        "front",
        "worker",
    ]
    pid = next(pid for pid, name in names(events, "process_name").items() if name == "fetcher")
    threads = [event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == pid]
    assert threads == ["network", "network 2"]


def test_overlaps_are_the_true_ones() -> None:
    """G5: what ran together in the report runs together in the trace, to the microsecond, and nothing else does."""
    events = check(trace_json([report()]))
    shown = sorted((event["name"], *ends(event)) for event in stages_of(events))
    assert shown == sorted(
        (stage.name, round(stage.start_s * 1e9), round(stage.stop_s * 1e9)) for stage in report().stages
    )
    assert_threads_nest(events)


def test_the_critical_path_is_a_process_of_its_own_without_gaps() -> None:
    events = check(trace_json([report()]))
    (pid,) = (pid for pid, name in names(events, "process_name").items() if name == "critical path")
    steps = sorted(ends(event) for event in events if event["ph"] == "X" and event["pid"] == pid)
    assert steps[0][0] == 0
    assert steps[-1][1] == 1_000_000_000
    assert all(one[1] == other[0] for one, other in itertools.pairwise(steps))


def test_fields_and_the_layer_stand_with_the_stage() -> None:
    (stream,) = (e for e in check(trace_json([report()])) if e["name"] == "weights.stream" and e["args"].get("fields"))
    assert stream["args"] == {
        "critical": True,
        "layer": "model",
        "fields": {"bytes": 90_900_000, "requests": 12},
    }


def test_a_mark_is_an_instant() -> None:
    (mark,) = (event for event in check(trace_json([report()])) if event["name"] == "replica.ready")
    assert (mark["ph"], mark["s"], mark["ts"]) == ("i", "t", 1_000_000)


def test_a_failed_start_shows_its_error_over_everything() -> None:
    failed = init_report([span("supervisor", "process.start", 0, 100)], error=ObjectNotFound("no bucket"))
    (event,) = (event for event in check(trace_json([failed])) if event["name"] == "failed")
    assert event["s"] == "g"
    assert event["args"]["error"]["code"] == "storage.not_found"


def test_several_starts_begin_at_the_same_zero_and_share_no_process() -> None:
    events = check(trace_json([report(), report()], names=["cold"]))
    called = list(names(events, "process_name").values())
    assert called[0] == "cold: critical path"
    assert called[5] == "start 2: critical path"
    assert len(names(events, "process_name")) == 10
    begins = [event["ts"] for event in events if event["name"] == "process.start" and "critical" in event["args"]]
    assert begins == [0, 0]


def test_a_stage_that_began_before_the_start_moves_the_zero_of_all() -> None:
    early = replace(report().stages[0], start_s=-0.5)
    moved = replace(report(), stages=(early, *report().stages[1:]))
    events = check(trace_json([moved, report()]))
    begins = [event["ts"] for event in events if event["name"] == "process.start" and "critical" in event["args"]]
    assert begins == [0, 500_000]


@pytest.mark.parametrize("reports", [[], [init_report([])]])
def test_nothing_is_a_trace_too(reports: list[InitReport]) -> None:
    check(trace_json(reports))


lanes: st.SearchStrategy[Lane] = st.sampled_from(["process", "network", "cpu"])
spans_of_any_kind = st.lists(
    st.builds(
        lambda role, name, times, lane: span(role, name, min(times), max(times), lane),
        st.sampled_from(["supervisor", "front", "fetcher", "worker", "notebook"]),
        st.sampled_from(["import.framework", "model.load", "weights.wait", "other"]),
        st.tuples(st.integers(0, 50), st.integers(0, 50)),
        lanes,
    ),
    max_size=25,
)


@given(spans_of_any_kind)
def test_whatever_was_recorded_nests_and_keeps_its_times(spans: list[Span]) -> None:
    made = init_report(spans)
    events = check(trace_json([made]))
    assert_threads_nest(events)
    shown = sorted(ends(event) for event in stages_of(events))
    assert shown == sorted((round(stage.start_s * 1e9), round(stage.stop_s * 1e9)) for stage in made.stages)


def test_few_threads_suffice() -> None:
    stages = report().stages
    assert [len(row) for row in tracks([stage for stage in stages if stage.lane == "network"])] == [2, 1]
