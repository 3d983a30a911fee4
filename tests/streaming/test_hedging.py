"""Which reads are too slow, and what is done about them: broken off, asked for once more, never waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from adapter.errors import AdapterError, ConnectionFailed, InvocationCancelled, StoreFailed
from adapter.storage.base import RangeRequest
from adapter.storage.memory import FailRead, MemorySource, StallRead
from adapter.storage.s3 import S3Options, S3Source
from adapter.streaming.cache import Cache
from adapter.streaming.hedging import Finished, Moved, Running, SlownessRule, has_stalled, is_late, usual
from adapter.streaming.streamer import Streamer
from tests.support.scripted_store import Answer, Asked, part, scripted_store
from tests.support.shard_bytes import shard, sharded
from tests.support.stores import CREDENTIALS
from tests.support.streams import MEBIBYTE, contents, options, stream

NAME = "model.safetensors"
MODEL = shard(1, 16 * MEBIBYTE - 1024)
"""Nine reads in parts of 2 MiB: one for the header, eight more."""
PATIENT = SlownessRule(stall_s=1000.0, hedge_share=0.5, hedge_after_s=0.3)
"""Waits for ever for a read that is silent, but doubles it near the end."""
CHUNK = 64 << 10

RULE = SlownessRule()
USUAL = usual([Finished(8 * MEBIBYTE, 0.05, 0.15)] * 5)


@pytest.mark.parametrize(
    ("read", "late"),
    [
        (Running(8 * MEBIBYTE, 0, 0.29), False),
        (Running(8 * MEBIBYTE, 0, 0.31), True),
        (Running(8 * MEBIBYTE, 400_000, 0.31), True),
        (Running(8 * MEBIBYTE, 7 * MEBIBYTE, 0.31), False),  # a round trip would take longer than what is left
        (Running(8 * MEBIBYTE, 8 * MEBIBYTE, 9.0), False),  # it waits for the disk
        (Running(1000, 0, 0.11), True),
        (Running(1000, 0, 0.09), False),
    ],
)
def test_a_read_is_late_when_it_took_and_will_take_much_longer_than_usual(read: Running, late: bool) -> None:
    """D3"""
    assert USUAL is not None
    assert is_late(read, USUAL, RULE) is late


def test_midway_a_read_has_to_be_later_than_at_the_end() -> None:
    """B3"""
    assert USUAL is not None
    read = Running(8 * MEBIBYTE, 400_000, 0.5)
    assert is_late(read, USUAL, RULE)
    assert not is_late(read, USUAL, RULE, midway=True)
    assert is_late(Running(8 * MEBIBYTE, 400_000, 0.61), USUAL, RULE, midway=True)


def test_a_silent_read_midway_is_passed_while_others_go_on(tmp_path: Path) -> None:
    """B3: it does not cost a connection for the rest of the stream."""
    asked: list[RangeRequest] = []
    lock = threading.Lock()

    def hold(request: RangeRequest) -> None:
        """From the 18th read on, others wait until the 12th, which is silent, has been passed."""
        with lock:
            asked.append(request)
            number = len(asked)
        if number < 18:
            return
        silent = asked[11]
        assert silent.watch is not None
        end_s = time.monotonic() + 20
        while not silent.start <= request.start < silent.start + silent.length_bytes:
            if silent.watch.given_up:
                return
            assert time.monotonic() < end_s
            time.sleep(0.002)

    source = MemorySource({NAME: MODEL}, [StallRead(NAME, 100_000, first=12)], before_read=hold)
    manifest, progress = stream(source, tmp_path, slowness=PATIENT, chunk_bytes=CHUNK, part_bytes=MEBIBYTE // 2)
    assert contents(manifest)[NAME] == MODEL
    assert progress.hedges >= 1
    assert progress.stalls == 0


def test_nothing_is_usual_before_anything_went_well() -> None:
    assert usual([]) is None
    assert usual([Finished(0, 0.1, 0.1)]) is None


@pytest.mark.parametrize(
    ("seconds", "count", "stalled"), [(9.9, 0, None), (10, 0, True), (10, 20, True), (10, 20_000, False)]
)
def test_silence_and_a_trickle_are_stalls(seconds: float, count: int, stalled: bool | None) -> None:
    """S-08: 20 bytes are one every half second."""
    assert has_stalled(Moved(5.0, 77), Moved(5.0 + seconds, 77 + count), RULE) is stalled


def test_a_read_that_is_silent_midway_is_broken_off_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    """S-08"""
    source = MemorySource({NAME: MODEL}, [StallRead(NAME, 300_000, first=3)])
    rule = SlownessRule(stall_s=0.2, hedge_share=0)
    manifest, progress = stream(source, tmp_path, slowness=rule)
    assert contents(manifest)[NAME] == MODEL
    assert (progress.stalls, progress.retries, progress.hedges) == (1, 1, 0)
    assert source.received_bytes == len(MODEL)


def test_a_read_that_stalls_for_ever_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    """S-08"""

    source = MemorySource({NAME: MODEL}, [StallRead(NAME, first=3, times=1000)])
    with pytest.raises(ConnectionFailed, match=r"stalled, 0 bytes in .* gave up after 3 attempts") as caught:
        stream(source, tmp_path, slowness=SlownessRule(stall_s=0.1, hedge_share=0))
    assert caught.value.fields["attempts"] == 3


def test_a_body_that_trickles_is_broken_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-08: single bytes never trip a socket's own time limit."""
    content = shard(1, 200_000)
    for name, value in {**CREDENTIALS, "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)

    def script(asked: Asked) -> Answer:
        if "list-type" in asked.path:
            listed = f"<Key>m/{NAME}</Key><Size>{len(content)}</Size><ETag>&quot;e1&quot;</ETag>"
            return Answer(body=f"<ListBucketResult><Contents>{listed}</Contents></ListBucketResult>".encode())
        answer = part(content, asked)
        return Answer(206, answer.headers, answer.body, drip_s=0.05) if asked.number == 2 else answer

    with (
        scripted_store(script) as store,
        S3Source("s3://bucket/m/", S3Options(timeout_s=60, endpoint_url=store.endpoint)) as source,
        Streamer(source, Cache(tmp_path), options(slowness=SlownessRule(stall_s=0.5, hedge_share=0))) as streamer,
    ):
        manifest = streamer.prepare()
        progress = streamer.run()
        assert contents(manifest)[NAME] == content
        assert (progress.stalls, progress.requests) == (1, 2)
        start, stop = store.gets[-1].span
        assert 0 < start < 100, "what had trickled in was kept"
        assert stop == len(content)


def test_the_last_range_is_asked_for_again_when_it_takes_much_longer_than_others(tmp_path: Path) -> None:
    """B3"""
    source = MemorySource({NAME: MODEL}, [StallRead(NAME, 300_000, first=9)])
    manifest, progress = stream(source, tmp_path, slowness=PATIENT, chunk_bytes=CHUNK, connections=2)
    assert contents(manifest)[NAME] == MODEL
    assert (progress.hedges, progress.stalls, progress.retries) == (1, 0, 0)
    assert progress.twice_bytes <= 2 * CHUNK, "the slow one was ended when it was overtaken"
    assert source.received_bytes == progress.fetched_bytes <= len(MODEL) + 2 * CHUNK


def test_nothing_is_read_twice_when_hedging_is_off_or_would_cost_too_much(tmp_path: Path) -> None:
    """B5"""
    for share in (0.0, 0.001):
        source = MemorySource({NAME: MODEL}, [StallRead(NAME, 300_000, first=9)])
        rule = SlownessRule(stall_s=0.5, hedge_share=share, hedge_after_s=0.02)
        _, progress = stream(source, tmp_path / str(share), slowness=rule, chunk_bytes=CHUNK)
        assert (progress.hedges, progress.twice_bytes, progress.stalls) == (0, 0, 1)
        assert source.received_bytes == len(MODEL)


class Scripted:
    """What happens at the n-th read: `hold` keeps it until `release`."""

    def __init__(self, *held: int) -> None:
        self.release = {number: threading.Event() for number in held}
        self.asked: list[RangeRequest] = []
        self._lock = threading.Lock()

    def __call__(self, request: RangeRequest) -> None:
        with self._lock:
            self.asked.append(request)
            number = len(self.asked)
        if number in self.release:
            assert self.release[number].wait(30)


def test_a_stream_does_not_wait_for_a_read_that_cannot_be_broken_off(tmp_path: Path) -> None:
    """B3: the other one has brought it."""
    script = Scripted(9)
    source = MemorySource({NAME: MODEL}, before_read=script)
    began_s = time.monotonic()
    manifest, progress = stream(source, tmp_path, slowness=PATIENT, chunk_bytes=CHUNK)
    assert time.monotonic() - began_s < 20
    assert progress.hedges == 1
    assert contents(manifest)[NAME] == MODEL
    script.release[9].set()


def test_the_second_read_is_given_up_when_the_first_one_finishes(tmp_path: Path) -> None:
    """B3: first to finish wins."""
    script = Scripted(9, 10)
    source = MemorySource({NAME: MODEL}, before_read=script)

    def release_the_first() -> None:
        while len(script.asked) < 10:
            time.sleep(0.002)
        script.release[9].set()

    helper = threading.Thread(target=release_the_first)
    helper.start()
    manifest, progress = stream(source, tmp_path, slowness=PATIENT, chunk_bytes=CHUNK)
    helper.join()
    assert (progress.hedges, progress.twice_bytes) == (1, 0)
    assert contents(manifest)[NAME] == MODEL
    watch = script.asked[9].watch
    assert watch is not None
    assert watch.given_up
    script.release[10].set()


def test_a_second_read_that_fails_harms_nobody(tmp_path: Path) -> None:
    script = Scripted(9)
    source = MemorySource({NAME: MODEL}, [FailRead(NAME, StoreFailed("500"), first=9, times=3)], before_read=script)

    def release_the_first() -> None:
        while len(source.reads) < 11:
            time.sleep(0.002)
        script.release[9].set()

    helper = threading.Thread(target=release_the_first)
    helper.start()
    manifest, progress = stream(source, tmp_path, slowness=PATIENT, chunk_bytes=CHUNK)
    helper.join()
    assert progress.hedges == 1
    assert contents(manifest)[NAME] == MODEL


def test_a_first_read_that_fails_leaves_the_rest_to_the_second(tmp_path: Path) -> None:
    source = MemorySource(
        {NAME: MODEL}, [StallRead(NAME, 300_000, first=9), StallRead(NAME, 100_000, first=10, times=1)]
    )
    rule = SlownessRule(stall_s=0.3, hedge_share=0.5, hedge_after_s=0.3)
    manifest, progress = stream(source, tmp_path, slowness=rule, chunk_bytes=CHUNK)
    assert progress.hedges >= 1
    assert contents(manifest)[NAME] == MODEL


def test_cancelling_ends_reads_that_are_silent(tmp_path: Path) -> None:
    """A7"""

    before = threading.active_count()
    source = MemorySource({NAME: MODEL}, [StallRead(NAME, first=3, times=4)])
    with Streamer(source, Cache(tmp_path), options(slowness=SlownessRule(hedge_share=0))) as streamer:
        streamer.prepare()
        threading.Timer(0.2, streamer.cancel).start()
        with pytest.raises(InvocationCancelled):
            streamer.run()
    assert threading.active_count() <= before + 1, "no thread is left behind; the timer may just be ending"


def test_an_index_that_stalls_is_broken_off_too(tmp_path: Path) -> None:
    """S-08: before any thread of the stream runs."""
    objects = sharded(2, MEBIBYTE)
    source = MemorySource(objects, [StallRead("model.safetensors.index.json", 10)])
    manifest, progress = stream(source, tmp_path, slowness=SlownessRule(stall_s=0.2))
    assert contents(manifest) == objects
    assert (progress.stalls, progress.retries) == (1, 1)


def test_cancelling_ends_a_silent_read_of_the_index(tmp_path: Path) -> None:
    """A7"""
    source = MemorySource(sharded(2, MEBIBYTE), [StallRead("model.safetensors.index.json", 10)])
    with Streamer(source, Cache(tmp_path), options()) as streamer:
        timer = threading.Timer(0.2, streamer.cancel)
        timer.start()
        with pytest.raises(AdapterError):
            streamer.prepare()
        timer.join()
