from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3.session
import pytest
from moto.server import ThreadedMotoServer

from adapter.checkpoint.ranges import ByteRange
from adapter.cli.main import main
from adapter.storage.sources import open_source
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.reader import ObjectReader
from adapter.streaming.streamer import Streamer
from tests.support.checkpoints import MEBIBYTE, write_checkpoint
from tests.support.safetensors_files import safetensors_bytes
from tests.support.stores import CREDENTIALS
from tests.support.upload_store import UploadStore, upload_store

INDEX_NAME = "model.safetensors.index.json"
A = safetensors_bytes({"a": ("F32", [2], b"\1" * 8)})
B = safetensors_bytes({"b": ("U8", [3], b"abc")})
INDEX = json.dumps({"weight_map": {"a": "1.safetensors", "b": "unet/2.safetensors"}}).encode()
MODEL = {"1.safetensors": A, "unet/2.safetensors": B, INDEX_NAME: INDEX, "config.json": b"{}", "zero": b""}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A checkpoint that was fetched with `--to`, and beside it what is no part of it."""
    directory = tmp_path / "model"
    others = {"stray.safetensors": A, "pytorch_model.bin": b"x" * 100, ".coldstart-fetch.json": b"{}"}
    for name, content in {**MODEL, **others}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    return directory


def environment(endpoint: str) -> dict[str, str]:
    return {
        **CREDENTIALS,
        "AWS_ENDPOINT_URL_S3": endpoint,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[UploadStore]:
    with upload_store() as store:
        for name, value in environment(store.endpoint).items():
            monkeypatch.setenv(name, value)
        yield store


def pushed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main(["push", *arguments]) == 0, capsys.readouterr().err
    finally:
        signal.signal(signal.SIGTERM, before)
    first, *_, last = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert first["event"] == "push.started"
    assert last["event"] == "push.complete"
    value: dict[str, Any] = last
    return value


def test_the_checkpoint_and_its_files_are_there_the_index_last(
    store: UploadStore, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = pushed(capsys, str(model), "s3://b/m/")
    assert {key.removeprefix("b/m/"): each.data for key, each in store.objects.items()} == MODEL
    order = [key.removeprefix("b/m/") for _, key, _ in store.log]
    assert order[-1] == INDEX_NAME
    assert order.index("config.json") < order.index("1.safetensors")
    assert (done["objects"], done["sent_bytes"], done["there_bytes"]) == (5, sum(map(len, MODEL.values())), 0)


def test_a_second_push_sends_what_is_missing_or_changed(
    store: UploadStore, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(capsys, str(model), "s3://b/m")
    store.log.clear()
    del store.objects["b/m/unet/2.safetensors"]
    (model / "config.json").write_bytes(b"[]")
    assert pushed(capsys, str(model), "s3://b/m")["sent_bytes"] == len(B) + 2
    assert sorted(key for _, key, _ in store.log) == ["b/m/config.json", "b/m/unet/2.safetensors"]
    assert pushed(capsys, str(model), "s3://b/m", "--all")["sent_bytes"] == sum(map(len, MODEL.values()))


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("1.safetensors", A[:-1], "checkpoint.header"),
        ("1.safetensors", b"<html></html>", "checkpoint.not_safetensors"),
        ("unet/2.safetensors", A, "checkpoint.index"),
        ("unet/2.safetensors", None, "checkpoint.index"),
    ],
)
def test_what_no_start_would_take_is_not_sent(
    store: UploadStore, model: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes | None, code: str
) -> None:
    if content is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(content)
    assert main(["push", str(model), "s3://b/m/"]) >= 30
    assert f"coldstart: {code}: " in capsys.readouterr().err
    assert store.log == []


@pytest.mark.parametrize("address", ["/somewhere", "file:///somewhere", "s3:/b/m"])
def test_only_s3_stores_are_pushed_to(model: Path, capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert main(["push", str(model), address]) == 10
    assert "push sends to s3://bucket/prefix/ only" in capsys.readouterr().err


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_an_ended_push_aborts_what_it_began(tmp_path: Path, sent: signal.Signals) -> None:
    write_checkpoint(tmp_path / "m" / "model.safetensors", 6 * MEBIBYTE, 3)
    first_part, go_on = threading.Event(), threading.Event()

    def hold(kind: str) -> None:
        if kind == "part":
            first_part.set()
            assert go_on.wait(30)

    with upload_store(on_request=hold) as store:
        running = subprocess.Popen(
            [sys.executable, "-m", "adapter.cli", "push", str(tmp_path / "m"), "s3://b/m/"],
            env={**os.environ, **environment(store.endpoint), "COLDSTART_CONNECTIONS": "1"},
            stdout=subprocess.DEVNULL,
        )
        assert first_part.wait(30)
        running.send_signal(sent)
        go_on.set()
        assert running.wait(30) == 130
        assert not store.unfinished
        assert not store.objects
        assert store.kinds()[-1] == "abort"


def test_what_was_pushed_streams_back_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against another implementation of the protocol, with hard names."""
    model = tmp_path / "m"
    write_checkpoint(model / "a+b %2B é.safetensors", 5 * MEBIBYTE, 2)
    (model / "tokenizer.json").write_bytes(b"{}")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in environment(f"http://{host}:{port}").items():
            monkeypatch.setenv(name, value)
        boto3.session.Session().client("s3").create_bucket(Bucket="bucket")
        done = pushed(capsys, str(model), "s3://bucket/some where/")
        assert done["parts"] == 3  # two of a shard of 10 MiB, one of the tokenizer
        assert pushed(capsys, str(model), "s3://bucket/some where/")["parts"] <= 1  # it keeps no checksum of short ones
        address = "s3://bucket/some where/"
        options = StreamOptions(address=address, connections=2)
        with (
            open_source(address, connections=2) as source,
            Streamer(source, Cache(tmp_path / "cache"), options) as streamer,
        ):
            manifest = streamer.prepare()
            streamer.run()
    finally:
        server.stop()
    for entry in manifest:
        with ObjectReader(entry) as reader:
            assert reader.read(ByteRange(0, entry.size_bytes)) == (model / entry.name).read_bytes()
