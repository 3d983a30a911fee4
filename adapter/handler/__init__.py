"""`@coldstart_handler`: how a user's function or class becomes a handler, and how a handler is found by name."""

from adapter.handler.decorated import ColdstartHandler
from adapter.handler.decorator import coldstart_handler
from adapter.handler.find import find_handler, split_target
from adapter.handler.spec import HandlerKind, HandlerOptions, HandlerSpec

__all__ = [
    "ColdstartHandler",
    "HandlerKind",
    "HandlerOptions",
    "HandlerSpec",
    "coldstart_handler",
    "find_handler",
    "split_target",
]
