"""A replica that is to check its weights is not ready before it has."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import save_file

from adapter.errors import ChecksumMismatch
from tests.support.replicas import running_replica, write_module

MODEL = """
    from adapter import coldstart_handler

    @coldstart_handler(weights="{address}")
    def first(weights, event):
        return weights["weight"][0].item()
"""


def model(directory: Path, digest: str | None = None) -> Path:
    """Weights and their digests; a given digest is a wrong one."""
    place = directory / "weights"
    place.mkdir()
    save_file({"weight": torch.arange(1.0, 5.0)}, place / "model.safetensors")
    digest = digest or hashlib.sha256((place / "model.safetensors").read_bytes()).hexdigest()
    (place / "SHA256SUMS").write_text(f"{digest}  model.safetensors\n")
    write_module(directory, "model", MODEL.format(address=place))
    return place


def test_a_replica_whose_weights_fit_their_digests_gets_ready_after_it_was_checked(tmp_path: Path) -> None:
    model(tmp_path)
    with running_replica("model:first", tmp_path, environment={"COLDSTART_VERIFY": "sha256"}) as replica:
        replica.wait_ready()
        assert replica.post({}).json() == 1.0
        assert "weights.verify" in {stage["name"] for stage in replica.report()["stages"]}


def test_a_replica_whose_weights_do_not_fit_their_digests_never_gets_ready(tmp_path: Path) -> None:
    """The handler reads nothing at its start, so nothing else would stop it."""
    model(tmp_path, digest="0" * 64)
    with running_replica("model:first", tmp_path, environment={"COLDSTART_VERIFY": "sha256"}) as replica:
        assert replica.end(30) == ChecksumMismatch.exit_code
        assert replica.logged("replica.ready") is None
        failed = replica.logged("replica.start.failed")
    assert failed is not None
    assert failed["type"] == "ChecksumMismatch"
    assert "model.safetensors" in failed["message"]
