"""The parts of the emulator's page as HTML, out of its snapshot: values in, text out."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from adapter.init_report import LAYERS
from adapter.lifecycle import Phase
from adapter.report.html import ICON, breakable
from adapter.report.rows import si

Snapshot = Mapping[str, Any]

NO_START = '<p class="nothing">No start yet. Invoke the handler: a replica is started for it.</p>'
_STEPS = (Phase.IMPORTING, Phase.LOADING, Phase.WARMING, Phase.READY)
_INVOCATIONS_SHOWN = 100
_NONE = "–"
_ENDINGS = {
    "idle": "idle for too long",
    "init_limit": "start took longer than allowed",
    "request_limit": "request took longer than allowed",
    "scale_to_zero": "scaled to zero",
    "shutdown": "emulator ended",
    "failed": "start failed",
}


def page(snapshot: Snapshot, shown: Mapping[str, str]) -> str:
    """The whole page.

    Args:
        snapshot: What is.
        shown: The parts by name: summary, replicas, starts, waterfall, invocations.
    """
    target = escape(snapshot["target"])
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark"><title>{target} · coldstart emulator</title>
<link rel="icon" href="{ICON}"><link rel="stylesheet" href="/assets/report.css">
<link rel="stylesheet" href="/assets/dashboard.css"><script src="/assets/dashboard.js" defer></script></head>
<body class="dashboard" data-target="{target}">
<header class="top"><div><h1><code>{breakable(snapshot["target"])}</code></h1>
<p class="about">{_about(snapshot)}</p></div>
<p id="connection" role="status" class="waiting">connecting</p></header>
<main>
<section id="summary" aria-label="Now">{shown["summary"]}</section>
<div class="column">
<section class="card invoke" aria-labelledby="invoke-title"><h2 id="invoke-title">Invoke</h2>{_INVOKE}</section>
<section class="card" aria-labelledby="replicas-title"><div class="line"><h2 id="replicas-title">Replicas</h2>
<button type="button" id="scale-to-zero" data-post="/scale-to-zero">Scale to zero</button></div>
<div id="replicas">{shown["replicas"]}</div></section>
</div><div class="column">
<section class="card" aria-labelledby="starts-title"><h2 id="starts-title">Starts</h2>
<div id="starts">{shown["starts"]}</div></section>
<section class="card" id="waterfall" aria-label="Waterfall of a start">{shown["waterfall"]}</section>
<section class="card" aria-labelledby="invocations-title"><h2 id="invocations-title">Invocations</h2>
<div id="invocations">{shown["invocations"]}</div></section>
</div>
</main></body></html>
"""


_INVOKE = """<form id="invoke">
<label for="event">Event, as JSON</label>
<textarea id="event" name="event" rows="4" spellcheck="false" autocomplete="off">{}</textarea>
<div class="line"><label class="callers">Callers at once
<input id="callers" type="number" min="1" max="4" value="1" inputmode="numeric"></label>
<button type="submit" id="send" class="main">Invoke</button></div></form>
<div id="result" aria-live="polite"></div>"""


def _about(snapshot: Snapshot) -> str:
    limits = snapshot["limits"]
    told = [
        f"up to {limits['max_replicas']} replica{'s' if limits['max_replicas'] != 1 else ''}",
        f"idle after {limits['idle_s']:g} s",
        f"start within {limits['init_limit_s']:g} s",
    ]
    if snapshot["weights"]:
        told.append(f"weights {escape(snapshot['weights'])}")
    if snapshot.get("link"):
        told.append(f"link {escape(snapshot['link'])}")
    if snapshot.get("first_byte_ms"):
        told.append(f"first byte after {snapshot['first_byte_ms']:g} ms")
    return " · ".join(told)


# -- what is now ------------------------------------------------------------------------------------------------------


def summary(snapshot: Snapshot) -> str:
    """The figures of this moment."""
    living = [replica for replica in snapshot["replicas"] if replica["state"] != "gone"]
    figures = [
        ("replicas", f"{len(living)}", f"of {snapshot['limits']['max_replicas']}"),
        ("waiting", str(snapshot["queue"]["waiting"]), ""),
        ("running", str(snapshot["queue"]["running"]), ""),
        ("starts", str(max((start["number"] for start in snapshot["reports"]), default=0)), ""),
        ("cold, median", *_median(snapshot["invocations"], "cold")),
        ("warm, median", *_median(snapshot["invocations"], "warm")),
    ]
    return "".join(
        f'<div data-figure="{name}"><span>{name}</span><b>{value}</b> <small>{unit}</small></div>'
        for name, value, unit in figures
    )


def _median(invocations: Sequence[Mapping[str, Any]], start: str) -> tuple[str, str]:
    seconds = [
        invocation["seconds"]
        for invocation in invocations
        if invocation["start"] == start and invocation["seconds"] is not None and not invocation["error"]
    ]
    return _length(statistics.median(seconds)) if seconds else (_NONE, "")


def replicas(snapshot: Snapshot) -> str:
    """Who lives, and who has ended."""
    living = [replica for replica in snapshot["replicas"] if replica["state"] != "gone"]
    ended = [replica for replica in snapshot["replicas"] if replica["state"] == "gone"]
    text = (
        f'<ul class="replicas">{"".join(_replica(replica) for replica in living)}</ul>'
        if living
        else '<p class="nothing">Scaled to zero.</p>'
    )
    if not ended:
        return text
    lines = "".join(_ended(replica) for replica in ended)
    return (
        f'{text}<details class="ended" data-key="ended"><summary>{len(ended)} ended</summary><ul>{lines}</ul></details>'
    )


def _replica(replica: Mapping[str, Any]) -> str:
    name, state = escape(replica["id"]), escape(replica["state"])
    why = f" <small>{escape(_why(replica))}</small>" if replica["stop_reason"] else ""
    seconds = f"{max(0.0, time.time() - replica['since']):.0f} s"
    head = (
        f'<div class="line"><h3>{name} <span class="chip {state}">{state}</span>{why}</h3>'
        f'<span class="time" data-since="{replica["since"]}">{seconds}</span></div>'
    )
    steps = _steps(replica) if state == "starting" or replica["phase"] == Phase.RECOVERING else ""
    buttons = "".join(
        f'<button type="button" id="kill-{role}-{name}" data-post="/replicas/{name}/kill?role={role}">{label}</button>'
        for role, label in (("worker", "Kill worker"), ("supervisor", "Kill replica"))
    )
    facts = f'pid {replica["pid"]} · {replica["served"]} served · <a href="/replicas/{name}/log">log</a>'
    foot = f'<p class="facts">{facts}</p><div class="buttons">{buttons}</div>'
    return f'<li class="replica" data-key="{name}">{head}{steps}<div class="line">{foot}</div></li>'


def _why(replica: Mapping[str, Any]) -> str:
    reason = replica["stop_reason"]
    return _ENDINGS.get(reason, str(reason)) if reason else "by itself"


def _steps(replica: Mapping[str, Any]) -> str:
    """The phases of a start, and how far the weights are."""
    phases = [str(step) for step in _STEPS]
    at = phases.index(replica["phase"]) if replica["phase"] in phases else -1
    items = ""
    for number, phase in enumerate(phases):
        mark = ' class="now" aria-current="step"' if number == at else ' class="done"' if number < at else ""
        items += f"<li{mark}>{phase}</li>"
    text = f'<ol class="steps">{items}</ol>'
    progress = replica["progress"]
    if progress and progress.get("of"):
        here, of = progress["bytes"], progress["of"]
        text += (
            f'<div class="weights-here"><progress value="{here}" max="{of}" aria-label="weights"></progress>'
            f"<span>{si(here)}B of {si(of)}B of the weights</span></div>"
        )
    return text


def _ended(replica: Mapping[str, Any]) -> str:
    name, code = escape(replica["id"]), replica["exit_code"]
    how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
    ended = f'<span class="bad">{how}</span>' if code else how
    served = f"{replica['served']} served"
    return (
        f'<li data-key="{name}"><b>{name}</b> {escape(_why(replica))}, {ended}, {served} '
        f'<a href="/replicas/{name}/log">log</a></li>'
    )


# -- what happened ----------------------------------------------------------------------------------------------------


def starts(snapshot: Snapshot) -> str:
    """Every start, the newest first, its bar as long as it took."""
    found = snapshot["reports"]
    if not found:
        return '<p class="nothing">None yet.</p>'
    longest = max((start["total_s"] for start in found), default=0.0)
    lines = "".join(_start(start, longest, snapshot.get("selected")) for start in found)
    legend = "".join(f'<span><span class="key {layer}"></span>{layer}</span>' for layer in LAYERS)
    return f'<ol class="list">{lines}</ol><p class="legend">{legend}</p>'


def _start(start: Mapping[str, Any], longest: float, selected: int | None) -> str:
    number = start["number"]
    at, pieces = 0.0, []
    for layer in LAYERS:
        width = 100 * start["layers"][layer] / longest if longest else 0.0
        pieces.append(f'<rect class="{layer} full" x="{at:.2f}%" width="{width:.2f}%" height="100%"/>')
        at += width
    error = f' <span class="bad">{escape(start["error"])}</span>' if start["error"] else ""
    told = f"<b>{number}</b> {_kind(start)} of {escape(start['replica'])}{error} <small>{_came(start)}</small>"
    current = ' aria-current="true"' if number == selected else ""
    return (
        f'<li data-key="start-{number}"><a href="/?start={number}#waterfall" data-start="{number}"{current}>'
        f'<span class="line"><span>{told}</span><b>{start["total_s"]:.2f} s</b></span>'
        f'<svg class="total" aria-hidden="true">{"".join(pieces)}</svg></a></li>'
    )


def _kind(start: Mapping[str, Any]) -> str:
    return "recovery" if start["kind"] == "recovery" else "cold start"


def _came(start: Mapping[str, Any]) -> str:
    parts = [
        f"{si(start[field])}B from {where}"
        for field, where in (("store_bytes", "store"), ("cache_bytes", "cache"))
        if start[field]
    ]
    return ", ".join(parts)


def waterfall_head(start: Mapping[str, Any], before: int | None) -> str:
    """What stands above a start's waterfall.

    Args:
        start: Its summary.
        before: The number of the start before it, where there is one to compare with.
    """
    number = start["number"]
    links = [
        f'<a href="/reports/{number}.html">page</a>',
        f'<a href="/reports/{number}.trace.json" download>trace</a>',
        f'<a href="/reports/{number}">JSON</a>',
    ]
    if before is not None:
        links.insert(0, f'<a href="/compare/{before}/{number}">compare with start {before}</a>')
    end = {"ready": "ready after", "failed": "failed after"}.get(start["outcome"], "not ready after")
    title = f"Start {number}: {_kind(start)} of {escape(start['replica'])}, {end} {start['total_s']:.3f} s"
    return f'<div class="line"><h2>{title}</h2><p class="links">{" ".join(links)}</p></div>'


def invocations(snapshot: Snapshot) -> str:
    """Every invocation, the newest first."""
    found = snapshot["invocations"]
    if not found:
        return '<p class="nothing">None yet.</p>'
    lines = "".join(_invocation(invocation) for invocation in found[:_INVOCATIONS_SHOWN])
    more = f"<p>and {len(found) - _INVOCATIONS_SHOWN} more</p>" if len(found) > _INVOCATIONS_SHOWN else ""
    columns = ("", "at", "met", "replica", "waited", "took", "ended with")
    head = "".join(f'<th scope="col">{column}</th>' for column in columns)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Invocations"><table class="invocations">'
        f"<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>{more}"
    )


def _invocation(invocation: Mapping[str, Any]) -> str:
    state, error = invocation["state"], invocation["error"]
    if state != "done":
        end = f'<span class="chip {state}">{state}</span>'
    elif error:
        end = f'<span class="bad">{escape(error)}</span>'
    else:
        end = str(invocation["status"])
    start = (
        f'<span class="chip {escape(invocation["start"])}">{escape(invocation["start"])}</span>'
        if invocation["start"]
        else _NONE
    )
    waited, took = (
        _NONE if seconds is None else " ".join(_length(seconds))
        for seconds in (invocation["queued_s"], invocation["seconds"])
    )
    at = time.strftime("%H:%M:%S", time.localtime(invocation["arrived"]))
    name = escape(invocation["id"])
    return (
        f'<tr data-key="{name}"><th scope="row">{name}</th><td>{at}</td><td>{start}</td>'
        f"<td>{escape(invocation['replica'] or _NONE)}</td><td>{waited}</td><td>{took}</td><td>{end}</td></tr>"
    )


def _length(seconds: float) -> tuple[str, str]:
    """A length of time as people read it, and its unit."""
    if seconds >= 0.9995:
        return (f"{seconds:.2f}", "s")
    milliseconds = seconds * 1000
    return (f"{milliseconds:.0f}" if milliseconds >= 9.95 else f"{milliseconds:.1f}", "ms")
