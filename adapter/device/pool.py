"""The devices of this process: each made once, when it is first asked for, and never used across a fork."""

from __future__ import annotations

import os
import re
import threading
import weakref
from typing import Any, ClassVar

from adapter.device.base import Device
from adapter.device.cpu import CpuDevice
from adapter.device.cuda import FORK_ADVICE, CudaDevice, CudaMemory
from adapter.errors import DeviceUnavailable, ForkedContext
from adapter.timeline import Timeline

_NAME = re.compile(r"auto|cpu|cuda(?::(\d{1,3}))?")


class DevicePool:
    """Devices by name, one of each; thread-safe. `DevicePool.instance()` is the one of this process.

    Asking what there is makes no context. It is made by the first `acquire`, by one of all the threads that ask.

    Args:
        cuda: `torch.cuda`, or a fake with its members; None takes torch's when it is first needed.
        memory: How memory on a GPU is had; torch's own by default.
    """

    _instance: ClassVar[DevicePool | None] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, cuda: Any = None, memory: CudaMemory | None = None) -> None:
        self._cuda = cuda
        self._memory = memory
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._made: dict[str, Device] = {"cpu": CpuDevice()}
        _renew_lock_after_fork(self)

    @classmethod
    def instance(cls) -> DevicePool:
        """The pool of this process, made at the first call."""
        with cls._instance_lock:
            if cls._instance is None:
                cls._instance = cls()
            return cls._instance

    def resolve(self, device: str) -> str:
        """The name of the device that is meant, without making a context: `auto` is the first GPU, else the CPU.

        Counting GPUs asks NVIDIA's management library, so that a fork stays possible. Source: torch.cuda.device_count.

        Raises:
            DeviceUnavailable: There is no such device.
        """
        match = _NAME.fullmatch(device)
        if match is None:
            raise DeviceUnavailable(
                f"device {device!r} is not known; use auto, cpu, cuda or cuda:0, cuda:1 …", device=device
            )
        if device == "cpu":
            return device
        count = self._count()
        if device == "auto":
            return "cuda:0" if count else "cpu"
        index = int(match[1] or 0)
        if index >= count:
            there = f"this machine has {count} CUDA devices that torch can use" if count else _why_none(self._cuda)
            raise DeviceUnavailable(f"{device} is not there: {there}", device=device, count=count)
        return f"cuda:{index}"

    def acquire(self, device: str = "auto", *, timeline: Timeline | None = None) -> Device:
        """The device; its context is made now if this is the first time (span `device.init`).

        A failed try leaves nothing behind: the next one begins anew.

        Raises:
            DeviceUnavailable: There is no such device, or its context could not be made.
            ForkedContext: A context was made before this process was forked.
        """
        name = self.resolve(device)
        with self._lock:
            if name != "cpu" and self._pid != os.getpid():
                self._leave_parent(name)
            if name not in self._made:
                with (timeline or Timeline("device")).span("device.init", "device", device=name):
                    self._made[name] = CudaDevice(int(name.partition(":")[2]), self._cuda, self._memory)
            return self._made[name]

    def made(self) -> tuple[str, ...]:
        """Names of the devices whose context was made, in order of their making."""
        return tuple(name for name in self._made if name != "cpu")

    def _leave_parent(self, name: str) -> None:
        if self.made():
            raise ForkedContext(
                f"{name} is asked for in process {os.getpid()}, whose parent {self._pid} had initialised "
                f"{', '.join(self.made())} before the fork: {FORK_ADVICE}",
                device=name,
            )
        self._pid = os.getpid()

    def _count(self) -> int:
        cuda = self._cuda
        if cuda is None:
            import torch

            cuda = torch.cuda
        return int(cuda.device_count())

    @classmethod
    def _renew_class_lock(cls) -> None:
        cls._instance_lock = threading.Lock()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()


def _renew_lock_after_fork(pool: DevicePool) -> None:
    """Another thread may hold the lock at the moment of a fork; nobody would ever release it in the child."""
    found = weakref.ref(pool)

    def renew() -> None:
        living = found()
        if living is not None:
            living._renew_lock()

    os.register_at_fork(after_in_child=renew)


os.register_at_fork(after_in_child=DevicePool._renew_class_lock)


def _why_none(cuda: Any) -> str:
    import torch

    if cuda is None and torch.version.cuda is None and torch.version.hip is None:
        return f"the installed torch {torch.__version__} was built without CUDA"
    return "torch finds no CUDA device (driver missing, or CUDA_VISIBLE_DEVICES hides them)"
