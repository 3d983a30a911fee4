"""A6: every kind of failed start ends at once, with its own type, message and exit code."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from adapter import errors
from tests.support.replicas import Answer, Replica, running_replica, until, write_module
from tests.support.scripted_store import error, scripted_store
from tests.support.stores import CREDENTIALS, Store, running_store

MODEL = """
    import torch
    from adapter import coldstart_handler

    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(4))

    def load(weights):
        return weights.into(Scale)

    @coldstart_handler(weights="s3://models/m/", load=load)
    def scale(model, event):
        return (model.weight * event["by"]).tolist()
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    root = tmp_path / "store"
    (root / "models" / "m").mkdir(parents=True)
    save_file({"weight": torch.arange(4.0)}, root / "models" / "m" / "model.safetensors")
    with running_store(root) as running:
        yield running


def fail(target: str, directory: Path, store: Store | None = None) -> tuple[Replica, int]:
    environment = store.environment if store is not None else {}
    with running_replica(target, directory, environment=environment) as replica:
        code = replica.end(30)
        return replica, code


def check(replica: Replica, code: int, kind: type[errors.AdapterError], *said: str) -> None:
    line = replica.logged("replica.start.failed")
    assert line is not None, "\n".join(replica.raw)
    assert (line["type"], code) == (kind.__name__, kind.exit_code), line
    for word in said:
        assert word in line["message"]


def nothing_published(directory: Path) -> bool:
    objects = directory / "cache" / "v1" / "objects"
    return not list(objects.rglob("*.safetensors")) if objects.exists() else True


def test_weights_that_are_not_there(tmp_path: Path, store: Store) -> None:
    write_module(tmp_path, "model", MODEL.replace("/m/", "/absent/"))
    replica, code = fail("model:scale", tmp_path, store)
    check(replica, code, errors.ObjectNotFound, "models", "absent")


def test_weights_that_may_not_be_read(tmp_path: Path) -> None:
    write_module(tmp_path, "model", MODEL)
    with scripted_store(lambda asked: error(403, "AccessDenied")) as closed:
        environment = {**CREDENTIALS, "AWS_ENDPOINT_URL_S3": closed.endpoint, "AWS_DEFAULT_REGION": "us-east-1"}
        with running_replica("model:scale", tmp_path, environment=environment) as replica:
            code = replica.end(30)
    check(replica, code, errors.AccessDenied, "models", "m/")
    assert "secret-of-the-store" not in "\n".join(replica.raw)
    assert nothing_published(tmp_path)


def test_a_bad_header_names_file_and_rule_and_publishes_nothing(tmp_path: Path, store: Store) -> None:
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 16]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(16)
    store.put("models/m/model.safetensors", content)
    write_module(tmp_path, "model", MODEL)
    replica, code = fail("model:scale", tmp_path, store)
    check(replica, code, errors.HeaderError, "model.safetensors", "weight")
    assert nothing_published(tmp_path)


def test_an_error_page_under_the_name_of_weights(tmp_path: Path, store: Store) -> None:
    store.put("models/m/model.safetensors", b"<!DOCTYPE html><html><body>404</body></html>")
    write_module(tmp_path, "model", MODEL)
    replica, code = fail("model:scale", tmp_path, store)
    check(replica, code, errors.NotSafetensors, "model.safetensors", "HTML")
    assert nothing_published(tmp_path)


def test_a_tensor_the_model_wants_is_missing(tmp_path: Path, store: Store) -> None:
    save_file({"other": torch.zeros(4)}, store.root / "models" / "m" / "model.safetensors")
    write_module(tmp_path, "model", MODEL)
    replica, code = fail("model:scale", tmp_path, store)
    check(replica, code, errors.MissingTensor, "weight")


def test_a_store_that_is_not_there(tmp_path: Path, store: Store) -> None:
    write_module(tmp_path, "model", MODEL)
    environment = {**store.environment, "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    with running_replica("model:scale", tmp_path, environment=environment) as replica:
        code = replica.end(60)
    check(replica, code, errors.ConnectionFailed, "127.0.0.1:9")


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    replica, code = fail("nowhere:scale", tmp_path)
    check(replica, code, errors.HandlerImportError, "nowhere")


def test_a_module_that_raises_at_import(tmp_path: Path) -> None:
    write_module(tmp_path, "broken", "raise RuntimeError('no licence')\n")
    replica, code = fail("broken:scale", tmp_path)
    check(replica, code, errors.HandlerImportError, "no licence", "broken.py:1")


def test_a_module_that_exits_at_import(tmp_path: Path) -> None:
    write_module(tmp_path, "broken", "import sys\nsys.exit(3)\n")
    replica, code = fail("broken:scale", tmp_path)
    check(replica, code, errors.HandlerImportError, "sys.exit(3)")


def test_a_handler_that_is_not_in_its_module(tmp_path: Path) -> None:
    write_module(tmp_path, "model", MODEL)
    replica, code = fail("model:scales", tmp_path)
    check(replica, code, errors.HandlerNotFound, "scales", "scale")


def test_a_load_that_raises(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "model",
        """
        from adapter import coldstart_handler
        def load():
            raise ValueError("no such layer")
        @coldstart_handler(load=load)
        def answer(model, event):
            return 1
        """,
    )
    replica, code = fail("model:answer", tmp_path)
    check(replica, code, errors.LoadError, "no such layer", "model.py:4")


def test_a_warm_up_that_raises(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "model",
        """
        from adapter import coldstart_handler
        @coldstart_handler
        def answer(event):
            return event["a"]
        answer.warm_up({"b": 1})
        """,
    )
    replica, code = fail("model:answer", tmp_path)
    check(replica, code, errors.WarmUpError, "warm_up[0]", "'a'")


def test_a_start_that_takes_too_long_names_its_stage(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "model",
        """
        import time
        from adapter import coldstart_handler
        def load():
            time.sleep(60)
        @coldstart_handler(load=load, init_timeout_s=1.5)
        def answer(model, event):
            return 1
        """,
    )
    replica, code = fail("model:answer", tmp_path)
    check(replica, code, errors.InitTimeout, "1.5 s", "loading")


def test_callers_who_wait_for_a_failing_start_get_its_error(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        "model",
        """
        import os, time
        from adapter import coldstart_handler
        def load():
            while not os.path.exists("go"):
                time.sleep(0.01)
            raise ValueError("no such layer")
        @coldstart_handler(load=load)
        def answer(model, event):
            return 1
        """,
    )
    with running_replica("model:answer", tmp_path) as replica:
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(replica.post({})))
        replica.wait_log("supervisor.listen.complete")
        asking.start()
        until(lambda: b"coldstart_queue" in replica.get("/metrics").body or None)
        (tmp_path / "go").touch()
        asking.join(20)
        code = replica.end()
    check(replica, code, errors.LoadError)
    assert answers[0].status >= 500
    assert answers[0].json()["error"]["code"] == "load"
