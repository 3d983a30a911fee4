"""What every picture of a report shares: its rows, its words, its numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from adapter.init_report import InitReport, Layer, Stage, Step, layer_of

ROLES = ("supervisor", "fetcher", "front", "worker")
"""In the order in which they start; a role of another name comes after them."""
_DESCRIBED = ("bytes", "from_cache_bytes", "requests", "error")
"""Fields worth a place beside a bar, in this order."""


@dataclass(frozen=True, slots=True)
class Row:
    """All spans of one role that have one name."""

    name: str
    role: str
    stages: tuple[Stage, ...]
    path: tuple[Step, ...]
    """What of it lies on the critical path."""

    @property
    def label(self) -> str:
        """Its name, and how often where that is more than once."""
        return self.name + (f" x{len(self.stages)}" if len(self.stages) > 1 else "")

    @property
    def seconds(self) -> float:
        """How long all of them took together; 0 for marks."""
        return sum(stage.stop_s - stage.start_s for stage in self.stages)

    @property
    def path_s(self) -> float:
        """For how long the start waited for it."""
        return sum(step.stop_s - step.start_s for step in self.path)

    @property
    def facts(self) -> str:
        """The few of its fields that say most: bytes, requests, the error."""
        told = []
        for name in _DESCRIBED:
            values = [stage.fields[name] for stage in self.stages if stage.fields.get(name) not in (None, 0, "")]
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


def rows(report: InitReport) -> list[Row]:
    """The report's stages as rows: role by role, in the order of their starts."""
    found: dict[tuple[str, str], list[Stage]] = {}
    for stage in report.stages:
        found.setdefault((stage.role, stage.name), []).append(stage)
    path: dict[tuple[str, str], list[Step]] = {}
    for step in report.critical_path:
        path.setdefault((step.role, step.name), []).append(step)
    made = [Row(key[1], key[0], tuple(group), tuple(path.get(key, ()))) for key, group in found.items()]
    return sorted(made, key=lambda row: (*role_order(row.role), row.stages[0].start_s))


def role_order(role: str) -> tuple[int, str]:
    """What to sort roles by."""
    return (ROLES.index(role) if role in ROLES else len(ROLES), role)


def layer_of_step(role: str, name: str) -> Layer:
    """The layer that a stage counts for while the start waits for it.

    The start waits for the fetcher only where the worker waits for weights, and for the others only where the worker
    has no stage: so the steps of each layer add up to the layer.
    """
    if role == "fetcher":
        return "model"
    return layer_of(name) if role == "worker" else "infrastructure"


def waits(path: Iterable[Step]) -> list[tuple[str, str, float]]:
    """Name, role and seconds of what the start waited for, the longest first; without names where none is known."""
    total: dict[tuple[str, str], float] = {}
    for step in path:
        key = (step.name, step.role)
        total[key] = total.get(key, 0.0) + step.stop_s - step.start_s
    return sorted(((name, role, seconds) for (name, role), seconds in total.items()), key=lambda wait: -wait[2])


def title(report: InitReport) -> str:
    """What started: `cold start of handlers.echo:echo`."""
    what = "cold start" if report.kind == "cold" else "recovery"
    return what + (f" of {report.handler}" if report.handler else "")


def ending(report: InitReport) -> str:
    """How it ended, and when: `ready after 1.000 s`."""
    end = {"ready": "ready after", "starting": "not ready yet after", "failed": "failed after"}[report.outcome]
    return f"{end} {report.total_s:.3f} s"


def moved(report: InitReport) -> str:
    """How the weights came; empty for a start without any."""
    transfer = report.transfer
    if not transfer.store_bytes and not transfer.cache_bytes:
        return ""
    speed = f" at {si(transfer.bytes_per_s)}B/s ({si(transfer.bytes_per_s * 8)}bit/s)" if transfer.store_bytes else ""
    weights = f"{si(transfer.store_bytes)}B from the store in {transfer.requests} requests{speed}"
    return f"{weights}, {si(transfer.cache_bytes)}B from the cache"


def harmless(text: str) -> str:
    """A text from outside with nothing in it that a terminal would obey: such characters are written out."""
    if text.isprintable():
        return text
    return "".join(found if found.isprintable() else found.encode("unicode_escape").decode() for found in text)


def si(value: float) -> str:
    """A number with three digits and its decimal prefix: `90.9 M`."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor * 0.9995:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g} "
