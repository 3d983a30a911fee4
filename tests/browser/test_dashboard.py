"""The emulator's page in a real browser: clicked, seen live, read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.browser import Page, browser_page
from tests.support.emulators import running_emulator
from tests.support.replicas import write_module
from tests.support.safetensors_files import safetensors_bytes

WEIGHTS_BYTES = 6 << 20
LINK = "20Mbps"
"""The weights take two and a half seconds: long enough to be seen on their way, whatever else the machine does."""
WATCH = """
window.seen = [];
new MutationObserver(() => window.seen.push(document.getElementById("replicas").innerText)).observe(
  document.getElementById("replicas"), {childList: true, subtree: true, characterData: true});
"""
"""Keeps whatever was shown of the replicas, however short."""
MARKUP = "<img src=x onerror=alert(1)>"


@pytest.fixture
def page() -> Iterator[Page]:
    with browser_page() as page:
        page.look()
        yield page


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    model = tmp_path / "tiny"
    model.mkdir()
    tensors = {"a": ("U8", (WEIGHTS_BYTES,), os.urandom(WEIGHTS_BYTES))}
    (model / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    write_module(
        tmp_path,
        "my_handler",
        """
        from adapter import coldstart_handler

        def load(weights):
            return int(weights["a"].numel())

        @coldstart_handler(weights="s3://models/tiny/", load=load)
        def sized(model, event):
            if event.get("fail"):
                raise ValueError("<b>as asked</b>")
            return {"bytes": model, "said": event.get("say")}

        sized.warm_up({})
        """,
    )
    arguments = ("--weights", str(model), "--link", LINK, "--max-replicas", "2")
    with running_emulator("my_handler:sized", tmp_path, *arguments) as emulator:
        yield emulator.url


def invoke(page: Page, event: str) -> None:
    page.evaluate(f"document.getElementById('event').value = {event!r}")
    page.click("#send")


def look_at(page: Page, directory: Path, name: str) -> None:
    """Nothing is wider than the screen, on a phone and in the dark; pictures are kept for people to look at."""
    for width, dark in ((1280, False), (1280, True), (375, False), (375, True)):
        page.look(width=width, dark=dark)
        page.screenshot(directory / f"{name}-{width}-{'dark' if dark else 'light'}.png")
        assert page.overflow() == 0, (name, width)
    page.look()


def test_a_cold_start_is_clicked_and_seen_live_and_read(page: Page, address: str, tmp_path: Path) -> None:
    """G4."""
    page.open(address)
    page.until("document.getElementById('connection').className === 'live'")
    assert page.text("#replicas") == "Scaled to zero."

    page.evaluate(WATCH)
    invoke(page, f'{{"say": "{MARKUP}"}}')
    page.until("document.querySelector('.replica .chip.starting')")
    page.until("document.querySelector('.steps .now')")
    look_at(page, tmp_path, "starting")

    page.until("document.querySelector('#result .good')", within_s=60)
    seen = "\n".join(page.evaluate("window.seen"))
    assert "starting" in seen
    assert "importing" in seen
    assert " MB of 6.29 MB of the weights" in seen
    assert page.text("#result summary").startswith("200 · cold · r1 · ")
    assert MARKUP in page.text("#result pre")
    assert page.evaluate("document.querySelectorAll('#result img').length") == 0
    page.until("document.querySelector('#starts [data-start=\"1\"]')")
    page.until(
        "document.querySelector('#waterfall h2')?.innerText.startsWith('Start 1: cold start of r1, ready after')"
    )
    waterfall = page.text("#waterfall")
    for stage in ("import.framework", "storage.list", "model.load", "warm_up[0]", "What it waited for"):
        assert stage in waterfall
    assert page.evaluate("document.querySelectorAll('#waterfall li.row.critical rect.full').length") > 3
    page.until("document.querySelector('[data-figure=\"cold, median\"] b').innerText !== '–'")

    invoke(page, '{"say": "again"}')
    page.until("document.querySelector('#result summary').innerText.startsWith('200 · warm')")
    invoke(page, '{"fail": true}')
    page.until("document.querySelector('#result .bad')")
    assert "<b>as asked</b>" in page.text("#result .bad pre")
    invoke(page, "{nonsense")
    page.until("document.querySelector('#result summary').innerText === 'not sent'")
    page.until("document.querySelectorAll('.invocations tbody tr').length === 3")
    look_at(page, tmp_path, "served")

    assert page.strangers() == []
    assert [said for said in page.complaints if "500" not in said] == []


def test_a_worker_is_killed_and_everything_scaled_to_zero_by_buttons(page: Page, address: str, tmp_path: Path) -> None:
    """G4."""
    page.open(address)
    page.until("document.getElementById('connection').className === 'live'")
    invoke(page, "{}")
    page.until("document.querySelector('#result .good')", within_s=60)
    page.until("document.querySelector('.replica .chip.idle')")
    page.click("#kill-worker-r1")
    page.until("document.querySelector('#starts')?.innerText.includes('recovery of r1')", within_s=60)
    page.until("document.querySelector('#waterfall h2').innerText.startsWith('Start 2: recovery of r1, ready after')")
    assert "compare with start 1" in page.text("#waterfall")

    page.click('#starts [data-start="1"]')
    page.until("document.querySelector('#waterfall h2').innerText.startsWith('Start 1: cold start of r1')")
    assert page.evaluate("document.querySelector('#starts [aria-current]').dataset.start") == "1"

    page.click("#scale-to-zero")
    page.until("document.querySelector('#replicas .nothing')?.innerText === 'Scaled to zero.'")
    page.until("document.querySelector('#replicas details')")
    page.click("#replicas summary")
    assert "r1 scaled to zero" in page.text("#replicas details")
    look_at(page, tmp_path, "zero")

    page.open(f"{address}/compare/1/2")
    assert "2 starts on one scale" in page.text("h1")
    look_at(page, tmp_path, "compared")
    assert page.strangers() == []
    assert page.complaints == []
