"""The stream in the metrics: what the fetcher wrote, as far as it makes sense."""

from __future__ import annotations

from dataclasses import fields

from adapter.lifecycle import Phase
from adapter.runtime.metrics import Metrics
from adapter.streaming.options import Progress

DONE = Progress(
    total_bytes=1000,
    done_bytes=900,
    from_cache_bytes=100,
    fetched_bytes=820,
    requests=12,
    retries=1,
    hedges=2,
    twice_bytes=20,
    concurrency=16,
    seconds=2.0,
    body_s=12.5,
)


def rendered(facts: dict[str, object]) -> list[str]:
    metrics = Metrics()
    metrics.watch(queue_length=int, running=int, phase=lambda: Phase.LOADING)
    metrics.stream = lambda: facts
    return metrics.render("")[0].decode().splitlines()


def test_what_the_fetcher_says_is_there_to_be_scraped() -> None:
    lines = rendered({"done_bytes": DONE.done_bytes, **DONE.facts()})
    for line in (
        "coldstart_stream_bytes_total 820.0",
        "coldstart_stream_requests_total 12.0",
        "coldstart_stream_hedges_total 2.0",
        "coldstart_stream_twice_bytes_total 20.0",
        "coldstart_stream_done_bytes 900.0",
        "coldstart_stream_concurrency 16.0",
        "coldstart_stream_goodput_bytes_per_s 400.0",
        'coldstart_stream_phase_seconds_total{phase="body"} 12.5',
    ):
        assert line in lines


def test_every_number_of_a_stream_is_among_the_metrics() -> None:
    text = "\n".join(rendered({"done_bytes": DONE.done_bytes, **DONE.facts()}))
    for field in fields(Progress):
        name = field.name.removeprefix("fetched_")
        phase = name.removesuffix("_s")
        assert f"coldstart_stream_{name}" in text or f'phase="{phase}"' in text, field.name


def test_without_a_stream_or_with_nonsense_there_are_none() -> None:
    for facts in ({}, {"bytes": "many", "held_s": None}):
        assert not [line for line in rendered(dict(facts)) if "coldstart_stream" in line]
