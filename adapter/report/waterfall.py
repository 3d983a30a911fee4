"""An init report as a text waterfall: one row a stage, grouped by role, the critical path marked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from adapter.init_report import LAYERS, InitReport, Stage, Step, layer_of

Style = Literal["plain", "title", "dim", "infrastructure", "framework", "model", "error"]
_ROLES = ("supervisor", "fetcher", "front", "worker")
"""In the order in which they start; a role of another name comes after them."""
_DESCRIBED = ("bytes", "from_cache_bytes", "requests", "error")
"""Fields worth a place beside the bar, in this order."""
_SECONDS_HEAD = "   seconds  on path  "


@dataclass(frozen=True, slots=True)
class Piece:
    """Text in one style; a line is a sequence of pieces."""

    text: str
    style: Style = "plain"


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What bars are drawn with."""

    critical: str = "█"
    other: str = "░"
    mark: str = "│"


ASCII = Glyphs("#", "-", "|")
"""For terminals and files that cannot carry anything else."""


@dataclass(frozen=True, slots=True)
class _Row:
    """All spans of one role that have one name."""

    name: str
    role: str
    stages: tuple[Stage, ...]
    path: tuple[Step, ...]
    """What of it lies on the critical path."""

    @property
    def seconds(self) -> float:
        return sum(stage.stop_s - stage.start_s for stage in self.stages)

    @property
    def path_s(self) -> float:
        return sum(step.stop_s - step.start_s for step in self.path)


@dataclass(frozen=True, slots=True)
class _Canvas:
    """How wide the columns are, what they span, and what is drawn."""

    names: int
    bars: int
    total_s: float
    glyphs: Glyphs


def waterfall(report: InitReport, *, width: int = 100, glyphs: Glyphs | None = None) -> tuple[tuple[Piece, ...], ...]:
    """The report as lines of styled pieces.

    Args:
        report: What to show.
        width: Columns that a line may take; the bars have 20 at least.
        glyphs: What to draw with.
    """
    rows = _rows(report)
    names = max((len(_label(row)) for row in rows), default=10)
    facts = min(32, max((len(_facts(row)) for row in rows), default=0))
    bars = max(20, width - names - facts - len(_SECONDS_HEAD) - 4)
    canvas = _Canvas(names, bars, report.total_s, glyphs or Glyphs())
    lines: list[tuple[Piece, ...]] = [(Piece(_headline(report), "title"),)]
    if report.error:
        lines.append((Piece(f"{report.error.get('code')}: {report.error.get('message')}", "error"),))
    lines += [(Piece(text),) for text in _shares(report)]
    lines += [(), (Piece(_ruler(canvas), "dim"),)]
    role = ""
    for row in rows:
        if row.role != role:
            role = row.role
            lines.append((Piece(role, "title"),))
        lines.append(_line(row, canvas))
    explained = f"* seconds on the critical path ({canvas.glyphs.critical}): what the start waited for at each instant"
    return (*lines, (), (Piece(explained, "dim"),))


def plain(lines: Iterable[Iterable[Piece]]) -> str:
    """Lines of pieces as text without styles."""
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def _headline(report: InitReport) -> str:
    what = "cold start" if report.kind == "cold" else "recovery"
    of = f" of {report.handler}" if report.handler else ""
    end = {"ready": "ready after", "starting": "not ready yet after", "failed": "failed after"}[report.outcome]
    return f"{what}{of}: {end} {report.total_s:.3f} s"


def _shares(report: InitReport) -> list[str]:
    shares = "  ".join(
        f"{layer} {report.layers[layer].seconds:.3f} s ({report.layers[layer].percent:.1f} %)" for layer in LAYERS
    )
    moved = report.transfer
    if not moved.store_bytes and not moved.cache_bytes:
        return [shares]
    speed = f" at {si(moved.bytes_per_s)}B/s ({si(moved.bytes_per_s * 8)}bit/s)" if moved.store_bytes else ""
    weights = f"weights: {si(moved.store_bytes)}B from the store in {moved.requests} requests{speed}"
    return [shares, f"{weights}, {si(moved.cache_bytes)}B from the cache"]


def si(value: float) -> str:
    """A number with three digits and its decimal prefix: `90.9 M`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "


def _rows(report: InitReport) -> list[_Row]:
    found: dict[tuple[str, str], list[Stage]] = {}
    for stage in report.stages:
        found.setdefault((stage.role, stage.name), []).append(stage)
    path: dict[tuple[str, str], list[Step]] = {}
    for step in report.critical_path:
        path.setdefault((step.role, step.name), []).append(step)
    rows = [_Row(key[1], key[0], tuple(group), tuple(path.get(key, ()))) for key, group in found.items()]
    order = {role: number for number, role in enumerate(_ROLES)}
    return sorted(rows, key=lambda row: (order.get(row.role, len(order)), row.role, row.stages[0].start_s))


def _label(row: _Row) -> str:
    return f"  {row.name}" + (f" x{len(row.stages)}" if len(row.stages) > 1 else "")


def _ruler(canvas: _Canvas) -> str:
    line = " " * canvas.names + _SECONDS_HEAD
    quarter = canvas.bars // 4
    for number in range(4):
        line += f"{canvas.total_s * number / 4:.2f}".ljust(quarter)
    return line + " " * (canvas.bars - 4 * quarter - 4) + f"{canvas.total_s:.2f} s"


def _line(row: _Row, canvas: _Canvas) -> tuple[Piece, ...]:
    style: Style = layer_of(row.name) if row.role == "worker" else "plain"
    seconds = f"{row.seconds:10.3f}" if row.seconds else "      mark"
    critical = f"{row.path_s:8.3f}*" if row.path else " " * 9
    return (
        Piece(_label(row).ljust(canvas.names) + seconds + critical + "  "),
        Piece(_bar(row, canvas), style),
        Piece(f"  {_facts(row)}", "dim"),
    )


def _bar(row: _Row, canvas: _Canvas) -> str:
    cells = [" "] * canvas.bars
    scale = canvas.bars / canvas.total_s if canvas.total_s > 0 else 0.0

    def draw(start_s: float, stop_s: float, glyph: str) -> None:
        first = min(canvas.bars - 1, max(0, int(start_s * scale)))
        last = min(canvas.bars, max(first + 1, round(stop_s * scale)))
        cells[first:last] = glyph * (last - first)

    for stage in row.stages:
        draw(stage.start_s, stage.stop_s, canvas.glyphs.other if stage.stop_s > stage.start_s else canvas.glyphs.mark)
    for step in row.path:
        draw(step.start_s, step.stop_s, canvas.glyphs.critical)
    return "".join(cells)


def _facts(row: _Row) -> str:
    told = []
    for name in _DESCRIBED:
        values = [stage.fields[name] for stage in row.stages if stage.fields.get(name) not in (None, 0, "")]
        if not values:
            continue
        numbers = [value for value in values if isinstance(value, (int, float))]
        if name.endswith("bytes") and numbers:
            told.append(f"{si(sum(numbers))}B" + (" cached" if name == "from_cache_bytes" else ""))
        elif numbers:
            told.append(f"{si(sum(numbers)).strip()} {name}")
        else:
            told.append(f"{name} {', '.join(str(value) for value in values)}")
    return ", ".join(told)
