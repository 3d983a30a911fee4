"""What the front counts: plain numbers on the way of an invocation, Prometheus families when somebody asks.

`prometheus_client` is imported by `render` alone: it costs a quarter of the front's start, and most replicas of a
scale-to-zero platform are never scraped.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from adapter.lifecycle import Phase
from adapter.runtime.invocation import Invocation, Outcome
from adapter.runtime.stream_metrics import stream_numbers

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""From a warm echo (under 1 ms) to the longest requests that platforms allow."""


class Histogram:
    """Counts by upper bound; the last one is for everything above."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (len(BUCKETS_S) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(BUCKETS_S, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Prometheus' form: how many are at most each bound."""
        seen, rows = 0, []
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((bound, float(seen)))
        return rows


class Metrics:
    """Numbers of one front. Written on its event loop; read from any thread."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], int] = {}
        self._queue = Histogram()
        self._handler = Histogram()
        self._workers_lost = 0
        self._init_s: float | None = None
        self._queue_length: Callable[[], int] = int
        self._running: Callable[[], int] = int
        self._phase: Callable[[], Phase] = lambda: Phase.COLD
        self.stream: Callable[[], Mapping[str, object]] = dict
        """Where to look for what the fetcher says of its stream."""

    def watch(self, *, queue_length: Callable[[], int], running: Callable[[], int], phase: Callable[[], Phase]) -> None:
        """Where to look for what is not counted but is so at the moment."""
        self._queue_length, self._running, self._phase = queue_length, running, phase

    def started(self, seconds: float) -> None:
        """A worker is ready, this long after its start began."""
        self._init_s = seconds

    def worker_lost(self) -> None:
        """A worker is gone."""
        self._workers_lost += 1

    def refused(self, code: str) -> None:
        """An invocation was not accepted."""
        self._count(code, "none")

    def finished(self, invocation: Invocation, outcome: Outcome) -> None:
        """An invocation has its last outcome."""
        self._count("ok" if outcome.error is None else outcome.error.code, invocation.start or "none")
        self._queue.observe(invocation.queue_s)
        if invocation.handler_s is not None:
            self._handler.observe(invocation.handler_s)

    def _count(self, outcome: str, start: str) -> None:
        key = (outcome, start)
        self._outcomes[key] = self._outcomes.get(key, 0) + 1

    # -- reading -------------------------------------------------------------------------------------------------------

    def render(self, accept: str) -> tuple[bytes, str]:
        """The metrics as text, and its content type, in the format that the `Accept` header prefers."""
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        registry = CollectorRegistry()
        registry.register(self)
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type

    def collect(self) -> Iterator[Metric]:
        """The metric families: what a Prometheus registry asks its collectors for."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        invocations = CounterMetricFamily(
            "coldstart_invocations",
            "Invocations by outcome (ok or the error's code) and start.",
            labels=["outcome", "start"],
        )
        for (outcome, start), count in list(self._outcomes.items()):
            invocations.add_metric([outcome, start], count)
        yield invocations
        yield HistogramMetricFamily(
            "coldstart_queue_seconds",
            "Time between an invocation's arrival and its handing over to the worker.",
            buckets=self._queue.cumulative(),
            sum_value=self._queue.total,
        )
        yield HistogramMetricFamily(
            "coldstart_handler_seconds",
            "Time in the handler, as the worker measured it.",
            buckets=self._handler.cumulative(),
            sum_value=self._handler.total,
        )
        yield GaugeMetricFamily("coldstart_queue_length", "Invocations that wait.", value=self._queue_length())
        yield GaugeMetricFamily("coldstart_running", "Invocations in the worker.", value=self._running())
        yield CounterMetricFamily("coldstart_workers_lost", "Workers that ended.", value=self._workers_lost)
        phase = GaugeMetricFamily("coldstart_phase", "1 for the phase that the replica is in.", labels=["phase"])
        for known in Phase:
            phase.add_metric([str(known)], 1.0 if known is self._phase() else 0.0)
        yield phase
        yield from self._collect_stream()
        if self._init_s is not None:
            yield GaugeMetricFamily(
                "coldstart_start_seconds", "How long the latest start took until ready.", value=self._init_s
            )

    def _collect_stream(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for number in stream_numbers(self.stream()):
            family = CounterMetricFamily if number.counter else GaugeMetricFamily
            labels = [] if number.phase is None else ["phase"]
            found = families.setdefault(number.name, family(number.name, number.help_text, labels=labels))
            found.add_metric([] if number.phase is None else [number.phase], number.value)
        yield from families.values()
