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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
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
            value = json.loads(text)
            version = value["schema_version"]
            if version != SCHEMA_VERSION:
                raise ValueError(f"an init report of schema version {version}; {SCHEMA_VERSION} is known")
            return InitReport(
                **{name: value[name] for name in ("kind", "outcome", "handler", "total_s", "error")},
                layers={layer: _known(Share, value["layers"][layer]) for layer in LAYERS},
                transfer=_known(Transfer, value["transfer"]),
                stages=tuple(_known(Stage, stage) for stage in value["stages"]),
                critical_path=tuple(_known(Step, step) for step in value["critical_path"]),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not an init report: {type(error).__name__}: {error}") from None


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
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _known(kind: type[Any], value: Mapping[str, Any]) -> Any:
    return kind(**{name: value[name] for name in kind.__dataclass_fields__ if name in value})
