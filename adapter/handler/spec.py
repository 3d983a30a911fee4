"""What a handler asks of its replica, and how it wants to be called: read once, when it is decorated."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Literal, NoReturn, TypedDict, cast, get_args

from adapter.errors import HandlerDefinitionError
from adapter.invocation import InvocationContext

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_REQUIRED = inspect.Parameter.empty
_CONTEXT_NAME = re.compile(rf"\b{InvocationContext.__name__}\b")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?", re.ASCII)


class HandlerKind(StrEnum):
    """What calling a handler gives: a value, a coroutine, or a stream of values by a generator.

    A plain wrapper (`functools.wraps`) around an async function or generator counts as what it wraps: most pass on what
    they are given. One that gives a value of its own must not carry `__wrapped__`.
    """

    SYNC = "sync"
    ASYNC = "async"
    GENERATOR = "generator"
    ASYNC_GENERATOR = "async_generator"

    @property
    def streams(self) -> bool:
        """Whether the answer comes item by item."""
        return self in (HandlerKind.GENERATOR, HandlerKind.ASYNC_GENERATOR)

    @property
    def is_async(self) -> bool:
        """Whether it runs on an event loop."""
        return self in (HandlerKind.ASYNC, HandlerKind.ASYNC_GENERATOR)


class HandlerOptions(TypedDict, total=False):
    """The keyword arguments of `coldstart_handler` besides `weights` and `load`; `HandlerSpec` tells each."""

    device: str
    devices: int
    concurrency: int
    timeout_s: float | None
    init_timeout_s: float | None
    inference_mode: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSpec:
    """What a handler asks of its replica; known once its module is imported.

    Raises:
        HandlerDefinitionError: A value cannot be used; the message names it.
    """

    name: str
    """`module:name` of what was decorated."""
    weights: str | None = None
    """Address of the weights; a setting of the replica wins over it."""
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""
    devices: int = 1
    """Accelerators of one replica; this version serves with one."""
    concurrency: int = 1
    """Invocations at a time; more than one needs an async handler."""
    timeout_s: float | None = None
    """Longest time for one invocation; None leaves it to the caller."""
    init_timeout_s: float | None = None
    """Longest time from the process's start to readiness; None leaves it to the settings."""
    inference_mode: bool = True
    """Whether user code runs in torch's inference mode, entered once by the thread that runs it."""

    def __post_init__(self) -> None:
        for field, wanted in _problems(self):
            message = f"{self.name}: {field}={getattr(self, field)!r} cannot be used: {wanted}"
            raise HandlerDefinitionError(message, handler=self.name, option=field)


def _problems(spec: HandlerSpec) -> Iterator[tuple[str, str]]:
    # what users without a type checker pass is anything
    values: Mapping[str, object] = {field.name: getattr(spec, field.name) for field in fields(spec)}
    weights, device, devices, concurrency = (values[n] for n in ("weights", "device", "devices", "concurrency"))
    if weights is not None and not (isinstance(weights, str) and weights.strip()):
        yield "weights", "an address is wanted, such as s3://bucket/prefix/ or a directory, as a str"
    if not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        yield "device", "auto, cpu, cuda or cuda:N is wanted"
    if not _is_number(devices) or devices != 1:
        yield "devices", "this version serves a replica with one device"
    if not (isinstance(concurrency, int) and _is_number(concurrency) and concurrency >= 1):
        yield "concurrency", "a whole number of at least 1 is wanted"
    for name in ("timeout_s", "init_timeout_s"):
        value = values[name]
        if value is not None and not (isinstance(value, int | float) and _is_number(value) and 0 < value < math.inf):
            yield name, "a positive number of seconds is wanted, or None"
    if not isinstance(values["inference_mode"], bool):
        yield "inference_mode", "True or False is wanted"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a handler is called."""

    kind: HandlerKind
    takes_model: bool
    """Whether the model comes before the event."""
    context: Literal["none", "keyword", "positional"]
    """How the context is passed on."""

    def call(self, function: Callable[..., Any], model: Any, event: Any, context: InvocationContext) -> Any:
        """Call the function with what it declares, and no more."""
        leading = (model, event) if self.takes_model else (event,)
        if self.context == "none":
            return function(*leading)
        return function(*leading, context) if self.context == "positional" else function(*leading, context=context)


def handler_shape(call: Callable[..., Any], is_method: bool = False, *, wanted: tuple[str, ...]) -> Shape:
    """The shape of a handler.

    Args:
        call: The user's function, or the `__call__` of the user's class.
        is_method: The first parameter is `self` and not looked at.
        wanted: What is passed by position, in words: ("event",), ("model", "event").

    Raises:
        HandlerDefinitionError: The signature does not fit; the message shows what is wanted.
    """
    parameters = _parameters(call)[1 if is_method else 0 :]
    by_position = [p for p in parameters if p.kind in _POSITIONAL]
    by_star = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    shown = f"must take ({', '.join(wanted)}[, context]), but it takes ({', '.join(p.name for p in parameters)})"
    if len(by_position) < len(wanted) and not by_star:
        refuse(call, shown)
    if any(_is_context(p, call) for p in by_position[: len(wanted)]):
        refuse(call, f"{shown}: the context comes last")
    context: Literal["none", "keyword", "positional"] = "none"
    after = by_position[len(wanted) :]
    for parameter in [*after, *(p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY)]:
        if context == "none" and _is_context(parameter, call):
            if parameter.name == "context" and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
                context = "keyword"
            elif after and parameter is after[0]:
                context = "positional"
            else:
                refuse(call, f"{shown}: {parameter.name!r} must follow right after the event, or be named `context`")
        elif parameter.default is _REQUIRED:
            refuse(call, f"{shown}: nothing is passed for {parameter.name!r}.{_hint(wanted)}")
    return Shape(_kind(call), len(wanted) > 1, context)


def _hint(wanted: tuple[str, ...]) -> str:
    named = " The context is given to a parameter named `context` or annotated with InvocationContext"
    return f"{named}." if len(wanted) > 1 else f"{named}; a model before the event needs load= or weights=."


def weights_wanted(load: Callable[..., Any], is_method: bool = False) -> Literal["none", "optional", "required"]:
    """Whether a `load` takes the weights.

    Args:
        load: The user's function, or the method of the user's class.
        is_method: The first parameter is `self` and not looked at.

    Raises:
        HandlerDefinitionError: It is async or a generator, or takes anything else.
    """
    if _kind(load) is not HandlerKind.SYNC:
        refuse(load, "must be a plain function, not async and no generator: it runs once, before any event loop")
    parameters = _parameters(load)[1 if is_method else 0 :]
    required = [p for p in parameters if p.default is _REQUIRED and p.kind not in _VARIADIC]
    if len(required) > 1 or any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in required):
        refuse(load, f"must take (weights) or nothing, but it takes ({', '.join(p.name for p in parameters)})")
    if required:
        return "required"
    takes = any(p.kind in _POSITIONAL or p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
    return "optional" if takes else "none"


def name_of(target: object) -> str:
    """`module:name` of a function, class, partial or callable object."""
    found = target.func if isinstance(target, functools.partial) else target
    found = found if hasattr(found, "__qualname__") else type(found)
    return f"{getattr(found, '__module__', None) or 'builtins'}:{getattr(found, '__qualname__', '?')}"


def defined_at(target: object) -> str | None:
    """`file:line` of where the user wrote it; None where that cannot be told."""
    found: Any = inspect.unwrap(target) if callable(target) else target
    found = found.func if isinstance(found, functools.partial) else found
    if inspect.isclass(found):
        methods = [value for value in vars(cast("type", found)).values() if inspect.isfunction(value)]
        code = methods[0].__code__ if methods else None
    else:
        method = vars(type(found)).get("__call__")
        code = getattr(found, "__code__", None) or getattr(method, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else None


def refuse(target: object, problem: str) -> NoReturn:
    """Say why a definition cannot work, and where it stands.

    Raises:
        HandlerDefinitionError: Always. Fields: handler, where.
    """
    name, where = name_of(target), defined_at(target)
    raise HandlerDefinitionError(f"{name} {problem}" + (f" ({where})" if where else ""), handler=name, where=where)


def signature_of(call: Callable[..., Any]) -> inspect.Signature:
    """Its signature; what its annotations name need not exist, for it may be imported for type checkers only.

    Raises:
        ValueError, TypeError: It has none that can be read.
    """
    if sys.version_info >= (3, 14):  # annotations are evaluated when they are asked for: asked as text they are not
        from annotationlib import Format

        return inspect.signature(call, annotation_format=Format.STRING)
    return inspect.signature(call)


def _parameters(call: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(signature_of(call).parameters.values())
    except (ValueError, TypeError) as error:
        refuse(call, f"has no signature that can be read: {error}")


def _is_context(parameter: inspect.Parameter, call: Callable[..., Any]) -> bool:
    if parameter.name == "context":
        return True
    annotation = parameter.annotation
    if isinstance(annotation, str):
        if _CONTEXT_NAME.search(annotation):
            return True
        # an alias: looked up in the user's module and never evaluated; one made for type checkers only is not found
        scope: Any = getattr(inspect.unwrap(call), "__globals__", {})
        head, *rest = annotation.strip("'\" ").split(".")
        annotation = scope.get(head)
        for step in rest:
            annotation = getattr(annotation, step, None)
    return annotation is InvocationContext or InvocationContext in get_args(annotation)


def _kind(call: Callable[..., Any]) -> HandlerKind:
    if not inspect.isroutine(call) and not isinstance(call, functools.partial):
        call = type(call).__call__
    own = _kind_of(call)
    return own if own is not HandlerKind.SYNC else _kind_of(inspect.unwrap(call))


def _kind_of(call: Callable[..., Any]) -> HandlerKind:
    if inspect.isasyncgenfunction(call):
        return HandlerKind.ASYNC_GENERATOR
    if inspect.iscoroutinefunction(call):
        return HandlerKind.ASYNC
    return HandlerKind.GENERATOR if inspect.isgeneratorfunction(call) else HandlerKind.SYNC
