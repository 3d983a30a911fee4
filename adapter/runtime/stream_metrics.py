"""What the fetcher says of its stream, as numbers to be scraped: bytes, requests, and what went wrong on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_COUNTERS = {
    "bytes": "Bytes read from the store.",
    "requests": "Range reads sent, repeats included.",
    "retries": "Failed requests that were followed by another.",
    "throttles": "Answers that asked to slow down.",
    "stalls": "Requests broken off because they hardly moved.",
    "hedges": "Ranges asked for a second time because they took much longer than others.",
    "twice_bytes": "Bytes read twice for that.",
}
_GAUGES = {
    "total_bytes": "Bytes of the checkpoint.",
    "done_bytes": "Bytes of it that are here.",
    "from_cache_bytes": "Bytes that were here when the stream began.",
    "concurrency": "Requests that may be under way.",
    "goodput_bytes_per_s": "Wanted bytes from the store, a second.",
    "seconds": "Since the stream began, until its end.",
}
_PHASES = ("held", "first_byte", "body", "disk")
_PHASE_NAME = "coldstart_stream_phase_seconds"
_PHASE_HELP = "Seconds of the stream's threads, added up, by what they did."


@dataclass(frozen=True, slots=True)
class Number:
    """One sample of a stream."""

    name: str
    help_text: str
    counter: bool
    """Whether it only grows."""
    value: float
    phase: str | None = None
    """Where the seconds went that it counts."""


def stream_numbers(facts: Mapping[str, object]) -> Iterator[Number]:
    """The samples of one stream.

    Args:
        facts: What the fetcher wrote last; what is missing in it or is no number is left out.
    """
    numbers = {name: float(value) for name, value in facts.items() if isinstance(value, int | float)}
    for name, help_text in (_COUNTERS | _GAUGES).items():
        if name in numbers:
            yield Number(f"coldstart_stream_{name}", help_text, name in _COUNTERS, numbers[name])
    for phase in _PHASES:
        if f"{phase}_s" in numbers:
            yield Number(_PHASE_NAME, _PHASE_HELP, True, numbers[f"{phase}_s"], phase)
