"""A replica that is told to fetch some tensors only."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from adapter.errors import ConfigurationError
from tests.support.replicas import running_replica, write_module

MODEL = """
    from adapter import coldstart_handler

    @coldstart_handler(weights="{address}")
    def held(weights, event):
        return {{name: list(tensor.shape) for name, tensor in weights.items()}}
"""


def model(directory: Path) -> None:
    place = directory / "weights"
    place.mkdir()
    save_file({"a": torch.zeros(1000, 1000), "b": torch.zeros(8, 8), "c": torch.zeros(4)}, place / "model.safetensors")
    write_module(directory, "model", MODEL.format(address=place))


def test_a_replica_holds_what_it_is_told_to_fetch(tmp_path: Path) -> None:
    """B7."""
    model(tmp_path)
    environment = {"COLDSTART_ONLY_TENSORS": "b,a[10:20]"}
    with running_replica("model:held", tmp_path, environment=environment) as replica:
        replica.wait_ready()
        assert replica.post({}).json() == {"a": [10, 1000], "b": [8, 8]}
        stream = next(stage for stage in replica.report()["stages"] if stage["name"] == "weights.stream")
        assert stage_bytes(stream) < 200_000


def stage_bytes(stage: dict[str, object]) -> int:
    """Bytes that a stream read of the store."""
    fields = stage["fields"]
    assert isinstance(fields, dict)
    return int(fields["bytes"])


def test_a_replica_that_is_to_check_whole_files_as_well_is_told_so(tmp_path: Path) -> None:
    model(tmp_path)
    environment = {"COLDSTART_SKIP_TENSORS": "a", "COLDSTART_VERIFY": "crc"}
    with running_replica("model:held", tmp_path, environment=environment) as replica:
        assert replica.end(30) == ConfigurationError.exit_code
