"""Modules built with their parameters on the meta device: neither memory nor time for values that are replaced anyway.

Buffers, which a constructor may compute and a checkpoint need not hold, are real.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from adapter.errors import LoadError

if TYPE_CHECKING:
    import torch

M = TypeVar("M", bound="torch.nn.Module")

_thread = threading.local()
"""`on_meta`: whether parameters that this thread registers become meta tensors."""
_MORE_THAN_VALUES = frozenset(
    (
        *("resize_", "resize_as_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_"),
        *("as_strided_", "detach_", "requires_grad_", "share_memory_", "rename_"),
        *("sparse_resize_", "sparse_resize_and_clear_"),
    )
)
"""Operations in place that change a tensor's shape or kind: those are done on meta tensors too."""


def build(factory: Callable[[], M], *, on_meta: bool = True) -> M:
    """The module that the factory makes.

    Args:
        factory: Makes the module; a module class will do.
        on_meta: Parameters become meta tensors when they are registered, so that their initialisation costs nothing.

    Raises:
        LoadError: The factory is no factory, or did not return a module. What it raises itself passes through.
    """
    import torch

    if isinstance(factory, torch.nn.Module):
        raise LoadError(
            f"a factory is wanted, not a {type(factory).__name__} that is built already: pass a function that makes "
            f"it, such as `lambda: {type(factory).__name__}(...)`"
        )
    try:
        if on_meta:
            _install()
            with _registering(on_meta=True), _initialisation_skipped():
                module = factory()
        else:
            with _registering(on_meta=False):
                module = factory()
    except (RuntimeError, NotImplementedError) as error:
        if on_meta and "meta" in str(error).lower():
            error.add_note(
                "The module is built with its parameters on the meta device (they have no values yet), and its "
                "constructor uses their values. Compute from them after loading, or build it plainly: "
                "`model = factory(); model.load_state_dict(dict(weights))`."
            )
        raise
    if not isinstance(module, torch.nn.Module):
        raise LoadError(
            f"the factory returned {type(module).__name__} where a torch.nn.Module is wanted; take single tensors as "
            "weights[name]"
        )
    if isinstance(module, torch.jit.ScriptModule):
        raise LoadError(
            f"{type(module).__name__} is a TorchScript module, whose parameters cannot be replaced: script or trace "
            "the module after it was filled"
        )
    return module


def while_filling() -> AbstractContextManager[None]:
    """What this thread assigns in here stays real, also inside a factory that is being built."""
    return _registering(on_meta=False)


def like(old: torch.Tensor, data: torch.Tensor, *, requires_grad: bool = False) -> torch.nn.Parameter:
    """A parameter of the same class and with the same attributes around other data."""
    import torch

    kind = type(old) if issubclass(type(old), torch.nn.Parameter) else torch.nn.Parameter
    new = cast("torch.nn.Parameter", torch.Tensor._make_subclass(kind, data, requires_grad))
    new.__dict__.update(old.__dict__)
    return new


@contextmanager
def _registering(*, on_meta: bool) -> Iterator[None]:
    before = getattr(_thread, "on_meta", False)
    _thread.on_meta = on_meta
    try:
        yield
    finally:
        _thread.on_meta = before


@cache
def _install() -> None:
    """Have torch tell of every parameter that is registered in this process, from now on.

    Once and for good: torch walks its hooks without a lock, and one that came and went would break that walk in a
    thread which builds a module at the same time.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    def on_registration(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter) -> None:
        if getattr(_thread, "on_meta", False):
            _make_meta(parameter, f"{type(module).__name__}.{name}")

    register_module_parameter_registration_hook(on_registration)


@contextmanager
def _initialisation_skipped() -> Iterator[None]:
    """Leave out what only changes values that are not there.

    It is no mere saving of microseconds: torch computes many operations on meta tensors in Python, and the first
    `normal_` of a process imports sympy and 800 other modules for that, in 1.5 to 3 s.
    """
    from torch.overrides import TorchFunctionMode

    class SkipOnMeta(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            named = kwargs or {}
            name = getattr(func, "__name__", "")
            if "out" in named:
                target = named["out"]
            elif name.endswith("_") and not name.endswith("__") and name not in _MORE_THAN_VALUES:
                target = named.get("tensor", args[0] if args else None)
            else:
                target = None
            return target if getattr(target, "is_meta", False) is True else func(*args, **named)

    with SkipOnMeta():
        yield


def _make_meta(parameter: torch.nn.Parameter, name: str) -> None:
    """Make the very object a meta parameter, so that whoever else holds it stays tied to it."""
    import torch

    plain = issubclass(type(parameter), torch.nn.Parameter) and parameter.layout == torch.strided
    if not plain or parameter.is_meta or torch.nn.parameter.is_lazy(parameter):
        return
    twin = like(parameter, torch.empty_like(parameter, device="meta"), requires_grad=parameter.requires_grad)
    try:
        torch.utils.swap_tensors(parameter, twin)  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        # such a view would keep initial values for ever: wrong answers without a word
        raise LoadError(
            f"{name} is used elsewhere (a view or a weak reference) before it is registered, so it cannot be built "
            "without values: register it first, or build the model plainly and call "
            "`model.load_state_dict(dict(weights))`"
        ) from error
