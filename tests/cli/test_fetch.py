from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adapter.cli.main import main
from adapter.cli.plain_text import printable, readable_bytes, readable_seconds, table
from adapter.cli.progress import Speed
from adapter.errors import ObjectNotFound
from adapter.storage.files import FileSource
from adapter.storage.memory import FailRead, MemorySource, register_memory
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from tests.support.checkpoints import MEBIBYTE, write_checkpoint
from tests.support.safetensors_files import safetensors_bytes
from tests.support.stores import Store, running_store

INDEX_NAME = "model.safetensors.index.json"
A = safetensors_bytes({"a": ("F32", [2], b"\1" * 8)})
B = safetensors_bytes({"b": ("U8", [3], b"abc")})
INDEX = json.dumps({"weight_map": {"a": "1.safetensors", "b": "unet/2.safetensors"}}).encode()
MODEL = {"1.safetensors": A, "unet/2.safetensors": B, INDEX_NAME: INDEX, "config.json": b"{}", "empty": b""}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint, and beside it what is not streamed."""
    directory = tmp_path / "store"
    for name, content in {**MODEL, "stray.safetensors": A, "pytorch_model.bin": b"x" * 100}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def fetched(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The last line of a fetch that went well."""
    assert main(["fetch", *arguments]) == 0, capsys.readouterr().err
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "fetch.started"
    assert lines[-1]["event"] == "fetch.complete"
    value: dict[str, Any] = lines[-1]
    return value


def files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_a_filled_cache_is_what_a_start_needs(model: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Pre-baked: on another boot too, and without a byte from the store."""
    done = fetched(capsys, str(model), "--cache-dir", str(target))
    assert done["fetched_bytes"] == sum(map(len, MODEL.values()))
    cache = Cache(target, boot_id="another")
    with FileSource(model) as source, Streamer(source, cache, StreamOptions(address=str(model))) as streamer:
        streamer.prepare()
        progress = streamer.run()
    assert (progress.from_cache_bytes, progress.requests) == (done["fetched_bytes"], 0)


def test_the_cache_of_the_environment_is_filled(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLDSTART_CACHE_DIR", str(target))
    assert fetched(capsys, str(model))["to"] == str(target)
    assert (target / "v1").is_dir()


def test_a_directory_gets_the_files_under_their_own_names(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is streamed and nothing else; any user of an image may read it."""
    fetched(capsys, str(model), "--to", str(target))
    found = files(target)
    assert {name: found[name] for name in found if not name.startswith(".coldstart")} == MODEL
    assert set(found) - set(MODEL) == {".coldstart-fetch.json"}
    assert {(target / name).stat().st_mode & 0o777 for name in MODEL} == {0o644}


def test_a_second_fetch_reads_nothing_and_a_third_only_what_changed(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched(capsys, str(model), "--to", str(target))
    again = fetched(capsys, str(model), "--to", str(target))
    assert (again["fetched_bytes"], again["requests"]) == (0, 0)
    inode = (target / "1.safetensors").stat().st_ino
    changed = safetensors_bytes({"b": ("U8", [4], b"xyzw")})
    (model / "unet/2.safetensors").write_bytes(changed)
    assert fetched(capsys, str(model), "--to", str(target))["fetched_bytes"] == len(changed)
    assert (target / "unet/2.safetensors").read_bytes() == changed
    assert (target / "1.safetensors").stat().st_ino == inode


def test_what_was_edited_or_removed_locally_is_fetched_again(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetched(capsys, str(model), "--to", str(target))
    (target / "1.safetensors").write_bytes(b"y" * len(A))
    (target / "config.json").unlink()
    done = fetched(capsys, str(model), "--to", str(target))
    assert done["fetched_bytes"] == len(A) + len(MODEL["config.json"])
    assert (target / "1.safetensors").read_bytes() == A


def test_a_failed_fetch_puts_nothing_under_a_final_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    gone = FailRead("unet/2.safetensors", ObjectNotFound("it is gone", key="unet/2.safetensors"), times=9)
    memory = MemorySource(MODEL, [gone])
    assert (
        main(["fetch", register_memory(request.node.name, memory), "--to", str(tmp_path)]) == ObjectNotFound.exit_code
    )
    assert "it is gone" in capsys.readouterr().err
    assert not [name for name in files(tmp_path) if not name.startswith(".coldstart")]


def test_two_fetches_into_one_directory_do_not_meet(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target.mkdir()
    descriptor = os.open(target, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert main(["fetch", str(model), "--to", str(target)]) == 40
    assert "another process fetches into" in capsys.readouterr().err
    os.close(descriptor)
    fetched(capsys, str(model), "--to", str(target))


def test_a_directory_in_a_files_place_is_named(model: Path, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target / "config.json").mkdir(parents=True)
    assert main(["fetch", str(model), "--to", str(target)]) == 40
    assert f"{target}/config.json cannot be written" in capsys.readouterr().err


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with running_store(tmp_path_factory.mktemp("store"), link="200Mbps") as store:
        write_checkpoint(store.root / "b/m/model.safetensors", 8 * MEBIBYTE, 3)
        yield store


def child(store: Store, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "adapter.cli", "fetch", "s3://b/m/", *arguments],
        env={**os.environ, **store.environment, "COLDSTART_CONNECTIONS": "2"},
        **options,
    )


def until_sent(store: Store, count: int) -> None:
    end_s = time.monotonic() + 30
    while store.bytes_sent() < count:
        assert time.monotonic() < end_s, "nothing was sent"
        time.sleep(0.01)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_fetch_that_was_ended_is_gone_on_with(slow: Store, tmp_path: Path, sent: signal.Signals) -> None:
    """S-20: what came is kept; at most a MiB a connection is read twice, and what the store had sent ahead."""
    slow.reset()
    first = child(slow, "--to", str(tmp_path), stdout=subprocess.DEVNULL)
    until_sent(slow, 10 * MEBIBYTE)
    first.send_signal(sent)
    assert first.wait(20) == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[sent]
    assert not (tmp_path / "model.safetensors").exists()
    second = child(slow, "--to", str(tmp_path), stdout=subprocess.PIPE)
    out, _ = second.communicate(timeout=60)
    done = json.loads(out.splitlines()[-1])
    assert second.returncode == 0
    assert done["from_cache_bytes"] >= 4 * MEBIBYTE
    assert done["fetched_bytes"] + done["from_cache_bytes"] == done_size(slow)
    assert (tmp_path / "model.safetensors").read_bytes() == (slow.root / "b/m/model.safetensors").read_bytes()
    assert sorted(os.listdir(tmp_path)) == [".coldstart-fetch.json", "model.safetensors"]


def done_size(store: Store) -> int:
    return (store.root / "b/m/model.safetensors").stat().st_size


def test_elsewhere_than_on_a_terminal_progress_is_json_lines(slow: Store, tmp_path: Path) -> None:
    running = child(slow, "--cache-dir", str(tmp_path), stdout=subprocess.PIPE)
    out, _ = running.communicate(timeout=60)
    lines = [json.loads(line) for line in out.splitlines()]
    assert [lines[0]["event"], lines[-1]["event"]] == ["fetch.started", "fetch.complete"]
    between = [line for line in lines if line["event"] == "fetch.progress"]
    assert between
    assert all(0 <= line["done_bytes"] <= line["total_bytes"] == done_size(slow) for line in between)


def test_on_a_terminal_there_is_a_bar_and_one_sentence(slow: Store, tmp_path: Path) -> None:
    main_end, terminal = pty.openpty()
    running = child(slow, "--to", str(tmp_path), stdout=terminal, stdin=terminal, stderr=terminal)
    os.close(terminal)
    said = b""
    while True:
        try:
            said += os.read(main_end, 4096)
        except OSError:  # EIO: the child has closed its end
            break
    os.close(main_end)
    assert running.wait(30) == 0
    assert b"fetch.started" not in said
    assert b"MB/s" in said
    assert b"s3://b/m/: fetched 25.2 MB in" in said.replace(b"\r\n", b"\n").replace(b"\n", b" ")


def test_speed_is_that_of_the_last_seconds() -> None:
    speed = Speed(window_s=10)
    assert speed.bytes_per_s == 0
    assert speed.remaining_s(100) is None
    for second in range(60):
        speed.add(second, 100 * second)
    for second in range(60, 90):
        speed.add(second, 6000 + (second - 60))
    assert speed.bytes_per_s == pytest.approx(1)
    assert speed.remaining_s(50) == pytest.approx(50)


def test_numbers_and_names_for_people() -> None:
    assert [readable_bytes(n) for n in (0, 999, 1000, 99_949, 99_950, 999_499, 10**9, 5 * 10**12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "99.9 kB",
        "100 kB",
        "999 kB",
        "1.0 GB",
        "5.0 TB",
    ]
    assert [readable_seconds(s) for s in (0.2, 59.4, 61, 3723)] == ["0 s", "59 s", "1:01", "1:02:03"]
    assert printable("a\x1bb") == "'a\\x1bb'"
    assert table([("a", "bb"), ("ccc", "d")], frozenset({1})) == ["a    bb", "ccc   d"]


def test_a_cache_that_cannot_be_written_is_an_error_and_no_other_place_is_taken(
    model: Path, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-23: what is baked into an image must be where it was asked to be."""
    target.write_bytes(b"no directory")
    assert main(["fetch", str(model), "--cache-dir", str(target)]) == 42
    assert f"{target} is no directory" in capsys.readouterr().err
