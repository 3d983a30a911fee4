"""The emulator as a page: what lives, waits and happened, rendered here and kept fresh by a small script.

| route | answer |
|---|---|
| GET / | the page, whole without the script; with `?start=3` that start is shown |
| GET /panels?only=replicas,summary | those parts of it as JSON, HTML by name; the script asks when an event says so |
| GET /reports/{n}.html, /reports/{n}.trace.json | a start as a page, and as a trace for Perfetto |
| GET /reports/{n}/section | its waterfall, to be put into the page |
| GET /compare/{n}/{m} | two starts side by side |
| GET /assets/… | style and script |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from adapter.emulator import panels
from adapter.emulator.emulator import Emulator
from adapter.emulator.reports import StoredReport
from adapter.report.html import html_page, sections, style
from adapter.report.trace import trace_json

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_TYPES = {".css": "text/css", ".js": "text/javascript"}

Panel = Callable[[Mapping[str, Any]], str]
_PANELS: Mapping[str, Panel] = {
    "summary": panels.summary,
    "replicas": panels.replicas,
    "starts": panels.starts,
    "invocations": panels.invocations,
}


def routes(emulator: Emulator) -> list[Route]:
    """The dashboard's routes."""
    dashboard = _Dashboard(emulator)
    return [
        Route("/", dashboard.page),
        Route("/panels", dashboard.panels),
        Route("/reports/{number}.html", dashboard.report_page),
        Route("/reports/{number}.trace.json", dashboard.trace),
        Route("/reports/{number}/section", dashboard.section),
        Route("/compare/{first}/{second}", dashboard.comparison),
        Route("/assets/{name}", dashboard.asset),
    ]


class _Dashboard:
    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    async def page(self, request: Request) -> Response:
        asked = request.query_params.get("start", "")
        stored = self._emulator.reports.named(asked) or next(reversed(list(self._emulator.reports)), None)
        shown = {
            **{name: render(self._snapshot(stored)) for name, render in _PANELS.items()},
            "waterfall": self._waterfall(stored),
        }
        text = panels.page(self._snapshot(stored), shown)
        return HTMLResponse(text, headers={**_HEADERS, "Content-Security-Policy": _POLICY})

    async def panels(self, request: Request) -> Response:
        asked = set(request.query_params.get("only", "").split(","))
        snapshot = self._snapshot(None)
        parts = {name: render(snapshot) for name, render in _PANELS.items() if name in asked}
        return JSONResponse(parts, headers=_HEADERS)

    async def report_page(self, request: Request) -> Response:
        stored = self._find(request, "number")
        return _missing() if stored is None else HTMLResponse(html_page([stored.report]), headers=_HEADERS)

    async def trace(self, request: Request) -> Response:
        stored = self._find(request, "number")
        if stored is None:
            return _missing()
        name = f'attachment; filename="start-{stored.number}.trace.json"'
        headers = {**_HEADERS, "Content-Disposition": name}
        return Response(trace_json([stored.report]), media_type="application/json", headers=headers)

    async def section(self, request: Request) -> Response:
        stored = self._find(request, "number")
        return _missing() if stored is None else HTMLResponse(self._waterfall(stored), headers=_HEADERS)

    async def comparison(self, request: Request) -> Response:
        found = [self._find(request, name) for name in ("first", "second")]
        both = [stored for stored in found if stored is not None]
        if len(both) < len(found):
            return _missing()
        names = [f"Start {stored.number}, replica {stored.replica}" for stored in both]
        return HTMLResponse(html_page([stored.report for stored in both], names=names), headers=_HEADERS)

    async def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        text = assets().get(name)
        if text is None:
            return _missing()
        return Response(text, media_type=_TYPES[Path(name).suffix], headers={**_HEADERS, "Cache-Control": "no-cache"})

    def _snapshot(self, selected: StoredReport | None) -> dict[str, Any]:
        options = self._emulator.options
        return {
            **self._emulator.snapshot(),
            "link": options.link,
            "first_byte_ms": options.first_byte_ms,
            "selected": selected.number if selected is not None else None,
        }

    def _waterfall(self, stored: StoredReport | None) -> str:
        if stored is None:
            return panels.NO_START
        before = self._emulator.reports.find(stored.number - 1)
        head = panels.waterfall_head(stored.summary(), before.number if before is not None else None)
        return head + sections([stored.report])

    def _find(self, request: Request, name: str) -> StoredReport | None:
        return self._emulator.reports.named(request.path_params[name])


@cache
def assets() -> Mapping[str, str]:
    """Style sheets and script by name."""
    own = {path.name: path.read_text(encoding="utf-8") for path in (Path(__file__).parent / "assets").iterdir()}
    return {**own, "report.css": style()}


def _missing() -> Response:
    error = {"code": "not_found", "message": "there is no such start or file", "retryable": False}
    return JSONResponse({"error": error}, 404)
