"""The public test kit: a platform for tests of a handler, and the fakes that this project tests itself with.

With the package installed, pytest has the fixture `emulator` (`adapter.testing.plugin`):

    def test_embed(emulator: StartEmulator) -> None:
        run = emulator("my_handler:embed", weights="weights/minilm")
        assert run.invoke({"text": "a"}).start == "cold"
"""

from __future__ import annotations

from adapter.init_report import InitReport
from adapter.storage.memory import (
    ChangeObject,
    CutRead,
    DenyListing,
    FailRead,
    Fault,
    MemorySource,
    ReadRecord,
    register_memory,
)
from adapter.testing.clock import ManualClock
from adapter.testing.emulator import Emulator, Options, ReplicaState, StartEmulator
from adapter.testing.result import Result

__all__ = [
    "ChangeObject",
    "CutRead",
    "DenyListing",
    "Emulator",
    "FailRead",
    "Fault",
    "InitReport",
    "ManualClock",
    "MemorySource",
    "Options",
    "ReadRecord",
    "ReplicaState",
    "Result",
    "StartEmulator",
    "register_memory",
]
