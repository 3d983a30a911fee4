"""Init reports as one HTML page that needs nothing else: no network, no script; light and dark, from 375 px on."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from pathlib import Path

from adapter.init_report import LAYERS, InitReport, Stage
from adapter.report import drawing
from adapter.report.drawing import Scale
from adapter.report.rows import Row, ending, layer_of_step, moved, role_order, rows, si, title, waits

ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E%3Cpath fill='%230072b2' "
    "d='M1 2h7v3H1z'/%3E%3Cpath fill='%23e69f00' d='M4 6.5h8v3H4z'/%3E%3Cpath fill='%23009e73' "
    "d='M9 11h6v3H9z'/%3E%3C/svg%3E"
)
"""Three bars; drawn from the page itself, so that a browser asks for none."""
_LONGEST_WAITS = 6
_NONE = "–"


@cache
def style() -> str:
    """The style sheet of a report."""
    return (Path(__file__).parent / "report.css").read_text(encoding="utf-8")


def html_page(reports: Sequence[InitReport], *, names: Sequence[str] = ()) -> str:
    """The starts as a page; several are drawn side by side on one scale and compared stage by stage.

    Args:
        reports: One start at least.
        names: What to call each start; without one it is numbered where there are several.

    Raises:
        ValueError: There is no report.
    """
    if not reports:
        raise ValueError("a page needs one report at least")
    called = _called(reports, names)
    heading = title(reports[0]) if len(reports) == 1 else f"{len(reports)} starts on one scale"
    sheet = style()
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    body = [f"<header><h1>{breakable(heading)}</h1>"]
    if len(reports) == 1:
        body.append(_verdict(reports[0]))
    body.append("</header>")
    body.append(f'<div class="starts{" several" if len(reports) > 1 else ""}">{sections(reports, names=called)}</div>')
    if len(reports) > 1:
        body.append(_comparison(reports, called))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f'<link rel="icon" href="{ICON}"><title>{escape(heading)} · coldstart</title>'
        f"<style>{sheet}</style></head>\n<body><main>{''.join(body)}</main></body></html>\n"
    )


def sections(reports: Sequence[InitReport], *, names: Sequence[str] = ()) -> str:
    """The starts alone, to be put into a page that has `style()`."""
    scale = Scale(max((report.total_s for report in reports), default=0.0))
    shown = _union(reports)
    return "".join(
        _section(report, names[number] if number < len(names) else "", shown, scale)
        for number, report in enumerate(reports)
    )


def _union(reports: Sequence[InitReport]) -> list[tuple[str, str]]:
    """Role and name of each row that one of the starts has, in the order in which they are shown."""
    first: dict[tuple[str, str], float] = {}
    for report in reports:
        for row in rows(report):
            first.setdefault((row.role, row.name), row.stages[0].start_s)
    return sorted(first, key=lambda key: (*role_order(key[0]), first[key]))


def _called(reports: Sequence[InitReport], names: Sequence[str]) -> list[str]:
    if len(reports) == 1 and not names:
        return [""]
    return [names[number] if number < len(names) else f"Start {number + 1}" for number in range(len(reports))]


# -- one start --------------------------------------------------------------------------------------------------------


def _section(report: InitReport, name: str, shown: Sequence[tuple[str, str]], scale: Scale) -> str:
    head = f"<h2>{escape(name)}</h2><p>{breakable(title(report))}</p>{_verdict(report)}" if name else ""
    error = ""
    if report.error is not None:
        said = f"<code>{escape(str(report.error.get('code')))}</code> {escape(str(report.error.get('message')))}"
        error = f'<p class="error" role="note">{said}</p>'
    weights = moved(report)
    told = f'<p class="weights"><b>Weights</b> {_kept(escape(weights))}</p>' if weights else ""
    # always the same six parts: side by side, each part of one start stands beside that of the other
    parts = (
        f"<div>{head}</div><div>{error}</div>",
        f'<div class="account">{_layers(report)}{_waits(report)}</div><div>{told}</div>',
        _waterfall(report, shown, scale),
        f"<details><summary>Every stage as a table</summary>{_table(report.stages)}</details>",
    )
    return f'<section class="start">{"".join(parts)}</section>'


def _verdict(report: InitReport) -> str:
    words, _, seconds = ending(report).rpartition("after ")
    return f'<p class="verdict {report.outcome}">{escape(words)}after <strong>{escape(seconds)}</strong></p>'


def _layers(report: InitReport) -> str:
    items = "".join(
        f'<li><span class="key {layer}"></span>{layer} <b>{report.layers[layer].seconds:.3f} s</b> '
        f"<span>{report.layers[layer].percent:.1f} %</span></li>"
        for layer in LAYERS
    )
    bar = drawing.shares((layer, report.layers[layer].percent) for layer in LAYERS)
    return f'<div class="layers"><h3>Where the time went</h3>{bar}<ul>{items}</ul></div>'


def _waits(report: InitReport) -> str:
    longest = waits(report.critical_path)[:_LONGEST_WAITS]
    if not longest:
        return ""
    items = []
    for name, role, seconds in longest:
        percent = 100 * seconds / report.total_s if report.total_s else 0.0
        called = f'<code>{escape(name)}</code> <span class="role">{escape(role)}</span>' if name else "between stages"
        items.append(
            f'<li><span class="key {layer_of_step(role, name)}"></span><span>{called}</span>'
            f"<b>{seconds:.3f} s</b><span>{percent:.0f} %</span></li>"
        )
    return f'<div class="waits"><h3>What it waited for, longest first</h3><ol>{"".join(items)}</ol></div>'


def _waterfall(report: InitReport, shown: Sequence[tuple[str, str]], scale: Scale) -> str:
    found = {(row.role, row.name): row for row in rows(report)}
    band = f'<span class="name">critical path</span><span class="figures"></span>{drawing.path(report, scale)}'
    figures = '<span class="figures"><span>s</span><span>on path</span></span>'
    lines = [
        f'<div class="row head"><span class="name">stage</span>{figures}{drawing.axis(scale)}</div>',
        f'<div class="row band">{band}</div>',
    ]
    role = ""
    for key in shown:
        if key[0] != role:
            lines += ["</ul>"] if role else []
            role = key[0]
            lines.append(f'<h4>{escape(role)}</h4><ul aria-label="{escape(role)}">')
        lines.append(_row(found.get(key), key[1], report, scale))
    lines += ["</ul>"] if role else []
    legend = (
        '<p class="legend"><span class="key full"></span>the start waited for it (critical path) '
        '<span class="key idle"></span>beside the path <span class="key mark"></span>a moment. '
        "Point at a row, or go there with the Tab key, for details.</p>"
    )
    return f'<div class="waterfall"><h3>Waterfall</h3>{"".join(lines)}{legend}</div>'


def _row(row: Row | None, name: str, report: InitReport, scale: Scale) -> str:
    if row is None:
        empty = f'<span class="figures"><span>{_NONE}</span><span></span></span>{drawing.bar(None, report, scale)}'
        return f'<li class="row absent"><code class="name">{escape(name)}</code>{empty}</li>'
    on_path = f"<b>{row.path_s:.3f}</b>" if row.path else ""
    seconds = f"{row.seconds:.3f}" if row.seconds else "mark"
    return (
        f'<li class="row{" critical" if row.path else ""}" tabindex="0">'
        f'<code class="name">{escape(row.label)}</code>'
        f'<span class="figures"><span>{seconds}</span><span>{on_path}</span></span>'
        f"{drawing.bar(row, report, scale)}{_tip(row)}</li>"
    )


_SHOWN_IN_TIP = 6


def _tip(row: Row) -> str:
    lines = []
    for stage in row.stages[:_SHOWN_IN_TIP]:
        when = _when(stage)
        fields = "".join(
            f"<dt>{escape(key)}</dt><dd>{escape(_told(key, value))}</dd>" for key, value in stage.fields.items()
        )
        lines.append(f"<p>{when}</p>" + (f"<dl>{fields}</dl>" if fields else ""))
    if len(row.stages) > _SHOWN_IN_TIP:
        lines.append(f"<p>and {len(row.stages) - _SHOWN_IN_TIP} more: see the table</p>")
    path = f", {row.path_s:.3f} s of it on the critical path" if row.path else ""
    total = f"{row.seconds:.3f} s{path}" if row.seconds else "a moment"
    return f'<div class="tip"><p><b>{escape(row.label)}</b> {escape(row.role)}: {total}</p>{"".join(lines)}</div>'


def _when(stage: Stage) -> str:
    if stage.stop_s <= stage.start_s:
        return f"at {stage.start_s:.3f} s"
    return f"{stage.start_s:.3f} → {stage.stop_s:.3f} s"


def _told(key: str, value: object) -> str:
    if key.endswith("bytes") and isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{si(value)}B"
    return str(value)


def _table(stages: Iterable[Stage]) -> str:
    lines = []
    for stage in stages:
        facts = ", ".join(f"{key} {_told(key, value)}" for key, value in stage.fields.items())
        lines.append(
            f'<tr><th scope="row"><code>{escape(stage.name)}</code></th><td>{escape(stage.role)}</td>'
            f"<td>{escape(stage.lane)}</td><td>{stage.start_s:.3f}</td><td>{stage.stop_s:.3f}</td>"
            f"<td>{stage.stop_s - stage.start_s:.3f}</td><td>{'yes' if stage.critical else ''}</td>"
            f"<td>{_kept(escape(facts))}</td></tr>"
        )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Every stage"><table class="stages"><thead><tr>'
        '<th scope="col">stage</th><th scope="col">role</th><th scope="col">lane</th><th scope="col">start, s</th>'
        '<th scope="col">stop, s</th><th scope="col">length, s</th><th scope="col">on critical path</th>'
        f'<th scope="col">facts</th></tr></thead><tbody>{"".join(lines)}</tbody></table></div>'
    )


def breakable(text: str) -> str:
    """The text as HTML; a long handler's name may go on in the next line after a dot or colon."""
    return re.sub(r"([.:/_])", r"\1<wbr>", escape(text))


def _kept(text: str) -> str:
    """A number and its unit stay in one line."""
    return re.sub(r"(?<=\d) (?=[kMGT]?(?:B|bit)\b)", "\N{NO-BREAK SPACE}", text)


# -- several starts ---------------------------------------------------------------------------------------------------


def _comparison(reports: Sequence[InitReport], names: Sequence[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    difference = '<th scope="col">difference</th>' if len(reports) == 2 else ""
    lines = "".join(_compared(label, values) for label, values in _quantities(reports))
    return (
        '<section class="comparison"><h2>Compared, in seconds</h2>'
        '<div class="scroll" tabindex="0" role="region" aria-label="The starts compared"><table><thead><tr>'
        f'<th scope="col">stage</th>{head}{difference}</tr></thead><tbody>{lines}</tbody></table></div></section>'
    )


def _quantities(reports: Sequence[InitReport]) -> Iterator[tuple[str, list[float | None]]]:
    """Label as HTML, and the seconds of each start."""
    yield "<b>to the end of the start</b>", [report.total_s for report in reports]
    for layer in LAYERS:
        label = f'<span class="key {layer}"></span>{layer}'
        yield label, [report.layers[layer].seconds for report in reports]
    found = [{(row.role, row.name): row for row in rows(report) if row.seconds} for report in reports]
    for role, name in _union(reports):
        if not any((role, name) in rows_of for rows_of in found):
            continue  # a mark has no length to compare
        values = [row.seconds if (row := rows_of.get((role, name))) else None for rows_of in found]
        yield f'<code>{escape(name)}</code> <span class="role">{escape(role)}</span>', values


def _compared(label: str, values: Sequence[float | None]) -> str:
    cells = "".join(f"<td>{_NONE if value is None else f'{value:.3f}'}</td>" for value in values)
    if len(values) == 2:
        more = round((values[1] or 0.0) - (values[0] or 0.0), 3)
        kind, sign = ("less", "−") if more < 0 else ("more", "+") if more > 0 else ("", "")
        cells += f'<td class="{kind}">{sign}{abs(more):.3f}</td>'
    return f'<tr><th scope="row">{label}</th>{cells}</tr>'
