"""Where a start's time went: all roles on one clock, the critical path, and three layers that add up to the whole.

The account follows the worker, since a replica is ready when its worker is. Every instant from the start to readiness
belongs to one layer:

| layer | the worker is in |
|---|---|
| framework | `import.*`: the framework's import and the handler's |
| model | `weights.*`, `model.*`, `device.*`, `warm_up*` |
| infrastructure | anything else: not started yet, between stages, ready but not announced |

The critical path names what the start waited for at each instant: the worker's innermost stage; where that is a wait
for the stream, what the fetcher was doing; where the worker has no stage, what the supervisor or the front was doing.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any, Literal, get_args

from adapter.errors import AdapterError
from adapter.timeline import Lane, Span, Value

SCHEMA_VERSION = 1
"""Raised when a field changes its meaning or goes; new fields do not raise it."""

Layer = Literal["infrastructure", "framework", "model"]
LAYERS: tuple[Layer, ...] = get_args(Layer)
Kind = Literal["cold", "recovery"]
Outcome = Literal["ready", "starting", "failed"]
READY_MARK = "replica.ready"


@dataclass(frozen=True, slots=True)
class Share:
    """A layer's part of the whole."""

    seconds: float
    percent: float


@dataclass(frozen=True, slots=True)
class Transfer:
    """How the weights came, as the fetcher counted it."""

    store_bytes: int = 0
    cache_bytes: int = 0
    requests: int = 0
    seconds: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        """Speed from the store; 0 where nothing was read."""
        return self.store_bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Stage:
    """One span of one role; seconds since the start. A mark where start and stop are equal."""

    name: str
    role: str
    lane: Lane
    start_s: float
    stop_s: float
    critical: bool
    """Whether the start waited for it at some instant."""
    fields: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Step:
    """A stretch of the critical path; seconds since the start. Name and role are empty where no stage is known."""

    name: str
    role: str
    start_s: float
    stop_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InitReport:
    """One start of a replica, from its process's exec (a recovery: from the loss of its worker) to readiness."""

    kind: Kind
    outcome: Outcome
    handler: str | None
    total_s: float
    """To readiness; to the last thing recorded where it was not reached."""
    layers: Mapping[Layer, Share]
    transfer: Transfer
    stages: tuple[Stage, ...]
    """In the order of their starts."""
    critical_path: tuple[Step, ...]
    """Without gaps from 0 to `total_s`."""
    error: Mapping[str, Any] | None = None
    """What ended the start, as `AdapterError.to_dict`."""
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> str:
        """The report as one line of JSON; times in seconds, to the microsecond."""
        value = asdict(self)
        value["transfer"]["bytes_per_s"] = self.transfer.bytes_per_s
        return json.dumps(_rounded(value), separators=(",", ":"))

    @staticmethod
    def from_json(text: str | bytes) -> InitReport:
        """The report that `to_json` wrote; fields that this version does not know are left out.

        Raises:
            ValueError: The text is no such report, or of another schema version.
        """
        try:
            value = _Read(json.loads(text, parse_constant=_no_number))
            if type(version := value.found("schema_version")) is not int or version != SCHEMA_VERSION:
                raise ValueError(f"an init report of schema version {version!r}; {SCHEMA_VERSION} is known")
            layers, transfer, error = value.part("layers"), value.part("transfer"), value.found("error")
            return InitReport(
                kind=value.one_of("kind", get_args(Kind)),
                outcome=value.one_of("outcome", get_args(Outcome)),
                handler=value.text("handler") if value.found("handler") is not None else None,
                total_s=value.number("total_s"),
                layers={layer: _share(layers.part(layer)) for layer in LAYERS},
                transfer=Transfer(
                    store_bytes=transfer.count("store_bytes"),
                    cache_bytes=transfer.count("cache_bytes"),
                    requests=transfer.count("requests"),
                    seconds=transfer.number("seconds"),
                ),
                stages=tuple(_read_stage(stage) for stage in value.parts("stages")),
                critical_path=tuple(_read_step(step) for step in value.parts("critical_path")),
                error=_read_error(value.part("error")) if error is not None else None,
            )
        except RecursionError:
            raise ValueError("not an init report: nested too deeply") from None


def init_report(
    spans: Iterable[Span],
    *,
    start_ns: int | None = None,
    handler: str | None = None,
    error: AdapterError | None = None,
) -> InitReport:
    """The report of one start out of what the roles recorded.

    Args:
        spans: Of all roles, any order; what lies outside the start is left out.
        start_ns: When the start began, in ns of CLOCK_MONOTONIC; without one, at the earliest span.
        handler: The handler's name; without one, the field `handler` of the span `import.handler`.
        error: What ended the start, if something did.
    """
    ordered = sorted(spans, key=lambda span: (span.start_ns, span.stop_ns))
    begin = start_ns if start_ns is not None else min((span.start_ns for span in ordered), default=0)
    ready = next((span for span in ordered if span.name == READY_MARK and span.start_ns >= begin), None)
    reached = ready is not None and error is None
    stop = ready.start_ns if ready and reached else max([begin, *(span.stop_ns for span in ordered)])
    inside = [span for span in ordered if span.start_ns <= stop and span.stop_ns >= begin]
    pieces, path = _account(inside, begin, stop)
    named = next((span.fields["handler"] for span in inside if "handler" in span.fields), None)
    was_ready = any(span.name == READY_MARK and span.start_ns < begin for span in ordered)
    critical = {id(piece.span) for piece in path if piece.span is not None}
    return InitReport(
        kind="recovery" if was_ready else "cold",
        outcome="ready" if reached else "starting" if error is None else "failed",
        handler=handler if handler is not None else (str(named) if named is not None else None),
        total_s=(stop - begin) / 1e9,
        layers=_layers(pieces, stop - begin),
        transfer=_transfer(inside),
        stages=tuple(_stage(span, begin, id(span) in critical) for span in inside),
        critical_path=tuple(_step(piece, begin) for piece in path),
        error=error.to_dict() if error is not None else None,
    )


# -- the account ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of time and the innermost span that covers it, if one does."""

    start_ns: int
    stop_ns: int
    span: Span | None


def _account(spans: Sequence[Span], begin: int, stop: int) -> tuple[list[_Piece], list[_Piece]]:
    """What the worker was in at each instant, and the critical path; both cover begin to stop without gaps."""
    workers = [span for span in spans if span.role == "worker"]
    # a worker that died during the start is lost time: the one that became ready is followed
    last = max(workers, key=lambda span: span.start_ns).pid if workers else None
    worker = _innermost([span for span in workers if span.pid == last], begin, stop)
    fetcher = _innermost([span for span in spans if span.role == "fetcher"], begin, stop)
    others = _innermost([span for span in spans if span.role not in ("worker", "fetcher")], begin, stop)
    path = _filled(worker, fetcher, lambda span: span is not None and _is_wait(span))
    return worker, _merged(_filled(path, others, lambda span: span is None))


def _innermost(spans: Iterable[Span], begin: int, stop: int) -> list[_Piece]:
    """Pieces from begin to stop, each with the span that began last among those that cover it."""
    lasting = [span for span in spans if span.stop_ns > span.start_ns]
    cuts = {begin, stop}
    for span in lasting:
        cuts.update(cut for cut in (span.start_ns, span.stop_ns) if begin < cut < stop)
    edges = sorted(cuts)
    waiting = sorted(lasting, key=lambda span: span.start_ns, reverse=True)
    active: list[Span] = []
    pieces = []
    for start, end in itertools.pairwise(edges):
        while waiting and waiting[-1].start_ns <= start:
            active.append(waiting.pop())
        active = [span for span in active if span.stop_ns > start]
        found = max(active, key=lambda span: (span.start_ns, -span.stop_ns), default=None)
        pieces.append(_Piece(start, end, found))
    return _merged(pieces)


def _filled(base: list[_Piece], fill: list[_Piece], wanted: Callable[[Span | None], bool]) -> list[_Piece]:
    """The base, with what `fill` has in the place of each wanted piece, as far as it has something."""
    result = []
    for piece in base:
        if not wanted(piece.span):
            result.append(piece)
            continue
        for other in fill:
            start, stop = max(piece.start_ns, other.start_ns), min(piece.stop_ns, other.stop_ns)
            if start < stop:
                result.append(_Piece(start, stop, other.span or piece.span))
    return result


def _merged(pieces: Iterable[_Piece]) -> list[_Piece]:
    result: list[_Piece] = []
    for piece in pieces:
        if result and result[-1].span is piece.span:
            result[-1] = _Piece(result[-1].start_ns, piece.stop_ns, piece.span)
        else:
            result.append(piece)
    return result


def _is_wait(span: Span) -> bool:
    return span.name == "weights.manifest" or span.name.endswith(".wait")


def layer_of(name: str) -> Layer:
    """The layer that a stage of the worker counts for."""
    if name.startswith("import."):
        return "framework"
    return "model" if name.startswith(("weights.", "model.", "device.", "warm_up")) else "infrastructure"


def _layers(pieces: Iterable[_Piece], total_ns: int) -> dict[Layer, Share]:
    spent: dict[Layer, int] = dict.fromkeys(LAYERS, 0)
    for piece in pieces:
        spent[layer_of(piece.span.name) if piece.span else "infrastructure"] += piece.stop_ns - piece.start_ns
    return {layer: Share(ns / 1e9, 100 * ns / total_ns if total_ns else 0.0) for layer, ns in spent.items()}


def _transfer(spans: Iterable[Span]) -> Transfer:
    streams = [span for span in spans if span.name == "weights.stream"]

    def total(field: str) -> int:
        values = (span.fields.get(field) for span in streams)
        return sum(int(value) for value in values if isinstance(value, (int, float)))

    return Transfer(
        store_bytes=total("bytes"),
        cache_bytes=total("from_cache_bytes"),
        requests=total("requests"),
        seconds=sum(span.seconds for span in streams),
    )


def _stage(span: Span, begin: int, critical: bool) -> Stage:
    start_s, stop_s = (span.start_ns - begin) / 1e9, (span.stop_ns - begin) / 1e9
    return Stage(span.name, span.role, span.lane, start_s, stop_s, critical, dict(span.fields))


def _step(piece: _Piece, begin: int) -> Step:
    name, role = (piece.span.name, piece.span.role) if piece.span else ("", "")
    return Step(name, role, (piece.start_ns - begin) / 1e9, (piece.stop_ns - begin) / 1e9)


# -- JSON -------------------------------------------------------------------------------------------------------------


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None  # JSON has no other numbers
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True, slots=True)
class _Read:
    """An object of a report from outside; each getter raises ValueError, with the place, where the schema is broken."""

    value: Any
    place: str = "it"

    def __post_init__(self) -> None:
        if not isinstance(self.value, dict):
            raise ValueError(f"not an init report: {self.place} is no object")

    def found(self, name: str) -> Any:
        if name not in self.value:
            raise ValueError(f"not an init report: {self.place} has no {name}")
        return self.value[name]

    def checked(self, name: str, right: Callable[[Any], bool], what: str) -> Any:
        if not right(value := self.found(name)):
            raise ValueError(f"not an init report: {self._at(name)} is no {what}: {str(value)[:80]!r}")
        return value

    def text(self, name: str) -> str:
        return str(self.checked(name, lambda value: isinstance(value, str), "text"))

    def flag(self, name: str) -> bool:
        return bool(self.checked(name, lambda value: isinstance(value, bool), "true or false"))

    def number(self, name: str, least: float = 0.0, most: float = sys.float_info.max) -> float:
        found: float = self.checked(name, lambda value: _is_number(value) and least <= value <= most, "such number")
        return found

    def count(self, name: str) -> int:
        return int(self.checked(name, lambda value: _is_number(value) and value >= 0 and value % 1 == 0, "count"))

    def one_of(self, name: str, choices: tuple[Any, ...]) -> Any:
        return self.checked(name, lambda value: isinstance(value, str) and value in choices, f"one of {choices}")

    def part(self, name: str) -> _Read:
        return _Read(self.found(name), self._at(name))

    def parts(self, name: str) -> list[_Read]:
        items = self.checked(name, lambda value: isinstance(value, list), "list")
        return [_Read(item, f"{self._at(name)}[{number}]") for number, item in enumerate(items)]

    def _at(self, name: str) -> str:
        return name if self.place == "it" else f"{self.place}.{name}"


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _no_number(text: str) -> Any:
    raise ValueError(f"not an init report: {text} is no number of JSON")


def _share(share: _Read) -> Share:
    return Share(share.number("seconds"), share.number("percent", most=100.001))


def _read_stage(stage: _Read) -> Stage:
    start_s, stop_s = (stage.number(name, -sys.float_info.max) for name in ("start_s", "stop_s"))
    fields = stage.part("fields")
    for name in fields.value:
        fields.checked(name, lambda value: isinstance(value, (str, bool, NoneType)) or _is_number(value), "plain value")
    lane = stage.one_of("lane", get_args(Lane))
    return Stage(stage.text("name"), stage.text("role"), lane, start_s, stop_s, stage.flag("critical"), fields.value)


def _read_step(step: _Read) -> Step:
    start_s, stop_s = (step.number(name, -sys.float_info.max) for name in ("start_s", "stop_s"))
    return Step(step.text("name"), step.text("role"), start_s, stop_s)


def _read_error(error: _Read) -> Mapping[str, Any]:
    for name in ("code", "type", "message"):
        error.text(name)
    error.flag("retryable")
    error.checked("exit_code", lambda value: _is_number(value) and value % 1 == 0, "whole number")
    if "fields" in error.value:
        error.part("fields")
    return dict(error.value)
