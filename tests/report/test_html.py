from __future__ import annotations

import re
from dataclasses import replace

import pytest

from adapter.errors import HandlerFailed
from adapter.init_report import InitReport, init_report
from adapter.report.drawing import Scale
from adapter.report.html import html_page, sections
from adapter.timeline import Span, Value
from tests.support.html_document import Document

MS = 1_000_000
NASTY = "<script>alert('x')</script>\"&'</style>"


def span(role: str, name: str, start_ms: int, stop_ms: int, **fields: Value) -> Span:
    return Span(name, role, "cpu", start_ms * MS, stop_ms * MS, 1, fields)


def report(handler: str = "handlers.echo:echo") -> InitReport:
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
        handler=handler,
    )


def test_the_page_says_what_a_person_asks() -> None:
    text = Document(html_page([report()])).text
    assert "cold start of handlers.echo:echo" in text
    assert "ready after 1.000 s" in text
    assert "framework 0.400 s 40.0 %" in text
    assert "90.9\N{NO-BREAK SPACE}MB from the store in 12 requests" in text
    assert re.search(r"longest firstimport\.framework worker0\.400 s40 %", text)


def test_the_page_needs_nothing_else() -> None:
    """No script, and no address that a browser would load from."""
    page = Document(html_page([report(), report()]))
    assert "script" not in page.tags
    loaded = [value for _, name, value in page.attributes if name in ("src", "href", "data", "action", "srcset")]
    assert [value for value in loaded if not value.startswith("data:")] == []
    assert "url(" not in html_page([report()]).partition("</style>")[0].partition("<style>")[2]
    assert not [name for _, name, _ in page.attributes if name == "style" or name.startswith("on")]


def test_the_policy_allows_its_own_style_sheet_alone() -> None:
    page = html_page([report()])
    (policy,) = [value for value in Document(page).of("content") if "default-src" in value]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_whatever_users_name_is_text() -> None:
    nasty = init_report(
        [span(NASTY, NASTY, 0, 5), span("worker", f"model.{NASTY}", 0, 10, **{NASTY: NASTY, "error": NASTY})],
        handler=NASTY,
        error=HandlerFailed(NASTY),
    )
    plain, page = Document(html_page([report()])), Document(html_page([nasty], names=[NASTY]))
    assert "script" not in page.tags
    assert page.tags.count("style") == plain.tags.count("style") == 1
    assert {name for _, name, _ in page.attributes} <= {name for _, name, _ in plain.attributes} | {"role"}
    assert page.text.count(NASTY) >= 8
    assert Document(html_page([nasty, nasty], names=[NASTY, NASTY])).tags.count("script") == 0


def test_bars_lie_where_their_stages_lie() -> None:
    page = html_page([report()])
    row = page.partition('<code class="name">model.load</code>')[2].partition("</li>")[0]
    idle = re.findall(r'<rect class="model idle" x="([\d.]+)%" y="6" width="([\d.]+)%"', row)
    assert idle == [("50.000", "40.000")]
    full = re.findall(r'<rect class="model full" x="([\d.]+)%" y="4" width="([\d.]+)%"', row)
    assert full == [("50.000", "10.000"), ("65.000", "5.000")]


def test_what_the_start_waited_for_is_marked() -> None:
    page = html_page([report()])
    critical = re.findall(r'<li class="row critical" tabindex="0"><code class="name">(.*?)</code>', page)
    assert critical == ["process.start", "weights.stream", "import.framework", "model.load"]
    assert "0.250 s of it on the critical path" in page


def test_every_stage_is_in_the_table_too() -> None:
    page = html_page([report()])
    table = Document(page.partition("Every stage as a table</summary>")[2].partition("</details>")[0]).text
    assert table.count("weights.wait") == 2
    assert "weights.streamfetchercpu0.1000.9000.800yes" in table


def test_several_starts_share_one_scale_and_their_rows() -> None:
    half = replace(report(), total_s=0.5, stages=report().stages[:3], critical_path=report().critical_path[:2])
    page = html_page([report(), half], names=["cold", "warm <cache>"])
    first, second = page.split('<section class="start">')[1:]
    assert re.findall(r'<code class="name">(.*?)[ <]', first) == re.findall(r'<code class="name">(.*?)[ <]', second)
    assert 'class="end" x1="100.00%"' in first
    assert 'class="end" x1="50.00%"' in second
    assert "warm &lt;cache&gt;" in page


def test_several_starts_are_compared_stage_by_stage() -> None:
    text = Document(html_page([report(), replace(report(), total_s=1.5)])).text
    compared = text.partition("Compared, in seconds")[2]
    assert "Start 1Start 2difference" in compared
    assert "to the end of the start1.0001.500+0.500" in compared
    assert "model.load worker0.4000.4000.000" in compared
    three = Document(html_page([report()] * 3)).text
    assert "difference" not in three


def test_an_error_is_said() -> None:
    failed = init_report([span("supervisor", "process.start", 0, 100)], error=HandlerFailed("it broke"))
    text = Document(html_page([failed])).text
    assert "failed after 0.100 s" in text
    assert "it broke" in text


@pytest.mark.parametrize(
    "empty",
    [init_report([]), replace(report(), stages=(), critical_path=()), init_report([span("front", "mark", 5, 5)])],
)
def test_a_report_of_nothing_can_be_shown(empty: InitReport) -> None:
    Document(html_page([empty]))
    Document(html_page([empty, report()]))


def test_a_page_without_a_report_is_refused() -> None:
    with pytest.raises(ValueError, match="one report"):
        html_page([])
    assert sections([]) == ""


@pytest.mark.parametrize(
    ("total_s", "ticks"),
    [
        (7.3, [0, 2, 4, 6]),
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, [0]),
        (123.0, [0, 50, 100]),
        (0.0042, [0, 0.001, 0.002, 0.003, 0.004]),
    ],
)
def test_ticks_are_round(total_s: float, ticks: list[float]) -> None:
    assert Scale(total_s).ticks() == pytest.approx(ticks)


def test_what_lies_outside_the_start_is_cut() -> None:
    assert Scale(2.0).percent(-1) == 0
    assert Scale(2.0).percent(3) == 100
