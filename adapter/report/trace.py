"""An init report as a trace that Perfetto and chrome://tracing open.

Each role is a process and each lane a thread of it. In that format the events of one thread must nest, so spans that
overlap without nesting (two headers read at once) go to further threads of their lane: what ran together is shown
together. The critical path is a process of its own, above the roles.

Process ids are numbers of the picture, since roles of two starts may have had the same; what a role really had is
among the facts of the stage `role.spawn`.

Source: Trace Event Format, https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from adapter.init_report import InitReport, Stage
from adapter.report.rows import ending, layer_of_step, role_order, title
from adapter.timeline import Lane

Event = dict[str, Any]

PIDS_PER_START = 100
"""Start number n has the process ids from n x 100 on."""
TIDS_PER_LANE = 100
_LANES: tuple[Lane, ...] = get_args(Lane)


@dataclass(frozen=True, slots=True)
class _Track:
    """A thread of the picture."""

    pid: int
    tid: int


def trace_json(reports: Sequence[InitReport], *, names: Sequence[str] = ()) -> str:
    """The starts as one trace: JSON object format, times in microseconds, every start from the same zero.

    Args:
        reports: One start or several.
        names: What to call each start; without one it is numbered where there are several.
    """
    # a stage that began before the start (the other half of a recovery) has a negative time, which not all viewers take
    zero_s = max([0.0, *(-stage.start_s for report in reports for stage in report.stages)])
    events: list[Event] = []
    for number, report in enumerate(reports):
        name = names[number] if number < len(names) else f"start {number + 1}" if len(reports) > 1 else ""
        events += _start(report, (number + 1) * PIDS_PER_START, f"{name}: " if name else "", zero_s)
    value = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "schema_version": max((report.schema_version for report in reports), default=0),
            "starts": [f"{title(report)}: {ending(report)}" for report in reports],
        },
    }
    return json.dumps(value, separators=(",", ":"))


def _start(report: InitReport, pid: int, prefix: str, zero_s: float) -> Iterator[Event]:
    path = _Track(pid, 1)
    yield from _named_process(pid, f"{prefix}critical path", [title(report), ending(report)])
    yield _metadata("thread_name", path, name="what the start waited for")
    for step in report.critical_path:
        args = {"role": step.role, "layer": layer_of_step(step.role, step.name)}
        yield _complete(step.name or "(no stage)", path, (step.start_s + zero_s, step.stop_s + zero_s), args)
    if report.error is not None:
        at = _microseconds(report.total_s + zero_s)
        yield {"name": "failed", "ph": "i", "s": "g", "ts": at, **_where(path), "args": {"error": dict(report.error)}}
    roles = sorted({stage.role for stage in report.stages}, key=role_order)
    for number, role in enumerate(roles, 1):
        yield from _named_process(pid + number, f"{prefix}{role}", [])
        for lane in _LANES:
            stages = [stage for stage in report.stages if stage.role == role and stage.lane == lane]
            yield from _lane(stages, lane, pid + number, zero_s)


def _lane(stages: Sequence[Stage], lane: Lane, pid: int, zero_s: float) -> Iterator[Event]:
    first = 1 + _LANES.index(lane) * TIDS_PER_LANE
    for number, nested in enumerate(tracks(stages)):
        track = _Track(pid, first + number)
        yield _metadata("thread_name", track, name=lane if number == 0 else f"{lane} {number + 1}")
        yield _metadata("thread_sort_index", track, sort_index=track.tid)
        for stage in nested:
            args: dict[str, Any] = {"critical": stage.critical, "layer": layer_of_step(stage.role, stage.name)}
            if stage.fields:
                args["fields"] = dict(stage.fields)
            if stage.stop_s > stage.start_s:
                yield _complete(stage.name, track, (stage.start_s + zero_s, stage.stop_s + zero_s), args)
            else:
                at = _microseconds(stage.start_s + zero_s)
                yield {"name": stage.name, "ph": "i", "s": "t", "ts": at, **_where(track), "args": args}


def tracks(stages: Sequence[Stage]) -> list[list[Stage]]:
    """The stages in as few rows as it takes for any two of a row to lie apart or one inside the other."""
    found: list[list[Stage]] = []
    open_until: list[list[float]] = []
    """For each row the ends of what is still open in it, the innermost last."""
    for stage in sorted(stages, key=lambda stage: (stage.start_s, -stage.stop_s)):
        for row, ends in zip(found, open_until, strict=True):
            while ends and ends[-1] <= stage.start_s:
                ends.pop()
            if not ends or stage.stop_s <= ends[-1]:
                row.append(stage)
                ends.append(stage.stop_s)
                break
        else:
            found.append([stage])
            open_until.append([stage.stop_s])
    return found


def _complete(name: str, track: _Track, times_s: tuple[float, float], args: Mapping[str, Any]) -> Event:
    start, stop = _microseconds(times_s[0]), _microseconds(times_s[1])
    event: Event = {"name": name, "cat": str(args["layer"]), "ph": "X", "ts": start, "dur": round(stop - start, 3)}
    return {**event, **_where(track), "args": dict(args)}


def _named_process(pid: int, name: str, labels: Sequence[str]) -> Iterator[Event]:
    track = _Track(pid, 0)
    yield _metadata("process_name", track, name=name)
    yield _metadata("process_sort_index", track, sort_index=pid)
    if labels:
        yield _metadata("process_labels", track, labels=", ".join(labels))


def _metadata(name: str, track: _Track, /, **args: str | int) -> Event:
    return {"name": name, "ph": "M", **_where(track), "args": args}


def _where(track: _Track) -> dict[str, int]:
    return {"pid": track.pid, "tid": track.tid}


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
