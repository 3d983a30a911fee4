"""G7: a replica knows nothing of the emulator that may run it, nor of how its report is drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.support.checkpoints import write_checkpoint
from tests.support.replicas import running_replica, write_module

STRANGERS = re.compile(r"adapter\.(emulator|report|testing)\b|adapter\.cli\.(?!serve|main|__main__)\w+")


def test_no_role_of_a_real_start_imports_the_emulator_or_the_drawing_of_reports(tmp_path: Path) -> None:
    """The interpreter itself tells every import of every role (they are forks of one process) on standard error."""
    source = """
        import sys
        from adapter import coldstart_handler

        @coldstart_handler(weights="s3://elsewhere/model/")
        def modules(weights, event):
            return sorted(sys.modules)

        modules.warm_up({})
    """
    write_module(tmp_path, "mine", source)
    write_checkpoint(tmp_path / "model" / "model.safetensors", 1000, 2)
    environment = {"PYTHONPROFILEIMPORTTIME": "1", "COLDSTART_WEIGHTS": (tmp_path / "model").as_uri()}
    with running_replica("mine:modules", tmp_path, environment=environment) as replica:
        replica.wait_ready()
        worker = replica.post({}).json()
        assert replica.get("/metrics").status == 200
        assert replica.get("/coldstart").status == 200
        replica.process.terminate()
        assert replica.end() == 0
    told = {line.rpartition("|")[2].strip() for line in replica.raw if line.startswith("import time:")}
    # each role is there by what only it needs
    roles = {
        "adapter.runtime.supervisor",
        "adapter.runtime.front",
        "adapter.platforms.http",
        "adapter.streaming.streamer",
        "adapter.runtime.worker",
    }
    assert roles <= told
    assert "adapter.runtime.worker" in worker, json.dumps(worker)[:200]
    assert [name for name in sorted(told | set(worker)) if STRANGERS.match(name)] == []
