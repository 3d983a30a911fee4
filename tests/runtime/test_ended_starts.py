"""Every start leaves its report, also one that is ended from outside."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.support.replicas import running_replica, until, write_module
from tests.support.stores import running_store


@pytest.mark.parametrize("needs_weights", [True, False])
def test_a_start_that_sigterm_ends_leaves_its_report(tmp_path: Path, needs_weights: bool) -> None:
    """Also one that was ready while weights that it did not need still came in."""
    root = tmp_path / "store"
    (root / "models" / "m").mkdir(parents=True)
    save_file({"w": torch.zeros(8 << 20)}, root / "models" / "m" / "model.safetensors")
    loaded = 'weights["w"].sum().item()' if needs_weights else "0.0"
    source = f"""
        from adapter import coldstart_handler

        def load(weights):
            return {loaded}

        @coldstart_handler(weights="s3://models/m/", load=load)
        def total(total, event):
            return total
    """
    write_module(tmp_path, "model", source)
    file = tmp_path / "reports.jsonl"
    with (
        running_store(root, link="16Mbps") as store,
        running_replica("model:total", tmp_path, "--report", str(file), environment=store.environment) as replica,
    ):
        if needs_weights:
            until(lambda: store.bytes_sent() > 1 << 20, what="a part of the download")
            until(lambda: replica.get("/health/ready").json()["phase"] == "loading", what="the load")
        else:
            replica.wait_log("replica.start.complete")
        replica.kill("supervisor", signal.SIGTERM)
        assert replica.end() == (143 if needs_weights else 0)
    (line,) = file.read_text().splitlines()
    report = json.loads(line)
    if not needs_weights:
        assert (report["outcome"], report["error"]) == ("ready", None)
        return
    assert (report["outcome"], report["error"]["code"]) == ("failed", "draining")
    assert "ended by SIGTERM before it was ready: the replica was loading; " in report["error"]["message"]
    fields = report["error"]["fields"]
    assert 0 < fields["done_bytes"] < fields["total_bytes"]
    assert (fields["signal"], fields["phase"]) == ("SIGTERM", "loading")
    assert any(stage["name"] == "import.handler" for stage in report["stages"])
