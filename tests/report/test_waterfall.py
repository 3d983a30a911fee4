from __future__ import annotations

from dataclasses import replace

import pytest

from adapter.errors import ObjectNotFound
from adapter.init_report import InitReport, init_report
from adapter.report.rows import si
from adapter.report.waterfall import ASCII, plain, waterfall
from adapter.timeline import Span, Value

MS = 1_000_000


def span(role: str, name: str, start_ms: int, stop_ms: int, **fields: Value) -> Span:
    return Span(name, role, "cpu", start_ms * MS, stop_ms * MS, 1, fields)


def report() -> InitReport:
    return init_report(
        [
            span("supervisor", "process.start", 0, 100),
            span("fetcher", "weights.stream", 100, 900, bytes=90_900_000, requests=12),
            span("worker", "import.framework", 100, 500),
            span("worker", "model.load", 500, 900),
            span("worker", "weights.wait", 600, 650),
            span("worker", "weights.wait", 700, 900),
            span("front", "replica.ready", 1000, 1000),
        ],
        handler="handlers.echo:echo",
    )


def row(text: str, name: str) -> str:
    (found,) = (line for line in text.splitlines() if line.startswith(f"  {name} "))
    return found


def test_the_head_says_what_how_long_and_where_the_time_went() -> None:
    lines = plain(waterfall(report())).splitlines()
    assert lines[0] == "cold start of handlers.echo:echo: ready after 1.000 s"
    assert lines[1] == "infrastructure 0.200 s (20.0 %)  framework 0.400 s (40.0 %)  model 0.400 s (40.0 %)"
    assert lines[2] == ("weights: 90.9 MB from the store in 12 requests at 114 MB/s (909 Mbit/s), 0 B from the cache")


def test_a_bar_lies_where_its_stage_lies() -> None:
    text = plain(waterfall(report(), width=120, glyphs=ASCII))
    bar = row(text, "model.load").partition("*  ")[2]
    whole = row(text, "import.framework").partition("*  ")[2]
    assert whole.index("#") == pytest.approx(bar.index("#") / 5, abs=1)
    assert bar.count("#") + bar.count("-") == pytest.approx(whole.count("#"), abs=1)


def test_only_what_the_start_waited_for_is_drawn_as_critical() -> None:
    text = plain(waterfall(report(), width=120, glyphs=ASCII))
    assert "0.250*" in row(text, "weights.stream")
    assert "-" in row(text, "weights.stream").partition("*")[2]
    assert "0.150*" in row(text, "model.load")
    assert "*" not in row(text, "weights.wait x2")


def test_spans_of_one_name_share_a_row() -> None:
    assert "0.250" in row(plain(waterfall(report())), "weights.wait x2")


def test_roles_stand_in_the_order_of_their_starts() -> None:
    lines = plain(waterfall(report())).splitlines()
    assert [line for line in lines if line in ("supervisor", "fetcher", "front", "worker")] == [
        "supervisor",
        "fetcher",
        "front",
        "worker",
    ]


def test_a_mark_is_drawn_as_one() -> None:
    assert row(plain(waterfall(report(), glyphs=ASCII)), "replica.ready").split()[1:] == ["mark", "|"]


@pytest.mark.parametrize("width", [1, 60, 80, 120, 200])
def test_lines_keep_to_the_width(width: int) -> None:
    text = plain(waterfall(report(), width=width))
    drawn = text.splitlines()[4:-2]
    assert max(len(line) for line in drawn) <= max(width, 90)


def test_an_error_is_shown() -> None:
    failed = init_report([span("supervisor", "process.start", 0, 100)], error=ObjectNotFound("no bucket `models`"))
    lines = plain(waterfall(failed)).splitlines()
    assert lines[0] == "cold start: failed after 0.100 s"
    assert lines[1] == "storage.not_found: no bucket `models`"


def test_nothing_in_a_report_is_obeyed_by_a_terminal() -> None:
    evil = "\x1b]0;title\x07\x1b[2J\r\x9b\u202e"
    spans = [span("worker" + evil, "stage" + evil, 0, 100), span("worker", "model.load", 0, 90)]
    spans[1] = replace(spans[1], fields={"error": evil})
    failed = init_report(spans, handler="a:b" + evil, error=ObjectNotFound(f"first{evil}\nsecond{evil}"))
    text = plain(waterfall(failed))
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count(r"\x1b[2J") >= 5
    assert r"second\x1b]0;title" in text.splitlines()[2]


def test_an_empty_report_can_be_shown() -> None:
    assert plain(waterfall(init_report([]))).startswith("cold start: not ready yet after 0.000 s\n")


def test_a_recovery_says_so_and_earlier_spans_are_cut() -> None:
    recovery = replace(report(), kind="recovery")
    early = replace(recovery.stages[0], start_s=-5.0)
    text = plain(waterfall(replace(recovery, stages=(early, *recovery.stages[1:]))))
    assert text.startswith("recovery of handlers.echo:echo: ready after")


def test_a_role_of_another_name_comes_last() -> None:
    text = plain(waterfall(init_report([span("notebook", "model.load", 0, 5), span("worker", "model.load", 0, 9)])))
    assert text.index("worker") < text.index("notebook")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 "),
        (999, "999 "),
        (1000, "1 k"),
        (999_900, "1 M"),
        (90_870_000, "90.9 M"),
        (2.5e9, "2.5 G"),
        (1e12, "1 T"),
    ],
)
def test_numbers_have_three_digits_and_a_prefix(value: float, text: str) -> None:
    assert si(value) == text
