"""Modules filled with tensors of a checkpoint, by name.

Filling goes through torch's own `load_state_dict(assign=True)`, so that a module's hooks for older checkpoints work.

Source: torch.nn.Module.load_state_dict; S-24 and S-25 of the reported cases.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from logging import getLogger
from typing import TYPE_CHECKING, Any

from adapter.device.meta import like, while_filling
from adapter.device.names import Difference, mismatch_error
from adapter.device.tensors import as_bytes
from adapter.errors import MissingTensor, TensorMismatch

if TYPE_CHECKING:
    import torch

_logger = getLogger("adapter.weights")
_PLAIN_DEPTH = 4
"""How deep lists and dicts in a module's plain attributes are searched for tensors."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the checkpoint, as far as the header tells."""

    file_name: str
    """Its name in the checkpoint; the model may know it by another."""
    shape: tuple[int, ...]
    """As torch has it."""


def fill(
    module: torch.nn.Module,
    stored: Mapping[str, Stored],
    place: Callable[[str], torch.Tensor],
    *,
    finish: Callable[[], None],
    strict: bool = True,
) -> None:
    """Give the module the checkpoint's tensors in place of its own; after that no parameter needs a gradient.

    Args:
        module: Fresh from `build`.
        stored: Name in the model → what the checkpoint holds, in the order in which it arrives.
        place: Gives the tensor of that name in the checkpoint, waiting for it.
        finish: Waits until all that was placed may be used.
        strict: Refuse tensors that are missing or left over. A wrong shape and a checkpoint that fits nowhere are
            always refused.

    Raises:
        MissingTensor: The model wants a tensor that the checkpoint lacks, or has one without values.
        TensorMismatch: Left-over tensors, wrong shapes, or different values for one tied tensor.
    """
    slots = _slots(module)
    _refuse_lazy(slots)
    custom = _loads_its_own_way(module)
    found = _compare(module, slots, stored)
    if not custom:
        _judge(found, strict=strict)
        _refuse_left_on_meta(module, except_for=slots)
    with while_filling():
        values = {name: place(stored[name].file_name) for name in stored if name in slots or custom}
        finish()
        state = _state(slots, values, strict=strict)
        module.requires_grad_(False)
        try:
            left = module.load_state_dict(state, strict=False, assign=True)
        except RuntimeError as error:
            raise TensorMismatch(f"{type(module).__name__} does not take these tensors: {error}") from error
        if custom:
            _judge(found.with_verdict(left.missing_keys, left.unexpected_keys), strict=strict)
        _renew_references(module, {id(old): state[name] for name, old in slots.items() if name in state})
    _refuse_left_on_meta(module)


def move_the_rest(module: torch.nn.Module, device: str) -> None:
    """Put what was not in the checkpoint, such as computed buffers, where its tensors are."""
    import torch

    there = torch.device(device)
    if any(tensor.device != there for tensors in (module.parameters(), module.buffers()) for tensor in tensors):
        module.to(there)


def _judge(found: Difference, *, strict: bool) -> None:
    if found.fits:
        return
    if strict or found.misshapen or found.nothing_fits:
        raise mismatch_error(found)
    _logger.warning("loading what fits: %s", found.text())


# -- filling ----------------------------------------------------------------------------------------------------------


def _slots(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Every parameter and persistent buffer by its full name; one object under each of its names."""
    import torch

    state = module.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}


def _ties(slots: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names that belong together: of one object, or of several objects around the very same data."""
    groups: dict[object, list[str]] = {}
    for name, tensor in slots.items():
        groups.setdefault(_identity(tensor), []).append(name)
    return list(groups.values())


def _identity(tensor: torch.Tensor) -> object:
    import torch

    known = type(tensor) is torch.Tensor or issubclass(type(tensor), (torch.nn.Parameter, torch.nn.Buffer))
    if not known or tensor.layout != torch.strided:
        return id(tensor)
    # meta tensors have no address: the storage object tells them apart
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def _refuse_lazy(slots: Mapping[str, torch.Tensor]) -> None:
    import torch

    lazy = [name for name, tensor in slots.items() if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise TensorMismatch(
            f"{_some(lazy)} belong to lazy modules, which learn their shapes in the first forward pass: build the "
            "model with its real sizes (torch.nn.Linear in place of LazyLinear)",
            tensor=lazy[0],
        )


def _loads_its_own_way(module: torch.nn.Module) -> bool:
    """Whether some part changes the names or values it is given, so that only loading tells what fits."""
    import torch

    plain = torch.nn.Module
    return any(
        part._load_state_dict_pre_hooks
        or part._load_state_dict_post_hooks
        or type(part)._load_from_state_dict is not plain._load_from_state_dict
        or type(part).load_state_dict is not plain.load_state_dict
        for part in module.modules()
    )


def _compare(module: torch.nn.Module, slots: Mapping[str, torch.Tensor], stored: Mapping[str, Stored]) -> Difference:
    missing = [names[0] for names in _ties(slots) if not any(name in stored for name in names)]
    return Difference(
        wanted=tuple(slots),
        held=tuple(stored),
        missing=tuple(missing),
        unexpected=tuple(name for name in stored if name not in slots),
        misshapen={
            name: (stored[name].shape, tuple(tensor.shape))
            for name, tensor in slots.items()
            if name in stored and stored[name].shape != tuple(tensor.shape)
        },
        computed=frozenset(name for name, _ in module.named_buffers(remove_duplicate=False) if name not in slots),
    )


def _state(
    slots: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor], *, strict: bool
) -> dict[str, torch.Tensor]:
    """What `load_state_dict` gets: one object for all names of a tied tensor, so that it stays tied."""
    import torch

    state = dict(values)
    for names in _ties(slots):
        there = [name for name in names if name in values]
        if not there:
            continue
        first = values[there[0]]
        for other in there[1:]:
            if not _same(first, values[other]):
                text = f"{there[0]} and {other} are one tensor in the model and two different ones in the checkpoint"
                if strict:
                    raise TensorMismatch(f"{text}: build the model without tying them", tensor=other)
                _logger.warning("%s: the first is used", text)
        made: dict[int, torch.Tensor] = {}
        for name in names:
            old = slots[name]
            if id(old) not in made:
                made[id(old)] = like(old, first) if isinstance(old, torch.nn.Parameter) else first
            state[name] = made[id(old)]
    return state


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(as_bytes(one), as_bytes(other))


# -- what is left -----------------------------------------------------------------------------------------------------


def _renew_references(module: torch.nn.Module, renewed: Mapping[int, torch.Tensor]) -> None:
    """Put new tensors also where plain attributes of modules (lists of parameters, aliases) hold the old ones."""
    for part in module.modules():
        for container, key, tensor, _ in _plain_tensors(part):
            if id(tensor) in renewed and container is not None:
                container[key] = renewed[id(tensor)]


def _plain_tensors(part: torch.nn.Module) -> Iterator[tuple[Any, Any, torch.Tensor, str]]:
    """Tensors in plain attributes of one module: (container or None where it cannot be changed, key, tensor, path)."""
    import torch

    registries = ("_parameters", "_buffers", "_modules")
    waiting: list[tuple[Any, Any, Any, str, int]] = [
        (vars(part), name, value, name, 0) for name, value in list(vars(part).items()) if name not in registries
    ]
    while waiting:
        container, key, value, path, depth = waiting.pop()
        if isinstance(value, torch.Tensor):
            yield container, key, value, path
        elif depth < _PLAIN_DEPTH and type(value) in (list, tuple, dict):
            inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
            holder = None if isinstance(value, tuple) else value
            waiting += [(holder, k, v, f"{path}[{k!r}]", depth + 1) for k, v in inner]


def _refuse_left_on_meta(module: torch.nn.Module, except_for: Any = ()) -> None:
    left: dict[str, str] = defaultdict(str)
    for prefix, part in module.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        for kind, registry in (("parameter", part._parameters), ("buffer", part._buffers)):
            left.update({dot + n: kind for n, t in registry.items() if t is not None and t.is_meta})
        if not except_for:
            left.update({dot + path: "attribute" for _, _, t, path in _plain_tensors(part) if t.is_meta})
    names = [f"{name} ({kind})" for name, kind in left.items() if name not in except_for]
    if names:
        raise MissingTensor(
            f"{_some(names)} would have no values: the checkpoint does not hold them, and the constructor computes "
            "them from parameters, which have no values while the model is built. Save them with the checkpoint "
            "(persistent buffers), compute them in `forward`, or build the model plainly and call "
            "`model.load_state_dict(dict(weights))`",
            tensor=names[0].partition(" ")[0],
        )


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
