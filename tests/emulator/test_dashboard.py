"""The emulator's page without a browser: what the routes answer, and that whatever users name stays text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from adapter.emulator import panels
from adapter.emulator.app import emulator_app
from adapter.emulator.dashboard import assets, routes
from adapter.emulator.emulator import Emulator
from adapter.emulator.options import EmulatorOptions, plan_weights
from adapter.errors import HandlerFailed
from adapter.init_report import InitReport, init_report
from adapter.timeline import Span
from tests.support.html_document import Document

MS = 1_000_000
NASTY = "<script>alert('x')</script>\"&'</title>"


def report(handler: str = "a:first") -> InitReport:
    return init_report(
        [
            Span("import.framework", "worker", "cpu", 0, 400 * MS, 1),
            Span("replica.ready", "front", "process", 1000 * MS, 1000 * MS, 2),
        ],
        handler=handler,
    )


@pytest.fixture
def emulator() -> Emulator:
    return Emulator(EmulatorOptions(target="handlers.echo:echo"))


@pytest.fixture
def client(emulator: Emulator) -> Iterator[TestClient]:
    app = emulator_app(emulator, more=routes(emulator))
    with TestClient(app, base_url="http://127.0.0.1:1") as client:
        yield client


def test_the_page_is_whole_without_its_script(client: TestClient, emulator: Emulator) -> None:
    empty = Document(client.get("/").text).text
    assert "handlers.echo:echo" in empty
    assert "Scaled to zero." in empty
    assert "No start yet" in empty
    emulator.reports.keep("r1", report())
    text = Document(client.get("/").text).text
    assert "Start 1: cold start of r1, ready after 1.000 s" in text
    assert "import.framework" in text


def test_the_page_may_load_and_ask_nobody_else(client: TestClient) -> None:
    """G4."""
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'")
    assert "unsafe" not in policy
    page = Document(answer.text)
    loaded = [value for _, name, value in page.attributes if name in ("src", "href", "action")]
    assert [value for value in loaded if not value.startswith(("/", "data:"))] == []
    assert not [name for _, name, _ in page.attributes if name == "style" or name.startswith("on")]
    assert re.findall(r"https?://", "".join(assets().values())) == []


def test_parts_are_given_by_name(client: TestClient) -> None:
    parts = client.get("/panels?only=summary,starts,unknown").json()
    assert sorted(parts) == ["starts", "summary"]
    assert client.get("/panels").json() == {}


def test_a_start_can_be_chosen_by_its_address(client: TestClient, emulator: Emulator) -> None:
    emulator.reports.keep("r1", report())
    emulator.reports.keep("r2", report())
    assert "Start 2: cold start of r2" in client.get("/").text
    chosen = client.get("/?start=1").text
    assert "Start 1: cold start of r1" in chosen
    assert re.search(r'data-start="1" aria-current="true"', chosen)
    for wrong in ("9", "x", "-1", "²", ""):
        assert "Start 2" in client.get("/", params={"start": wrong}).text


def test_every_start_has_a_page_a_trace_and_a_waterfall(client: TestClient, emulator: Emulator) -> None:
    emulator.reports.keep("r1", report())
    assert client.get("/reports/1.html").text.startswith("<!doctype html>")
    trace = client.get("/reports/1.trace.json")
    assert trace.json()["traceEvents"]
    assert "start-1.trace.json" in trace.headers["content-disposition"]
    assert "Waterfall" in client.get("/reports/1/section").text
    assert client.get("/reports/1").json()["schema_version"] == 1
    for path in ("/reports/2.html", "/reports/2.trace.json", "/reports/2/section", "/compare/1/2"):
        assert client.get(path).status_code == 404


def test_two_starts_can_be_compared(client: TestClient, emulator: Emulator) -> None:
    emulator.reports.keep("r1", report())
    emulator.reports.keep("r2", report())
    assert "compare with start 1" in client.get("/").text
    text = Document(client.get("/compare/1/2").text).text
    assert "2 starts on one scale" in text
    assert "Start 1, replica r1" in text


@pytest.mark.parametrize("name", ["dashboard.js", "dashboard.css", "report.css"])
def test_assets_are_served_with_their_type(client: TestClient, name: str) -> None:
    answer = client.get(f"/assets/{name}")
    assert answer.headers["content-type"].startswith(("text/css", "text/javascript"))
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["other.js", "..%2fdashboard.py", "%2e%2e/dashboard.py", "/etc/passwd"])
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"/assets/{name}").status_code == 404


def replica(**fields: Any) -> dict[str, Any]:
    return {
        "id": "r1",
        "pid": 42,
        "state": "starting",
        "phase": "loading",
        "progress": None,
        "since": time.time() - 7,
        "started": time.time() - 7,
        "running": 0,
        "served": 0,
        "concurrency": 1,
        "stop_reason": None,
        "exit_code": None,
        **fields,
    }


def snapshot(**fields: Any) -> dict[str, Any]:
    limits = {"max_replicas": 3, "idle_s": 60.0, "init_limit_s": 600.0}
    return {
        "target": "a:b",
        "weights": None,
        "limits": limits,
        "replicas": [],
        "queue": {"waiting": 0, "running": 0},
        "invocations": [],
        "reports": [],
        "selected": None,
        **fields,
    }


def invocation(**fields: Any) -> dict[str, Any]:
    return {
        "id": "i1",
        "arrived": 0.0,
        "event_bytes": 2,
        "state": "done",
        "replica": "r1",
        "queued_s": 0.0001,
        "seconds": 0.25,
        "status": 200,
        "start": "warm",
        "error": None,
        **fields,
    }


def test_a_start_shows_its_phase_and_how_far_the_weights_are() -> None:
    shown = replica(progress={"bytes": 45_000_000, "of": 90_000_000})
    page = panels.replicas(snapshot(replicas=[shown]))
    assert '<li class="done">importing</li><li class="now" aria-current="step">loading</li><li>warming</li>' in page
    assert '<progress value="45000000" max="90000000"' in page
    assert "45 MB of 90 MB of the weights" in page
    assert Document(page).text.startswith("r1 starting7 s")


def test_a_replica_that_serves_shows_no_phases_and_one_that_recovers_does() -> None:
    assert "steps" not in panels.replicas(snapshot(replicas=[replica(state="idle", phase="ready")]))
    assert "steps" in panels.replicas(snapshot(replicas=[replica(state="busy", phase="recovering")]))


def test_ended_replicas_say_why_and_how() -> None:
    gone = [
        replica(state="gone", stop_reason="idle", exit_code=0, served=3),
        replica(id="r2", state="gone", exit_code=-9),
    ]
    text = Document(panels.replicas(snapshot(replicas=gone))).text
    assert "Scaled to zero." in text
    assert "r1 idle for too long, exit code 0, 3 served" in text
    assert "r2 by itself, signal 9, 0 served" in text


def test_the_summary_tells_cold_from_warm() -> None:
    done = [invocation(seconds=s) for s in (0.1, 0.2, 0.3)]
    done += [invocation(start="cold", seconds=4.0), invocation(start="cold", seconds=0.001, error="handler.failed")]
    text = Document(panels.summary(snapshot(invocations=done, replicas=[replica(), replica(state="gone")]))).text
    assert "replicas1 of 3" in text
    assert "cold, median4.00 s" in text
    assert "warm, median200 ms" in text


def test_invocations_say_what_became_of_them() -> None:
    shown = [
        invocation(),
        invocation(state="waiting", queued_s=None, seconds=None, status=None, start=None, replica=None),
        invocation(status=500, error="handler.failed"),
    ]
    text = Document(panels.invocations(snapshot(invocations=shown))).text
    assert "warmr10.1 ms250 ms200" in text
    assert "––––waiting" in text
    assert "handler.failed" in text


def test_only_the_newest_invocations_are_shown() -> None:
    page = panels.invocations(snapshot(invocations=[invocation(id=f"i{number}") for number in range(130)]))
    assert page.count("<tr data-key") == 100
    assert "and 30 more" in page


def test_whatever_users_name_is_text() -> None:
    """A handler, a replica's last words, a report: none of it may become part of the page."""
    nasty = init_report(
        [Span(NASTY, "worker", "cpu", 0, 9, 1, {NASTY: NASTY})], handler=NASTY, error=HandlerFailed(NASTY)
    )
    shown = snapshot(
        target=NASTY,
        weights=NASTY,
        link=NASTY,
        replicas=[replica(phase=NASTY, stop_reason=NASTY), replica(state="gone", stop_reason=NASTY)],
        invocations=[invocation(replica=NASTY, start=NASTY, error=NASTY), invocation(id=NASTY)],
        reports=[
            {
                "number": 1,
                "replica": NASTY,
                "kind": "cold",
                "outcome": "failed",
                "total_s": 1.0,
                "layers": {"infrastructure": 1.0, "framework": 0.0, "model": 0.0},
                "store_bytes": 0,
                "cache_bytes": 0,
                "error": NASTY,
            }
        ],
    )
    parts = {
        "summary": panels.summary(shown),
        "replicas": panels.replicas(shown),
        "starts": panels.starts(shown),
        "invocations": panels.invocations(shown),
        "waterfall": panels.waterfall_head(shown["reports"][0], 1),
    }
    page = Document(panels.page(shown, parts))
    assert page.tags.count("script") == 1
    assert page.of("src") == ["/assets/dashboard.js"]
    assert page.text.count(NASTY) >= 10
    emulator = Emulator(EmulatorOptions(target="a:b"))
    emulator.reports.keep("r1", nasty)
    with TestClient(emulator_app(emulator, more=routes(emulator)), base_url="http://127.0.0.1:1") as client:
        assert Document(client.get("/").text).tags.count("script") == 1
        assert Document(client.get("/reports/1.html").text).tags.count("script") == 0


@pytest.mark.parametrize("given", ["s3://KEY:SEC/RET@bucket/m/", "https://me:SECRET@host/m?sig=SECRET"])
def test_the_address_of_weights_is_shown_without_what_is_secret_in_it(given: str) -> None:
    emulator = Emulator(EmulatorOptions(target="handlers.echo:echo", weights=plan_weights(given)))
    assert "SEC" not in str(emulator.snapshot())
    with TestClient(emulator_app(emulator, more=routes(emulator)), base_url="http://127.0.0.1:1") as client:
        emulator.hub.close()
        for path in ("/", "/events", "/panels?only=summary,replicas,starts,invocations"):
            assert "SEC" not in client.get(path).text
        assert "bucket/m/" in client.get("/").text or "host/m" in client.get("/").text
