"""Tensors are handed out as soon as their pages are there, and not before."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from torch import nn

from adapter.errors import AccessDenied, InitTimeout, MissingTensor, TensorMismatch, UnsupportedDtype
from adapter.storage.base import RangeRequest
from adapter.storage.memory import MemorySource
from adapter.streaming.cache import Cache
from adapter.streaming.options import StreamOptions
from adapter.streaming.streamer import Streamer
from adapter.streaming.waiting import Deadline
from adapter.timeline import Timeline
from adapter.weights import Weights
from tests.support.safetensors_files import safetensors_bytes

MEBIBYTE = 1 << 20
PART_BYTES = 1000
"""Far less than a page, so that a page can be there in part."""


@dataclass
class Gated:
    """A checkpoint whose bytes from `gate_bytes` on arrive only when the gate is opened."""

    content: bytes
    root: Path
    gate_bytes: int
    gate: threading.Event = field(default_factory=threading.Event)
    owned: ExitStack = field(default_factory=ExitStack)
    timeline: Timeline = field(default_factory=lambda: Timeline("worker"))
    refused: AccessDenied | None = None
    failed: list[Exception] = field(default_factory=list)

    def before_read(self, request: RangeRequest) -> None:
        if request.key == "model.safetensors" and request.start >= self.gate_bytes:
            self.gate.wait(60)
            if self.refused is not None:
                raise self.refused

    def open(self, deadline: Deadline | None = None) -> Weights:
        """The weights while the stream stands before the gate."""
        source = MemorySource({"model.safetensors": self.content, "config.json": b"{}"}, before_read=self.before_read)
        options = StreamOptions(address="memory://x", connections=2, part_bytes=PART_BYTES, chunk_bytes=PART_BYTES)
        self.streamer = self.owned.enter_context(Streamer(source, Cache(self.root), options))
        manifest = self.streamer.prepare()
        thread = threading.Thread(target=self._run)
        self.owned.callback(thread.join)
        self.owned.callback(self.gate.set)
        thread.start()

        def failure() -> AccessDenied | None:
            return next((error for error in self.failed if isinstance(error, AccessDenied)), None)

        weights = Weights.from_manifest(manifest, failure=failure, deadline=deadline, timeline=self.timeline)
        return self.owned.enter_context(weights)

    def settle(self) -> None:
        """Until everything before the gate has arrived."""
        until_s = time.monotonic() + 30
        while self.streamer.progress().done_bytes < self.gate_bytes:
            assert time.monotonic() < until_s
            time.sleep(0.001)

    def _run(self) -> None:
        try:
            self.streamer.run()
        except AccessDenied as error:
            self.failed.append(error)


# three tensors behind the first MiB, which is read at once with the header; the page of the gate holds two of them
SIZES = {"pad": MEBIBYTE, "first": 3 * 4096 + 1600, "second": 6000, "third": 2 * 4096}


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Gated]:
    """The gate stands right behind the last byte of `first`, inside a page."""
    content = safetensors_bytes({name: ("U8", [size], os.urandom(size)) for name, size in SIZES.items()})
    start = len(content) - sum(SIZES.values())
    stop_of_first = start + SIZES["pad"] + SIZES["first"]
    gate_bytes = -(-stop_of_first // PART_BYTES) * PART_BYTES
    assert stop_of_first <= gate_bytes
    assert gate_bytes // 4096 == stop_of_first // 4096, "the gate must be in the page where `first` ends"
    made = Gated(content, tmp_path / "cache", gate_bytes)
    with made.owned:
        yield made


def expected(gated: Gated, name: str) -> list[int]:
    """The tensor's bytes."""
    start = len(gated.content) - sum(SIZES.values())
    for each, size in SIZES.items():
        if each == name:
            return list(gated.content[start : start + size])
        start += size
    raise KeyError(name)


def test_a_tensor_is_there_while_later_ones_are_missing(gated: Gated) -> None:
    weights = gated.open()
    assert weights["pad"].tolist() == expected(gated, "pad")
    assert list(weights) == list(SIZES)
    assert weights.info("third").shape == (SIZES["third"],)
    assert weights.json("config.json") == {}
    assert not gated.gate.is_set()


def test_an_edit_in_place_beside_a_missing_neighbour_leaves_it_bit_exact(gated: Gated) -> None:
    """A8, D7: all bytes of `first` are there, but not all of its last page."""
    weights = gated.open()
    gated.settle()
    got: list[torch.Tensor] = []

    def take_and_edit() -> None:
        got.append(weights["first"].fill_(9))

    taker = threading.Thread(target=take_and_edit)
    taker.start()
    # a reader that gave the tensor away by its bytes would have edited the page by now
    taker.join(0.2)
    assert taker.is_alive()
    gated.gate.set()
    taker.join(30)
    assert got[0].tolist() == [9] * SIZES["first"]
    assert weights["second"].tolist() == expected(gated, "second")
    assert weights["third"].tolist() == expected(gated, "third")
    assert weights["first"].tolist() == [9] * SIZES["first"]


def test_every_wait_that_is_worth_it_is_a_span(gated: Gated) -> None:
    weights = gated.open()
    threading.Timer(0.05, gated.gate.set).start()
    weights["third"]
    waits = [span for span in gated.timeline.spans() if span.name == "weights.wait" and "tensor" in span.fields]
    assert waits[-1].fields == {"file": "model.safetensors", "tensor": "third", "bytes": SIZES["third"]}
    assert waits[-1].seconds > 0.001


def test_a_failed_stream_ends_the_wait_with_its_own_error(gated: Gated) -> None:
    """A6."""
    weights = gated.open()
    weights["pad"]
    gated.refused = AccessDenied("the store said no", key="model.safetensors")
    gated.gate.set()
    with pytest.raises(AccessDenied, match="the store said no"):
        weights["third"]
    assert weights["pad"].tolist() == expected(gated, "pad")


def test_a_deadline_ends_the_wait_with_what_is_missing(gated: Gated) -> None:
    weights = gated.open(Deadline.after(0.3))
    with pytest.raises(InitTimeout, match=r"model\.safetensors \(\d+ of \d+ bytes are there\)"):
        weights["third"]


def test_what_does_not_fit_fails_before_the_data_is_there(gated: Gated) -> None:
    """S-25, A6: headers are enough to tell."""
    weights = gated.open()
    with pytest.raises(MissingTensor):
        weights.into(lambda: nn.Linear(2, 2))
    with pytest.raises(TensorMismatch):
        weights.into(lambda: nn.ParameterDict({name: torch.empty(1) for name in SIZES}))
    assert not gated.gate.is_set()


def test_an_unsupported_dtype_fails_before_the_data_is_there(tmp_path: Path) -> None:
    """S-07."""
    content = safetensors_bytes({"a": ("U8", [2 * MEBIBYTE], bytes(2 * MEBIBYTE)), "b": ("F6_E3M2", [4], bytes(3))})
    gated = Gated(content, tmp_path / "cache", MEBIBYTE)
    with gated.owned:
        weights = gated.open()
        with pytest.raises(UnsupportedDtype, match="F6_E3M2"):
            weights["a"]
        assert not gated.gate.is_set()


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, size in SIZES.items():
            self.register_buffer(name, torch.zeros(size, dtype=torch.uint8))


def test_a_module_is_filled_while_its_tensors_arrive(gated: Gated) -> None:
    weights = gated.open()
    threading.Timer(0.05, gated.gate.set).start()
    model = weights.into(Parts)
    for name in SIZES:
        assert model.get_buffer(name).tolist() == expected(gated, name)
    assert weights.use_order().tensors == tuple(SIZES)


def test_path_and_directory_wait_for_the_final_name(gated: Gated) -> None:
    weights = gated.open()
    threading.Timer(0.05, gated.gate.set).start()
    path = weights.path("model.safetensors")
    assert path.name == "model.safetensors"
    assert path.read_bytes() == gated.content
    assert (weights.directory() / "config.json").read_bytes() == b"{}"
