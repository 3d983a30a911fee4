"""An init report as a text waterfall: one row a stage, grouped by role, the critical path marked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from adapter.init_report import LAYERS, InitReport, layer_of
from adapter.report.rows import Row, ending, harmless, moved, rows, title

Style = Literal["plain", "title", "dim", "infrastructure", "framework", "model", "error"]
_SECONDS_HEAD = "   seconds  on path  "


@dataclass(frozen=True, slots=True)
class Piece:
    """Text in one style; a line is a sequence of pieces. Nothing in it reaches a terminal as a command."""

    text: str
    style: Style = "plain"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", harmless(self.text))


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What bars are drawn with."""

    critical: str = "█"
    other: str = "░"
    mark: str = "│"


ASCII = Glyphs("#", "-", "|")
"""For terminals and files that cannot carry anything else."""


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
    found = rows(report)
    names = max((len(harmless(row.label)) + 2 for row in found), default=10)
    facts = min(32, max((len(harmless(row.facts)) for row in found), default=0))
    bars = max(20, width - names - facts - len(_SECONDS_HEAD) - 4)
    canvas = _Canvas(names, bars, report.total_s, glyphs or Glyphs())
    lines: list[tuple[Piece, ...]] = [(Piece(f"{title(report)}: {ending(report)}", "title"),)]
    if report.error:
        said = f"{report.error.get('code')}: {report.error.get('message')}"
        lines += [(Piece(line, "error"),) for line in said.split("\n")]
    lines += [(Piece(text),) for text in _shares(report)]
    lines += [(), (Piece(_ruler(canvas), "dim"),)]
    role = ""
    for row in found:
        if row.role != role:
            role = row.role
            lines.append((Piece(role, "title"),))
        lines.append(_line(row, canvas))
    explained = f"* seconds on the critical path ({canvas.glyphs.critical}): what the start waited for at each instant"
    return (*lines, (), (Piece(explained, "dim"),))


def plain(lines: Iterable[Iterable[Piece]]) -> str:
    """Lines of pieces as text without styles."""
    return "".join("".join(piece.text for piece in line).rstrip() + "\n" for line in lines)


def _shares(report: InitReport) -> list[str]:
    shares = "  ".join(
        f"{layer} {report.layers[layer].seconds:.3f} s ({report.layers[layer].percent:.1f} %)" for layer in LAYERS
    )
    weights = moved(report)
    return [shares, f"weights: {weights}"] if weights else [shares]


def _ruler(canvas: _Canvas) -> str:
    line = " " * canvas.names + _SECONDS_HEAD
    quarter = canvas.bars // 4
    for number in range(4):
        line += f"{canvas.total_s * number / 4:.2f}".ljust(quarter)
    return line + " " * (canvas.bars - 4 * quarter - 4) + f"{canvas.total_s:.2f} s"


def _line(row: Row, canvas: _Canvas) -> tuple[Piece, ...]:
    style: Style = layer_of(row.name) if row.role == "worker" else "plain"
    seconds = f"{row.seconds:10.3f}" if row.seconds else "      mark"
    critical = f"{row.path_s:8.3f}*" if row.path else " " * 9
    return (
        Piece(f"  {harmless(row.label)}".ljust(canvas.names) + seconds + critical + "  "),
        Piece(_bar(row, canvas), style),
        Piece(f"  {row.facts}", "dim"),
    )


def _bar(row: Row, canvas: _Canvas) -> str:
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
