from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from adapter.timeline import Timeline, process_start_ns, read_spans


def test_a_span_is_recorded_with_its_facts(tmp_path: Path) -> None:
    timeline = Timeline("fetcher", tmp_path / "timeline.jsonl")
    before = time.monotonic_ns()
    with timeline.span("weights.stream", "network", key="a") as span:
        span.add(bytes=3)
    (found,) = read_spans(tmp_path / "timeline.jsonl")
    assert (found.name, found.role, found.lane, found.pid) == ("weights.stream", "fetcher", "network", os.getpid())
    assert found.fields == {"key": "a", "bytes": 3}
    assert before <= found.start_ns <= found.stop_ns <= time.monotonic_ns()
    assert timeline.spans() == (found,)


def test_a_span_that_raises_is_recorded_with_the_error() -> None:
    timeline = Timeline("worker")
    with pytest.raises(KeyError), timeline.span("model.load"):
        raise KeyError("x")
    assert timeline.spans()[0].fields == {"error": "KeyError"}


def test_a_mark_is_a_moment() -> None:
    timeline = Timeline("front")
    timeline.mark("front.listening", port=8080)
    (found,) = timeline.spans()
    assert found.start_ns == found.stop_ns
    assert found.seconds == 0


def test_spans_are_read_in_the_order_of_their_starts(tmp_path: Path) -> None:
    timeline = Timeline("worker", tmp_path / "t")
    timeline.record("b", "cpu", 20, 30)
    timeline.record("a", "cpu", 10, 90)
    assert [span.name for span in read_spans(tmp_path / "t")] == ["a", "b"]


def test_no_file_is_no_spans(tmp_path: Path) -> None:
    assert read_spans(tmp_path / "nothing") == ()


@pytest.mark.parametrize(
    "torn", [b'{"name": "half', b'{"name": "half"}\n', b"[1]\n", b"\xff\xfe\n", b"\n", b"null\n", b'"text"\n']
)
def test_a_torn_or_foreign_line_is_left_out(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "t"
    Timeline("worker", path).mark("whole")
    path.write_bytes(path.read_bytes() + torn)
    assert [span.name for span in read_spans(path)] == ["whole"]


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    Timeline("worker", tmp_path / "t").mark("x")
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600


def test_records_of_several_processes_and_threads_never_mix(tmp_path: Path) -> None:
    path = tmp_path / "t"
    program = (
        "import sys; from pathlib import Path; from adapter.timeline import Timeline\n"
        "timeline = Timeline(sys.argv[1], Path(sys.argv[2]))\n"
        "for number in range(200): timeline.mark('m', number=number, text='x' * 300)\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", program, role, str(path)]) for role in ("a", "b")]
    timeline = Timeline("c", path)

    def mark() -> None:
        for _ in range(50):
            timeline.mark("m", text="y" * 300)

    threads = [threading.Thread(target=mark) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [child.wait(30) for child in children] == [0, 0]
    counted = [span.role for span in read_spans(path)]
    assert {role: counted.count(role) for role in "abc"} == {"a": 200, "b": 200, "c": 100}


def test_a_record_outlives_a_killed_process(tmp_path: Path) -> None:
    path = tmp_path / "t"
    program = (
        "import os, signal, sys; from pathlib import Path; from adapter.timeline import Timeline\n"
        "Timeline('worker', Path(sys.argv[1])).mark('before'); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == -9
    assert [span.name for span in read_spans(path)] == ["before"]


def test_the_start_of_a_process_is_on_the_same_clock() -> None:
    """C1: the report begins at the process's exec; the kernel tells it to 10 ms."""
    before = time.monotonic_ns()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        after = time.monotonic_ns()
        started = process_start_ns(child.pid)
        child.communicate()
    assert before - 20_000_000 <= started <= after + 20_000_000


def test_this_process_started_before_now() -> None:
    assert process_start_ns() < time.monotonic_ns()
