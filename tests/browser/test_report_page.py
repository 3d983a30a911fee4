"""A report's page in a real browser, from a file, as somebody opens it who was sent it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from adapter.init_report import InitReport, init_report
from adapter.report.html import html_page
from adapter.timeline import Span, Value
from tests.support.browser import Page, browser_page

MS = 1_000_000


def span(role: str, name: str, start_ms: int, stop_ms: int, **fields: Value) -> Span:
    return Span(name, role, "cpu", start_ms * MS, stop_ms * MS, 1, fields)


def report() -> InitReport:
    return init_report(
        [
            span("supervisor", "process.start", 0, 100),
            span("fetcher", "weights.stream", 100, 900, bytes=90_900_000, requests=12),
            span("worker", "import.framework", 100, 500),
            span("worker", "model.load", 500, 900, where="a_module_with_a_name/that_is_long_" * 4),
            span("worker", "weights.wait", 700, 900),
            span("front", "replica.ready", 1000, 1000),
        ],
        handler="a.package.with.a.name.that.is.rather.long:and_a_handler_with_another_one",
    )


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser_page() as page:
        yield page


def open_page(page: Page, directory: Path, count: int) -> None:
    path = directory / "report.html"
    path.write_text(html_page([report()] * count), encoding="utf-8")
    page.requests.clear()
    page.complaints.clear()
    page.look()
    page.open(f"file://{path}")


def test_details_come_on_pointing_and_by_the_keyboard(page: Page, tmp_path: Path) -> None:
    open_page(page, tmp_path, 1)
    shown = (
        "[...document.querySelectorAll('.tip')].filter((tip) => tip.offsetParent).map((tip) => tip.innerText).join()"
    )
    assert page.evaluate(shown) == ""
    page.point_at('ul[aria-label="fetcher"] li')
    told = str(page.evaluate(shown))
    assert "0.100 → 0.900 s" in told
    assert "90.9 MB" in told
    page.point_at("h1")
    assert page.evaluate(shown) == ""
    page.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    page.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
    assert "process.start" in str(page.evaluate(shown))


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("width", [375, 800, 1280, 1900])
def test_the_page_fits_every_screen(page: Page, tmp_path: Path, count: int, width: int) -> None:
    """G4."""
    open_page(page, tmp_path, count)
    page.look(width=width)
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")
    assert page.overflow() == 0
    page.evaluate("document.querySelectorAll('li.row')[4].focus()")
    assert page.overflow() == 0


def test_several_starts_stand_side_by_side_where_there_is_room(page: Page, tmp_path: Path) -> None:
    open_page(page, tmp_path, 2)
    tops = "[...document.querySelectorAll('.waterfall')].map((e) => Math.round(e.getBoundingClientRect().top))"
    first, second = page.evaluate(tops)
    assert first == second
    page.look(width=375)
    first, second = page.evaluate(tops)
    assert first < second


def luminance(page: Page, selector: str, property_name: str) -> float:
    colour = page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{property_name}")
    parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read_in_light_and_dark(page: Page, tmp_path: Path, dark: bool) -> None:
    """Contrast of 4.5 at least. Source: WCAG 2.2, success criterion 1.4.3."""
    open_page(page, tmp_path, 1)
    page.look(dark=dark)
    card = luminance(page, ".start", "backgroundColor")
    assert (card < 0.1) == dark
    for selector in ("h3", "h4", ".row .name", ".row .figures", ".legend", "summary", ".role", ".weights"):
        text = luminance(page, selector, "color")
        assert (max(card, text) + 0.05) / (min(card, text) + 0.05) >= 4.5, selector


def test_nothing_is_asked_for_and_nothing_is_refused(page: Page, tmp_path: Path) -> None:
    """G4: the page is all there is."""
    open_page(page, tmp_path, 2)
    assert [address for address in page.requests if not address.startswith(("file:", "data:"))] == []
    assert page.complaints == []
