from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.errors import LoadError
from adapter.init_report import LAYERS, InitReport, init_report
from adapter.timeline import Span, Timeline, Value, read_spans

MS = 1_000_000
WORKER = 7


def span(role: str, name: str, start_ms: int, stop_ms: int, pid: int = WORKER, **fields: Value) -> Span:
    return Span(name, role, "cpu", start_ms * MS, stop_ms * MS, pid, fields)


def cold_start() -> list[Span]:
    """A start of one second: 50 ms until the worker runs, 500 imports, 440 model, 10 until it is announced."""
    return [
        span("supervisor", "process.start", 0, 20),
        span("supervisor", "role.spawn", 20, 30),
        span("fetcher", "storage.connect", 40, 200),
        span("fetcher", "weights.stream", 200, 800, bytes=600_000_000, from_cache_bytes=5, requests=75),
        span("front", "import.server", 35, 300),
        span("worker", "import.framework", 50, 500),
        span("worker", "import.handler", 500, 550, handler="m:f"),
        span("worker", "weights.manifest", 550, 560),
        span("worker", "model.load", 560, 900),
        span("worker", "weights.wait", 600, 800),
        span("worker", "warm_up[0]", 900, 990),
        span("front", "replica.ready", 1000, 1000),
    ]


def test_a_start_is_split_into_layers_that_add_up() -> None:
    """C1: infrastructure, framework, model in seconds and percent, whose sum is the whole."""
    report = init_report(cold_start())
    assert report.total_s == pytest.approx(1.0)
    assert {layer: share.seconds for layer, share in report.layers.items()} == pytest.approx(
        {"infrastructure": 0.06, "framework": 0.5, "model": 0.44}
    )
    assert sum(share.percent for share in report.layers.values()) == pytest.approx(100)


def test_the_critical_path_follows_the_stream_where_the_worker_waits_for_it() -> None:
    path = [(step.role, step.name, step.start_s, step.stop_s) for step in init_report(cold_start()).critical_path]
    assert path == [
        ("supervisor", "process.start", 0, 0.02),
        ("supervisor", "role.spawn", 0.02, 0.03),
        ("", "", 0.03, 0.035),
        ("front", "import.server", 0.035, 0.05),
        ("worker", "import.framework", 0.05, 0.5),
        ("worker", "import.handler", 0.5, 0.55),
        ("fetcher", "weights.stream", 0.55, 0.56),
        ("worker", "model.load", 0.56, 0.6),
        ("fetcher", "weights.stream", 0.6, 0.8),
        ("worker", "model.load", 0.8, 0.9),
        ("worker", "warm_up[0]", 0.9, 0.99),
        ("", "", 0.99, 1.0),
    ]


def test_a_stage_is_critical_when_the_start_waited_for_it() -> None:
    report = init_report(cold_start())
    assert {stage.name for stage in report.stages if not stage.critical} == {
        "storage.connect",
        "weights.manifest",
        "weights.wait",
        "replica.ready",
    }


def test_what_was_moved_is_counted() -> None:
    transfer = init_report(cold_start()).transfer
    assert (transfer.store_bytes, transfer.cache_bytes, transfer.requests) == (600_000_000, 5, 75)
    assert transfer.bytes_per_s == pytest.approx(1e9)


def test_the_handler_is_named_by_the_worker_unless_the_caller_names_it() -> None:
    assert init_report(cold_start()).handler == "m:f"
    assert init_report(cold_start(), handler="other").handler == "other"


def test_a_start_that_is_not_ready_yet_reaches_to_the_last_record() -> None:
    report = init_report([found for found in cold_start() if found.stop_ns <= 560 * MS])
    assert (report.outcome, report.total_s) == ("starting", 0.56)
    assert report.critical_path[-1].stop_s == 0.56


def test_a_failed_start_keeps_its_error() -> None:
    error = LoadError("load raised KeyError: 'x'", error_type="KeyError")
    report = init_report(cold_start()[:-2], error=error)
    assert report.outcome == "failed"
    assert report.error == error.to_dict()
    assert InitReport.from_json(report.to_json()).error == error.to_dict()


def test_a_recovery_begins_where_it_is_said_to() -> None:
    again = [
        span("worker", "import.framework", 5010, 5400, pid=8),
        span("worker", "model.load", 5400, 5490, pid=8),
        span("front", "replica.ready", 5500, 5500),
    ]
    report = init_report(cold_start() + again, start_ns=5000 * MS)
    assert (report.kind, report.outcome, report.total_s) == ("recovery", "ready", 0.5)
    assert report.layers["framework"].seconds == pytest.approx(0.39)
    assert [stage.name for stage in report.stages] == ["import.framework", "model.load", "replica.ready"]


def test_a_worker_lost_during_the_start_is_lost_time() -> None:
    lost = [span("worker", "import.framework", 60, 300, pid=6)]
    late = [
        span("worker", "import.framework", 400, 600),
        span("front", "replica.ready", 700, 700),
    ]
    report = init_report([span("supervisor", "process.start", 0, 10), *lost, *late])
    assert report.layers["framework"].seconds == pytest.approx(0.2)
    assert report.layers["infrastructure"].seconds == pytest.approx(0.5)


def test_nothing_recorded_is_an_empty_report() -> None:
    report = init_report([])
    assert (report.outcome, report.total_s, report.stages, report.critical_path) == ("starting", 0, (), ())
    assert InitReport.from_json(report.to_json()) == report


names = st.sampled_from(["import.framework", "model.load", "weights.wait", "weights.manifest", "warm_up[0]", "other"])
times = st.integers(0, 1000)
span_lists = st.lists(
    st.builds(
        lambda role, name, times, pid: span(role, name, min(times), max(times), pid),
        st.sampled_from(["supervisor", "front", "fetcher", "worker"]),
        names,
        st.tuples(times, times),
        st.integers(1, 2),
    ),
    max_size=20,
)


@given(span_lists, times, st.none() | times)
def test_every_instant_belongs_to_one_layer_and_one_step(spans: list[Span], ready: int, start: int | None) -> None:
    """C1, for whatever the roles record: overlapping, nested, out of order, outside the start."""
    spans = [*spans, span("front", "replica.ready", ready, ready)]
    report = init_report(spans, start_ns=None if start is None else start * MS)
    assert set(report.layers) == set(LAYERS)
    assert sum(share.seconds for share in report.layers.values()) == pytest.approx(report.total_s)
    at = 0.0
    for step in report.critical_path:
        assert step.start_s == pytest.approx(at)
        assert step.stop_s > step.start_s
        at = step.stop_s
    assert at == pytest.approx(report.total_s)
    back = InitReport.from_json(report.to_json())
    assert (back.kind, back.outcome, len(back.stages)) == (report.kind, report.outcome, len(report.stages))


def test_json_is_one_line_with_a_version() -> None:
    text = init_report(cold_start()).to_json()
    assert "\n" not in text
    assert json.loads(text)["schema_version"] == 1
    assert InitReport.from_json(text) == init_report(cold_start())


def test_a_report_of_a_later_version_with_more_fields_is_read() -> None:
    value = json.loads(init_report(cold_start()).to_json())
    value["new"] = 1
    value["stages"][0]["new"] = 1
    assert InitReport.from_json(json.dumps(value)) == init_report(cold_start())


@pytest.mark.parametrize("text", ["", "1", "[]", "{}", '{"schema_version": 2}', '{"schema_version": 1}', "{", "null"])
def test_what_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        InitReport.from_json(text)


def _with(place: str, given: object) -> str:
    """A report with something else in one place."""
    error = LoadError("load raised KeyError: 'x'", error_type="KeyError")
    report = json.loads(init_report(cold_start(), error=error).to_json())
    *way, last = [int(word) if word.isdigit() else word for word in place.split(".")]
    at = report
    for word in way:
        at = at[word]
    at[last] = given
    return json.dumps(report)


PLACES = [
    *("kind", "outcome", "total_s", "layers", "layers.model", "layers.model.seconds", "layers.model.percent"),
    *("transfer", "transfer.requests", "transfer.store_bytes", "transfer.seconds", "stages", "stages.0"),
    *("stages.0.name", "stages.0.role", "stages.0.lane", "stages.0.start_s", "stages.0.critical", "stages.0.fields"),
    *("critical_path", "critical_path.0", "critical_path.0.name", "critical_path.0.stop_s", "schema_version"),
    *("error.code", "error.message", "error.retryable", "error.exit_code", "error.fields"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("given", [None, "1", "unknown", [1], {"a": 1}, [None], math.nan, math.inf, -1, 10**400])
def test_what_the_schema_does_not_allow_is_refused_and_placed(place: str, given: object) -> None:
    right = isinstance(given, str) and place.endswith(("name", "role", "error.code", "message"))
    right |= given == {"a": 1} and place.endswith(".fields")
    right |= given == -1 and place.endswith(("start_s", "stop_s", "exit_code"))
    if right:
        InitReport.from_json(_with(place, given))
        return
    with pytest.raises(ValueError, match=r".+"):
        InitReport.from_json(_with(place, given))


@pytest.mark.parametrize(
    ("place", "given"),
    [("error", []), ("error", {}), ("handler", 1), ("schema_version", True), ("stages.0.fields.x", [])],
)
def test_further_values_of_other_types_are_refused(place: str, given: object) -> None:
    with pytest.raises(ValueError, match=r"init report"):
        InitReport.from_json(_with(place, given))


def test_numbers_that_json_has_not_are_none_in_a_report() -> None:
    report = init_report([span("worker", "model.load", 0, 5, loss=math.nan, most=math.inf)])
    assert InitReport.from_json(report.to_json()).stages[0].fields == {"loss": None, "most": None}


def test_a_report_nested_without_end_is_refused() -> None:
    with pytest.raises(ValueError, match="too deeply"):
        InitReport.from_json("[" * 200_000)


def test_a_report_is_made_from_what_processes_left_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "timeline.jsonl"
    supervisor, worker, front = (Timeline(role, path) for role in ("supervisor", "worker", "front"))
    with supervisor.span("process.start", "process"), worker.span("import.framework"):
        pass
    front.mark("replica.ready", "process")
    report = init_report(read_spans(path))
    assert report.outcome == "ready"
    assert report.total_s > 0
