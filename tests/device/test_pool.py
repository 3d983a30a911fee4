"""Devices are made once, when first asked for, and never across a fork (S-26)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from adapter.device.base import Device
from adapter.device.pool import DevicePool
from adapter.errors import DeviceUnavailable, ForkedContext
from adapter.timeline import Timeline
from tests.support.fake_cuda import FakeCuda


def in_child(run: Callable[[], str]) -> str:
    """What a forked child says."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            try:
                said = run()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def test_there_is_one_pool_in_a_process() -> None:
    assert DevicePool.instance() is DevicePool.instance()


def test_asking_what_there_is_makes_no_context() -> None:
    """S-26."""
    cuda = FakeCuda(2)
    pool = DevicePool(cuda)
    assert [pool.resolve(name) for name in ("auto", "cuda", "cuda:1", "cpu")] == ["cuda:0", "cuda:0", "cuda:1", "cpu"]
    assert pool.acquire("cpu").name == "cpu"
    assert set(cuda.calls) == {"device_count"}
    assert pool.made() == ()


def test_the_cpu_needs_not_even_a_look_at_cuda() -> None:
    cuda = FakeCuda()
    DevicePool(cuda).acquire("cpu")
    assert cuda.calls == []


def test_without_a_gpu_auto_is_the_cpu() -> None:
    assert DevicePool(FakeCuda(0)).acquire("auto").name == "cpu"


@pytest.mark.parametrize("name", ["cuda:2", "cuda:17"])
def test_a_device_that_is_not_there_is_named_with_how_many_there_are(name: str) -> None:
    with pytest.raises(DeviceUnavailable, match=f"{name} is not there: this machine has 2 CUDA devices"):
        DevicePool(FakeCuda(2)).acquire(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "CUDA", "", "cuda:-1", "mps", "cpu:0"])
def test_a_name_that_is_none_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(DeviceUnavailable, match="use auto, cpu, cuda or cuda:0"):
        DevicePool(FakeCuda()).resolve(name)


@pytest.mark.skipif(torch.version.cuda is not None, reason="torch was built with CUDA")
def test_a_torch_without_cuda_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="was built without CUDA"):
        DevicePool().acquire("cuda")


def test_twenty_threads_that_ask_at_once_get_one_device() -> None:
    cuda = FakeCuda()
    pool = DevicePool(cuda)
    timeline = Timeline("worker")
    start = threading.Barrier(20)
    got: list[Device] = []

    def ask() -> None:
        start.wait()
        got.append(pool.acquire("cuda", timeline=timeline))

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 20
    assert len(set(map(id, got))) == 1
    assert cuda.calls.count("init") == 1
    assert [(span.name, span.lane) for span in timeline.spans()] == [("device.init", "device")]


def test_a_failed_try_leaves_nothing_behind() -> None:
    cuda = FakeCuda(failures=[RuntimeError("CUDA error: all CUDA-capable devices are busy\nmore")])
    pool = DevicePool(cuda)
    with pytest.raises(DeviceUnavailable, match=r"cuda:0 could not be initialised: CUDA error: all .* are busy$"):
        pool.acquire()
    assert pool.made() == ()
    assert pool.acquire().name == "cuda:0"
    assert pool.made() == ("cuda:0",)


def test_a_child_of_a_process_without_context_may_make_one() -> None:
    """S-26."""
    pool = DevicePool(FakeCuda())
    pool.resolve("auto")
    assert in_child(lambda: pool.acquire("cuda").name) == "cuda:0"


def test_a_child_of_a_process_with_a_context_is_refused_with_advice() -> None:
    """S-26."""
    pool = DevicePool(FakeCuda(2))
    device = pool.acquire("cuda")
    for said in (in_child(lambda: pool.acquire("cuda").name), in_child(lambda: pool.acquire("cuda:1").name)):
        assert said.startswith("ForkedContext: ")
        assert "had initialised cuda:0 before the fork" in said
        assert "spawn" in said
    assert in_child(lambda: str(device.describe())).startswith("ForkedContext: cuda:0 was initialised in process")
    assert in_child(lambda: pool.acquire("cpu").name) == "cpu"
    assert pool.acquire("cuda") is device


def test_torchs_own_refusal_after_a_fork_is_told_with_advice() -> None:
    """The context was made past the pool."""
    refusal = RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, …")
    with pytest.raises(ForkedContext, match="spawn"):
        DevicePool(FakeCuda(failures=[refusal])).acquire("cuda")


def test_a_fork_while_another_thread_makes_a_device_does_not_hang_the_child() -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(FakeCuda):
        def init(self) -> None:
            inside.set()
            go_on.wait(20)

    pool = DevicePool(Slow())
    thread = threading.Thread(target=lambda: pool.acquire("cuda"))
    thread.start()
    inside.wait(20)
    said = in_child(lambda: pool.acquire("cpu").name)
    go_on.set()
    thread.join()
    assert said == "cpu"


def test_importing_the_pool_and_the_weights_loads_no_framework() -> None:
    """S-26: no CUDA call can come from an import that does not even load torch."""
    code = "import sys, adapter.device.pool, adapter.weights; print('torch' in sys.modules, 'boto3' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
