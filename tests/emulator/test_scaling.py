"""A function on the emulated platform, with real replicas: from zero, up, down, and over its limits."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.checkpoints import MEBIBYTE, write_checkpoint
from tests.support.emulators import RunningEmulator, running_emulator
from tests.support.replicas import until, write_module

SUM = """
    import zlib
    from adapter import coldstart_handler

    def load(weights):
        return {name: zlib.crc32(weights[name].numpy().tobytes()) for name in weights}

    @coldstart_handler(weights="s3://models/elsewhere/", load=load)
    def crc(sums, event):
        return sums[event["tensor"]]
"""
QUICK = {"COLDSTART_CONNECTIONS": "2", "COLDSTART_PART_BYTES": str(MEBIBYTE), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, int]]:
    """A directory with a checkpoint of 8 MiB, and the CRC of each tensor; the handler `mine:crc` beside it."""
    write_module(tmp_path, "mine", SUM)
    return tmp_path / "tiny", write_checkpoint(tmp_path / "tiny" / "model.safetensors", 2 * MEBIBYTE, 4)


def test_twenty_callers_at_zero_replicas_are_answered_and_weights_are_read_once(
    model: tuple[Path, dict[str, int]],
) -> None:
    """G1."""
    directory, sums = model
    most = 0
    done = threading.Event()

    def watch(emulator: RunningEmulator) -> None:
        nonlocal most
        while not done.wait(0.02):
            most = max(most, len(emulator.replicas()))

    arguments = ("--weights", str(directory), "--max-replicas", "2")
    with running_emulator("mine:crc", directory.parent, *arguments, environment=QUICK) as emulator:
        watching = threading.Thread(target=watch, args=(emulator,))
        watching.start()
        names = [f"t{n % 4}" for n in range(20)]
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda name: emulator.invoke({"tensor": name}), names))
        done.set()
        watching.join()
        assert [(answer.status_code, answer.json()) for answer in answers] == [(200, sums[name]) for name in names]
        assert most == 2
        size = (directory / "model.safetensors").stat().st_size
        assert size <= emulator.shard_bytes() <= size + 2 * MEBIBYTE  # the first range may reach beyond the header
        served_by = {answer.headers["x-coldstart-replica"] for answer in answers}
        assert served_by <= {"r1", "r2"}
        assert sum(answer.headers["x-coldstart"] == "cold" for answer in answers) == len(served_by)
        records = emulator.get("/invocations")
        assert {(record["state"], record["status"]) for record in records} == {("done", 200)}
        until(lambda: len(emulator.get("/reports")) == 2, what="both reports")
        assert {report["outcome"] for report in emulator.get("/reports")} == {"ready"}


def test_a_start_over_the_init_limit_is_ended_callers_are_told_and_the_next_goes_on(
    model: tuple[Path, dict[str, int]],
) -> None:
    """G2: 8 MiB at 0.8 MB/s do not come in 8 s."""
    directory, sums = model
    arguments = ("--weights", str(directory), "--link", "0.8MB/s", "--init-limit-s", "8", "--max-replicas", "1")
    with running_emulator("mine:crc", directory.parent, *arguments, environment=QUICK) as emulator:
        first = emulator.invoke({"tensor": "t0"})
        assert first.status_code == 503
        error = first.json()["error"]
        assert error["code"] == "init_timeout"
        assert "init limit of 8 s" in error["message"]
        assert "bytes of the weights were here" in error["message"]
        tries = 1
        answer = emulator.invoke({"tensor": "t0"})
        while answer.status_code != 200 and tries < 4:  # a busy machine imports slowly: what counts is what is read
            assert answer.json()["error"]["code"] == "init_timeout"
            tries += 1
            answer = emulator.invoke({"tensor": "t0"})
        assert answer.json() == sums["t0"]
        size = (directory / "model.safetensors").stat().st_size
        # each start that was ended may lose the chunk that each of its connections was in, and reads its header again
        assert emulator.shard_bytes() <= size + (tries + 1) * 3 * MEBIBYTE - MEBIBYTE
        ended = next(replica for replica in emulator.get("/replicas") if replica["id"] == "r1")
        assert (ended["state"], ended["stop_reason"]) == ("gone", "init_limit")
        assert ended["exit_code"] == 128 + signal.SIGTERM
        report = next(report for report in emulator.get("/reports") if report["replica"] == "r1")
        assert report["outcome"] == "failed"
        error = emulator.get(f"/reports/{report['number']}")["error"]
        assert error["fields"]["done_bytes"] > 0


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEmulator]:
    """An emulator of `handlers.echo:echo` that tests may use one after the other."""
    directory = tmp_path_factory.mktemp("echo")
    with running_emulator("handlers.echo:echo", directory, "--max-replicas", "2", "--idle-s", "600") as emulator:
        yield emulator


def zero(emulator: RunningEmulator) -> None:
    """End every replica and wait for it."""
    emulator.client.post("/scale-to-zero").raise_for_status()
    until(lambda: not emulator.replicas(), what="the end of every replica")


def test_the_first_caller_meets_a_cold_start_and_the_second_does_not(echo: RunningEmulator) -> None:
    zero(echo)
    cold, warm = echo.invoke({"n": 1}), echo.invoke({"n": 2})
    assert (cold.json()["event"], warm.json()["event"]) == ({"n": 1}, {"n": 2})
    assert (cold.headers["x-coldstart"], warm.headers["x-coldstart"]) == ("cold", "warm")
    assert float(cold.headers["x-coldstart-queued-ms"]) > 50 > float(warm.headers["x-coldstart-queued-ms"])
    assert cold.headers["x-coldstart-replica"] == warm.headers["x-coldstart-replica"]
    (replica,) = echo.replicas()
    assert (replica["state"], replica["phase"], replica["served"]) == ("idle", "ready", 2)


def test_what_a_replica_answers_is_passed_on_as_it_is(echo: RunningEmulator) -> None:
    refused = echo.invoke({"sleep_s": "long"}, **{"X-Request-Id": "mine"})
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_event"
    assert refused.headers["x-request-id"] == "mine"
    assert echo.get("/invocations")[0]["error"] == "invalid_event"


def test_a_killed_worker_is_replaced_inside_its_replica_and_has_a_report_of_its_own(echo: RunningEmulator) -> None:
    replica = echo.invoke({}).headers["x-coldstart-replica"]
    before = len(until(lambda: echo.get("/reports"), what="a report"))
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(echo.invoke, {"sleep_s": 30})
        until(lambda: echo.get("/replicas")[0]["state"] == "busy", what="a busy replica")
        killed = echo.client.post(f"/replicas/{replica}/kill?role=worker").raise_for_status().json()
        assert killed["killed"] == "worker"
        answer = held.result(20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_died")
    after = echo.invoke({})
    assert (after.status_code, after.headers["x-coldstart-replica"]) == (200, replica)
    until(lambda: len(echo.get("/reports")) == before + 1, what="the report of the recovery")
    assert echo.get("/reports")[0]["kind"] == "recovery"


def test_a_killed_replica_fails_its_callers_and_the_next_gets_another(echo: RunningEmulator) -> None:
    replica = echo.invoke({}).headers["x-coldstart-replica"]
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(echo.invoke, {"sleep_s": 30})
        until(lambda: echo.get("/replicas")[0]["state"] == "busy", what="a busy replica")
        echo.client.post(f"/replicas/{replica}/kill?role=supervisor").raise_for_status()
        answer = held.result(20)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_died")
    assert "SIGKILL" in answer.json()["error"]["message"]
    assert echo.invoke({}).headers["x-coldstart-replica"] != replica


def test_scale_to_zero_lets_running_invocations_finish(echo: RunningEmulator) -> None:
    echo.invoke({})
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(echo.invoke, {"sleep_s": 1})
        until(lambda: echo.get("/replicas")[0]["state"] == "busy", what="a busy replica")
        zero(echo)
        assert held.result(20).status_code == 200


def test_a_caller_who_goes_away_frees_the_replica(echo: RunningEmulator) -> None:
    echo.invoke({})
    with pytest.raises(Exception, match="timed out"):
        echo.client.post("/invoke", json={"sleep_s": 50}, timeout=0.5)
    until(lambda: echo.get("/invocations")[0]["error"] == "invocation.cancelled", what="the note of the cancellation")
    assert echo.invoke({}, **{"X-Coldstart-Timeout-S": "20"}).status_code == 200


def test_a_callers_patience_is_told_to_the_replica(echo: RunningEmulator) -> None:
    echo.invoke({})
    answer = echo.invoke({"sleep_s": 30}, **{"X-Coldstart-Timeout-S": "0.5"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "invocation.timeout")
    assert echo.invoke({}, **{"X-Coldstart-Timeout-S": "soon"}).status_code == 400


def test_an_idle_replica_goes_and_a_request_over_its_limit_ends(tmp_path: Path) -> None:
    arguments = ("--idle-s", "0.5", "--request-limit-s", "0.5")
    with running_emulator("handlers.echo:echo", tmp_path, *arguments) as emulator:
        answer = emulator.invoke({"sleep_s": 30})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "invocation.timeout")
        until(lambda: not emulator.replicas(), what="scale to zero")
        (gone,) = emulator.get("/replicas")
        assert (gone["stop_reason"], gone["exit_code"]) == ("idle", 0)
        assert emulator.invoke({}).headers["x-coldstart"] == "cold"


def test_a_handler_for_many_at_a_time_needs_one_replica(tmp_path: Path) -> None:
    with running_emulator("handlers.echo:echo_async", tmp_path) as emulator:
        emulator.invoke({})
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: emulator.invoke({"n": n, "sleep_s": 0.2}), range(8)))
        assert {answer.headers["x-coldstart-replica"] for answer in answers} == {"r1"}
        assert emulator.get("/replicas")[0]["concurrency"] == 16


@pytest.mark.parametrize(
    ("source", "code", "word"),
    [
        ("import nothing_of_that_name\n", "handler.import", "nothing_of_that_name"),
        ("import os\nos._exit(3)\n", "role_died", "exit code 3"),
    ],
)
def test_callers_of_a_start_that_fails_get_its_reason(tmp_path: Path, source: str, code: str, word: str) -> None:
    (tmp_path / "broken.py").write_text(source)
    with running_emulator("broken:f", tmp_path, environment={"COLDSTART_WORKER_RESTARTS": "0"}) as emulator:
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda n: emulator.invoke({"n": n}), range(4)))
        assert {answer.json()["error"]["code"] for answer in answers} == {code}
        assert all(word in answer.json()["error"]["message"] for answer in answers)
        assert {answer.status_code for answer in answers} <= {502, 503}
        until(lambda: not emulator.replicas(), what="the end of every replica")
        reports = until(lambda: emulator.get("/reports"), what="a report")
        assert reports[0]["error"] == code
        assert emulator.get(f"/reports/{reports[0]['number']}")["outcome"] == "failed"
        assert emulator.client.get("/replicas/r1/log").text.count("\n") > 2
