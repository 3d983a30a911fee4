"""The platform that tests of a handler get, seen as such a test sees it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from adapter.errors import AdapterError, ConfigurationError, HandlerFailed, HandlerNotFound, LoadError
from adapter.testing import Emulator, Result, StartEmulator
from tests.support.replicas import until, write_module

HANDLERS = """
import os
import pathlib
import time

from adapter import coldstart_handler


@coldstart_handler
def echo(event):
    return {"event": event, "pid": os.getpid(), "said": os.environ.get("SAID"), "level": os.environ.get("COLDSTART_X")}


@coldstart_handler
def fails(event):
    raise KeyError(event)


@coldstart_handler
def count(event):
    try:
        for number in range(event["to"]):
            if number == event.get("fails_at"):
                raise ValueError("no further")
            yield number
            after = event.get("waits_for")
            while after and not pathlib.Path(after).exists():
                time.sleep(0.005)
    finally:
        if "ends_with" in event:
            pathlib.Path(event["ends_with"]).touch()


@coldstart_handler
def reports(event, context):
    context.progress({"part": 1})
    if event == "fails":
        raise ValueError("half way")
    return {"done": event}


@coldstart_handler
def waits(event):
    while not pathlib.Path(event["until"]).exists():
        time.sleep(0.005)


def broken_load():
    raise OSError("no such model")


@coldstart_handler(load=broken_load)
def broken(model, event):
    return event


def read(weights):
    return weights.json("config.json")


@coldstart_handler(load=read, weights="s3://models/nowhere/")
def configured(model, event):
    return model
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("code")
    write_module(directory, "kit_handlers", HANDLERS)
    return directory


@pytest.fixture(scope="module")
def echo(code: Path) -> Iterator[Emulator]:
    with Emulator("kit_handlers:echo", directory=code, max_replicas=1, env={"SAID": "yes"}) as run:
        yield run


@pytest.fixture(scope="module")
def count(code: Path) -> Iterator[Emulator]:
    with Emulator("kit_handlers:count", directory=code) as run:
        yield run


def test_the_first_call_is_cold_and_the_next_one_warm(echo: Emulator) -> None:
    echo.scale_to_zero()
    first, second = echo.invoke({"a": 1}), echo.invoke([2])
    assert (first.status, first.start, first.value["event"]) == (200, "cold", {"a": 1})
    assert (second.status, second.start, second.value["event"]) == (200, "warm", [2])
    assert first.replica == second.replica
    assert first.queued_s > second.queued_s
    assert (first.error, first.error_code, first.items) == (None, None, ())


def test_a_ready_replica_has_its_report(echo: Emulator) -> None:
    before = len(echo.reports)
    echo.scale_to_zero()
    echo.invoke(None)
    report = echo.reports[before]
    assert (report.kind, report.outcome, report.handler) == ("cold", "ready", "kit_handlers:echo")


def test_a_cold_start_gives_its_report(echo: Emulator) -> None:
    first, second = echo.cold_start(), echo.cold_start({"any": "event"})
    assert (first.kind, first.outcome) == (second.kind, second.outcome) == ("cold", "ready")
    assert first != second
    ready = [replica for replica in echo.replicas() if replica.ready]
    assert [replica.served for replica in ready] == [1]


def test_scaled_to_zero_nothing_is_left_and_the_next_caller_gets_a_new_replica(echo: Emulator) -> None:
    before = echo.invoke(None).value["pid"]
    echo.scale_to_zero()
    assert not any(replica.alive for replica in echo.replicas())
    after = echo.invoke(None)
    assert after.start == "cold"
    assert after.value["pid"] != before


def test_a_killed_worker_is_replaced_in_its_replica(echo: Emulator) -> None:
    first = echo.invoke(None)
    assert echo.kill("worker") == first.replica
    second = echo.invoke(None)
    assert second.replica == first.replica
    assert second.value["pid"] != first.value["pid"]
    until(lambda: echo.reports[-1].kind == "recovery", what="the report of the recovery")


def test_a_killed_replica_is_replaced_by_another(echo: Emulator) -> None:
    first = echo.invoke(None)
    assert echo.kill("supervisor") == first.replica

    def answered() -> Result | None:
        result = echo.invoke(None)
        return result if result.error is None else None

    assert until(answered, what="an answer").replica != first.replica


def test_what_is_not_there_cannot_be_killed(echo: Emulator) -> None:
    echo.scale_to_zero()
    with pytest.raises(AdapterError, match="no replica is ready"):
        echo.kill()
    echo.invoke(None)
    with pytest.raises(AdapterError, match="role must be one of"):
        echo.kill("cook")
    with pytest.raises(AdapterError, match="no such living worker"):
        echo.kill(replica="r0")


def test_replicas_see_the_variables_they_are_given_and_none_of_the_developers_settings(
    echo: Emulator, monkeypatch: pytest.MonkeyPatch, code: Path
) -> None:
    assert echo.invoke(None).value["said"] == "yes"
    monkeypatch.setenv("COLDSTART_X", "from the shell")
    with Emulator("kit_handlers:echo", directory=code) as run:
        assert run.invoke(None).value["level"] is None


def test_callers_on_several_threads_are_each_answered(echo: Emulator) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(echo.invoke, range(8)))
    assert [result.value["event"] for result in results] == list(range(8))


def test_an_event_that_is_no_json_can_be_sent(echo: Emulator) -> None:
    result = echo.invoke(b"{")
    assert (result.status, result.error_code) == (400, "invalid_event")


def test_the_patience_of_a_caller_can_be_said(echo: Emulator) -> None:
    echo.scale_to_zero()
    result = echo.invoke(None, timeout_s=0.001)
    assert (result.status, result.error_code, result.start) == (504, "invocation.timeout", None)


def test_the_log_tells_of_the_platform_and_its_replicas(echo: Emulator) -> None:
    echo.invoke(None)
    assert "supervisor.listen.complete" in echo.log


def test_without_a_directory_of_weights_there_is_no_store(echo: Emulator) -> None:
    with pytest.raises(AdapterError, match="no embedded store"):
        _ = echo.store


def test_the_items_of_a_stream_are_its_value(count: Emulator) -> None:
    result = count.invoke({"to": 3})
    assert result.items == (0, 1, 2)
    assert result.value == [0, 1, 2]
    assert count.invoke({"to": 0}).value == []


def test_a_stream_that_fails_has_the_items_before_and_the_error(count: Emulator) -> None:
    result = count.invoke({"to": 3, "fails_at": 2})
    assert (result.status, result.items, result.error_code) == (200, (0, 1), "handler.failed")
    with pytest.raises(HandlerFailed, match="no further"):
        _ = result.value
    iterator = count.stream({"to": 3, "fails_at": 1})
    assert next(iterator) == 0
    with pytest.raises(HandlerFailed, match="no further"):
        next(iterator)


def test_the_items_of_a_stream_are_there_as_they_come(count: Emulator, tmp_path: Path) -> None:
    go = tmp_path / "go"
    iterator = count.stream({"to": 2, "waits_for": str(go)})
    assert next(iterator) == 0
    go.touch()
    assert list(iterator) == [1]


def test_a_handler_that_does_not_stream_gives_its_one_value(echo: Emulator) -> None:
    assert [item["event"] for item in echo.stream("once")] == ["once"]


def test_a_stream_that_is_closed_is_a_caller_who_hangs_up(count: Emulator, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    iterator = count.stream({"to": 2, "waits_for": str(tmp_path / "never"), "ends_with": str(ended)})
    assert next(iterator) == 0
    assert not ended.exists()
    iterator.close()
    until(ended.exists, what="the end of the handler")


SERVER_SENT = {"Accept": "text/event-stream"}


def test_server_sent_events_are_read_as_lines_are(count: Emulator) -> None:
    result = count.invoke({"to": 3}, headers=SERVER_SENT)
    assert result.headers["content-type"].startswith("text/event-stream")
    assert (result.items, result.value, result.error) == ((0, 1, 2), [0, 1, 2], None)
    assert list(count.stream({"to": 2}, headers=SERVER_SENT)) == [0, 1]


def test_server_sent_events_that_fail_have_the_items_before_and_the_error(count: Emulator) -> None:
    result = count.invoke({"to": 3, "fails_at": 2}, headers=SERVER_SENT)
    assert (result.status, result.items, result.error_code) == (200, (0, 1), "handler.failed")
    with pytest.raises(HandlerFailed, match="no further"):
        _ = result.value
    iterator = count.stream({"to": 3, "fails_at": 1}, headers=SERVER_SENT)
    assert next(iterator) == 0
    with pytest.raises(HandlerFailed, match="no further"):
        next(iterator)


def test_a_handler_that_tells_of_its_progress_has_its_value_or_its_error(emulator: StartEmulator, code: Path) -> None:
    run = emulator("kit_handlers:reports", directory=code)
    assert run.invoke(1, headers=SERVER_SENT).value == {"done": 1}
    assert list(run.stream(1, headers=SERVER_SENT)) == [{"done": 1}]
    assert run.invoke("fails", headers=SERVER_SENT).error_code == "handler.failed"
    with pytest.raises(HandlerFailed, match="half way"):
        list(run.stream("fails", headers=SERVER_SENT))


def _waiting(run: Emulator) -> bool:
    with urllib.request.urlopen(f"{run.url}/invocations") as answer:
        return any(each["state"] == "waiting" for each in json.load(answer))


def test_scaled_to_zero_while_a_caller_waits_the_old_replica_is_gone(
    emulator: StartEmulator, code: Path, tmp_path: Path
) -> None:
    run = emulator("kit_handlers:waits", directory=code, max_replicas=1)
    go = tmp_path / "go"
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(run.invoke, {"until": str(go)})
        old = until(lambda: next((each.id for each in run.replicas() if each.state == "busy"), None), what="a replica")
        waiting = pool.submit(run.invoke, {"until": str(tmp_path)})
        until(lambda: _waiting(run), what="a caller that waits")
        scaled = pool.submit(run.scale_to_zero)
        until(lambda: any(each.state == "stopping" for each in run.replicas()) or None, what="the end's begin")
        go.touch()
        scaled.result()
        assert not any(each.alive for each in run.replicas() if each.id == old)
        assert first.result().status == waiting.result().status == 200


def test_an_error_of_the_handler_is_in_the_result_and_raised_by_its_value(emulator: StartEmulator, code: Path) -> None:
    run = emulator("kit_handlers:fails", directory=code)
    result = run.invoke("a")
    assert (result.status, result.error_code) == (500, "handler.failed")
    with pytest.raises(HandlerFailed, match="KeyError"):
        _ = result.value
    # it is the handler that failed: the start did not
    assert run.cold_start().outcome == "ready"


def test_a_start_that_fails_raises_its_own_error(emulator: StartEmulator, code: Path) -> None:
    run = emulator("kit_handlers:broken", directory=code)
    with pytest.raises(LoadError, match="no such model"):
        run.cold_start()
    result = run.invoke(None)
    assert (result.status, result.error_code, result.start) == (503, "load", None)


def test_a_handler_that_is_not_there_is_named(emulator: StartEmulator, code: Path) -> None:
    with pytest.raises(HandlerNotFound, match="kit_handlers:nothing"):
        emulator("kit_handlers:nothing", directory=code).cold_start()


def test_weights_are_read_once_a_host(emulator: StartEmulator, code: Path, tmp_path: Path) -> None:
    """G1, for one who tests a handler."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"layers": 2}')
    save_file({"scores": np.zeros(1000, np.float32)}, model / "model.safetensors")
    run = emulator("kit_handlers:configured", directory=code, weights=model, link="1Gbps")
    assert run.invoke(None).value == {"layers": 2}
    assert run.reports[0].transfer.store_bytes == sum(path.stat().st_size for path in model.iterdir())
    assert run.cold_start().transfer.store_bytes == 0
    # the list was read by both starts, what is in it by the first alone
    requests = {key: served["requests"] for key, served in run.store["by_key"].items()}
    assert requests == {"models/": 2, "models/model/config.json": 1, "models/model/model.safetensors": 1}


def test_what_is_not_there_is_refused_at_once(emulator: StartEmulator, code: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such directory"):
        emulator("kit_handlers:configured", directory=code, weights=tmp_path / "nothing")
    with pytest.raises(ConfigurationError, match="nowhere is not there"):
        emulator("kit_handlers:echo", directory=tmp_path / "nowhere")


def test_handlers_are_found_where_the_tests_find_modules(
    emulator: StartEmulator, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(code)
    assert emulator("kit_handlers:echo").invoke(1).value["event"] == 1


@pytest.fixture
def short_directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where temporary files go, gone with the test; pytest's own directories are too long for a socket's path."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("TMPDIR", directory)
        yield Path(directory)


def test_a_stream_that_broke_off_is_not_taken_for_one_that_ended(code: Path, short_directory: Path) -> None:
    with Emulator("kit_handlers:count", directory=code) as run:
        iterator = run.stream({"to": 2, "waits_for": str(short_directory / "never")})
        assert next(iterator) == 0
        assert run._child is not None
        os.kill(run._child.pid, signal.SIGKILL)
        with pytest.raises(AdapterError, match="emulate ended with exit code -9|does not answer: IncompleteRead"):
            next(iterator)


def test_a_platform_that_was_closed_says_so(code: Path) -> None:
    with Emulator("kit_handlers:echo", directory=code, weights=None) as run:
        assert run.reports == []
        assert run.replicas() == []
    run.close()
    with pytest.raises(AdapterError, match="ended with exit code"):
        run.invoke(None)


def test_nothing_survives_tests_that_are_killed(code: Path, short_directory: Path) -> None:
    program = textwrap.dedent("""
        import os, signal, sys
        from adapter.testing import Emulator
        run = Emulator("kit_handlers:echo")
        worker = run.invoke(None).value["pid"]
        print(run._child.pid, worker, *(replica.pid for replica in run.replicas()), flush=True)
        signal.pause()
    """)
    tests = subprocess.Popen([sys.executable, "-c", program], cwd=code, stdout=subprocess.PIPE, text=True)
    assert tests.stdout is not None
    started = [int(word) for word in tests.stdout.readline().split()]
    assert len(started) == 3
    tests.send_signal(signal.SIGKILL)
    tests.wait()
    tests.stdout.close()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started), what=f"the end of {started}")
    assert list(short_directory.iterdir()) == []
