"""Wraps a GPU function's handler so that a cold start costs what physics asks for.

The names below are loaded when they are first used: importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from adapter.device.pool import DevicePool
    from adapter.errors import AdapterError
    from adapter.handler import ColdstartHandler, HandlerKind, HandlerSpec, coldstart_handler
    from adapter.invocation import Cancelled, InvocationContext
    from adapter.settings import Settings
    from adapter.weights import Weights

__all__ = [
    "AdapterError",
    "Cancelled",
    "ColdstartHandler",
    "DevicePool",
    "HandlerKind",
    "HandlerSpec",
    "InvocationContext",
    "Settings",
    "Weights",
    "coldstart_handler",
]

_HOMES = {
    "AdapterError": "adapter.errors",
    "Cancelled": "adapter.invocation",
    "ColdstartHandler": "adapter.handler",
    "DevicePool": "adapter.device.pool",
    "HandlerKind": "adapter.handler",
    "HandlerSpec": "adapter.handler",
    "InvocationContext": "adapter.invocation",
    "Settings": "adapter.settings",
    "Weights": "adapter.weights",
    "coldstart_handler": "adapter.handler",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
