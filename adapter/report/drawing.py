"""Bars on a time axis as SVG: positions in percent, so that they need neither a script nor a style attribute."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

from adapter.init_report import InitReport
from adapter.report.rows import Row, layer_of_step

_LEAST_PERCENT = 0.35
"""What is shorter is drawn as long as this: some two pixels, so that it can be seen."""
_TICKS = 5
"""About as many; more would collide on a phone."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A time axis from 0 to `total_s`."""

    total_s: float

    def percent(self, seconds: float) -> float:
        """Where a moment lies, within the picture."""
        return min(100.0, max(0.0, 100 * seconds / self.total_s)) if self.total_s > 0 else 0.0

    def ticks(self) -> list[float]:
        """Round moments to label, 0 first."""
        if self.total_s <= 0:
            return [0.0]
        rough = self.total_s / _TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(step * power for step in (1, 2, 5, 10) if step * power >= rough * 0.999)
        return [number * step for number in range(math.floor(self.total_s / step + 1e-9) + 1)]


def axis(scale: Scale) -> str:
    """The labels of the axis."""
    texts = []
    for tick in scale.ticks():
        at = scale.percent(tick)
        anchor = "start" if at < 3 else "end" if at > 94 else "middle"
        texts.append(f'<text x="{at:.2f}%" y="12" text-anchor="{anchor}">{tick:g}{" s" if tick == 0 else ""}</text>')
    return f'<svg class="axis" aria-hidden="true">{"".join(texts)}</svg>'


def bar(row: Row | None, report: InitReport, scale: Scale) -> str:
    """One row's spans: faint where the start did not wait for them, full where it did."""
    drawn = _grid(scale, report)
    if row is not None:
        layer = layer_of_step(row.role, row.name)
        spans = [(stage.start_s, stage.stop_s) for stage in row.stages if stage.stop_s > stage.start_s]
        drawn += [_rectangle(span, scale, f"{layer} idle", 6, 10) for span in spans]
        drawn += [_rectangle((step.start_s, step.stop_s), scale, f"{layer} full", 4, 14) for step in row.path]
        marks = [scale.percent(stage.start_s) for stage in row.stages if stage.stop_s <= stage.start_s]
        drawn += [f'<line class="mark" x1="{at:.2f}%" x2="{at:.2f}%" y1="4" y2="18"/>' for at in marks]
    return f'<svg class="bar" aria-hidden="true">{"".join(drawn)}</svg>'


def path(report: InitReport, scale: Scale) -> str:
    """The critical path as one band, in the colours of the layers."""
    pieces = []
    for step in report.critical_path:
        layer = layer_of_step(step.role, step.name)
        told = escape(f"{step.name or 'no stage'} {step.stop_s - step.start_s:.3f} s")
        start, stop = scale.percent(step.start_s), scale.percent(step.stop_s)
        shape = f'x="{start:.3f}%" y="0" width="{stop - start:.3f}%" height="20"'
        pieces.append(f'<rect class="{layer} full" {shape}><title>{told}</title></rect>')
    return f'<svg class="path" aria-hidden="true">{"".join(pieces)}</svg>'


def shares(parts: Iterable[tuple[str, float]]) -> str:
    """Layers and their percents as one bar of the whole width."""
    at = 0.0
    pieces = []
    for layer, percent in parts:
        pieces.append(f'<rect class="{layer} full" x="{at:.3f}%" y="0" width="{percent:.3f}%" height="12"/>')
        at += percent
    return f'<svg class="shares" aria-hidden="true">{"".join(pieces)}</svg>'


def _grid(scale: Scale, report: InitReport) -> list[str]:
    lines = []
    for tick in scale.ticks():
        at = scale.percent(tick)
        lines.append(f'<line class="grid" x1="{at:.2f}%" x2="{at:.2f}%" y1="0" y2="100%"/>')
    end = scale.percent(report.total_s)
    return [*lines, f'<line class="end" x1="{end:.2f}%" x2="{end:.2f}%" y1="0" y2="100%"/>']


def _rectangle(span_s: tuple[float, float], scale: Scale, classes: str, top: int, height: int) -> str:
    start, stop = scale.percent(span_s[0]), scale.percent(span_s[1])
    width = max(_LEAST_PERCENT, stop - start)
    start = min(start, 100 - width)
    shape = f'x="{start:.3f}%" y="{top}" width="{width:.3f}%" height="{height}" rx="2"'
    return f'<rect class="{classes}" {shape}/>'
