"""`@coldstart_handler`, typed: what type checkers see of it depends on whether there are weights and a `load`."""

# A class is a callable too (its constructor), so that overloads for classes and for functions overlap by nature: those
# for classes stand first, and the others mean no class.
# mypy: disable-error-code="overload-overlap"
# pyright: reportOverlappingOverload=false

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, Unpack, overload

from adapter.handler.decorated import ColdstartHandler, M, R
from adapter.handler.spec import HandlerOptions, HandlerSpec, name_of, refuse
from adapter.invocation import InvocationContext

if TYPE_CHECKING:
    from adapter.weights import Weights

E = TypeVar("E")
_M_contra = TypeVar("_M_contra", contravariant=True)
_E_contra = TypeVar("_E_contra", contravariant=True)
_R_co = TypeVar("_R_co", covariant=True)


class Service(Protocol[_E_contra, _R_co]):
    """An instance of a handler class."""

    def __call__(self, event: _E_contra, /) -> _R_co:
        """Answer one event."""
        ...


class ContextService(Protocol[_E_contra, _R_co]):
    """An instance of a handler class that declares the context."""

    def __call__(self, event: _E_contra, context: InvocationContext, /) -> _R_co:
        """Answer one event."""
        ...


class KeywordCall(Protocol[_E_contra, _R_co]):
    """A function of the event, or an instance of a handler class, that declares the context after `*`."""

    def __call__(self, event: _E_contra, /, *, context: InvocationContext) -> _R_co:
        """Answer one event."""
        ...


class KeywordModelCall(Protocol[_M_contra, _E_contra, _R_co]):
    """A function of model and event that declares the context after `*`."""

    def __call__(self, model: _M_contra, event: _E_contra, /, *, context: InvocationContext) -> _R_co:
        """Answer one event."""
        ...


class Decorator:
    """What `coldstart_handler` with keyword arguments gives: makes the handler of what it is put on."""

    def __init__(self, weights: str | None, load: Callable[..., Any] | None, options: HandlerOptions) -> None:
        self._weights = weights
        self._load = load
        self._options = options

    def decorate(self, target: Callable[..., Any]) -> ColdstartHandler[Any, ..., Any]:
        """The handler, checked.

        Raises:
            HandlerDefinitionError: It cannot work; the message says why and where.
        """
        if isinstance(target, ColdstartHandler):
            refuse(target.target, "is decorated twice with coldstart_handler")
        if not callable(target):
            refuse(target, f"is what coldstart_handler was given: {target!r} is no function and no class")
        known = HandlerOptions.__annotations__
        for option in self._options:
            if option not in known:
                near = difflib.get_close_matches(option, [*known, "weights", "load"], 1)
                refuse(target, f"has an unknown option {option!r}" + (f"; is {near[0]!r} meant?" if near else ""))
        spec = HandlerSpec(name=name_of(target), weights=self._weights, **self._options)
        return ColdstartHandler(target, spec, self._load)


class PlainDecorator(Decorator):
    """For a handler with neither weights nor `load`."""

    @overload
    def __call__(self, target: type[Service[E, R]], /) -> ColdstartHandler[Service[E, R], [E], R]: ...
    @overload
    def __call__(self, target: type[ContextService[E, R]], /) -> ColdstartHandler[ContextService[E, R], [E], R]: ...
    @overload
    def __call__(self, target: type[KeywordCall[E, R]], /) -> ColdstartHandler[KeywordCall[E, R], [E], R]: ...
    @overload
    def __call__(self, target: Callable[[E, InvocationContext], R], /) -> ColdstartHandler[None, [E], R]: ...
    @overload
    def __call__(self, target: KeywordCall[E, R], /) -> ColdstartHandler[None, [E], R]: ...
    @overload
    def __call__(self, target: Callable[[E], R], /) -> ColdstartHandler[None, [E], R]: ...
    def __call__(self, target: Callable[..., Any], /) -> ColdstartHandler[Any, ..., Any]:
        """The handler."""
        return self.decorate(target)


class WeightsDecorator(Decorator):
    """For a handler with weights and no `load`: a function of the weights, or a class with its own `load`."""

    @overload
    def __call__(self, target: type[Service[E, R]], /) -> ColdstartHandler[Service[E, R], [E], R]: ...
    @overload
    def __call__(self, target: type[ContextService[E, R]], /) -> ColdstartHandler[ContextService[E, R], [E], R]: ...
    @overload
    def __call__(self, target: type[KeywordCall[E, R]], /) -> ColdstartHandler[KeywordCall[E, R], [E], R]: ...
    @overload
    def __call__(
        self, target: Callable[[Weights, E, InvocationContext], R], /
    ) -> ColdstartHandler[Weights, [E], R]: ...
    @overload
    def __call__(self, target: KeywordModelCall[Weights, E, R], /) -> ColdstartHandler[Weights, [E], R]: ...
    @overload
    def __call__(self, target: Callable[[Weights, E], R], /) -> ColdstartHandler[Weights, [E], R]: ...
    def __call__(self, target: Callable[..., Any], /) -> ColdstartHandler[Any, ..., Any]:
        """The handler."""
        return self.decorate(target)


class ModelDecorator(Decorator, Generic[M]):
    """For a function of a model that `load` makes."""

    @overload
    def __call__(self, target: Callable[[M, E, InvocationContext], R], /) -> ColdstartHandler[M, [E], R]: ...
    @overload
    def __call__(self, target: KeywordModelCall[M, E, R], /) -> ColdstartHandler[M, [E], R]: ...
    @overload
    def __call__(self, target: Callable[[M, E], R], /) -> ColdstartHandler[M, [E], R]: ...
    def __call__(self, target: Callable[..., Any], /) -> ColdstartHandler[Any, ..., Any]:
        """The handler."""
        return self.decorate(target)


@overload
def coldstart_handler(target: type[Service[E, R]], /) -> ColdstartHandler[Service[E, R], [E], R]: ...
@overload
def coldstart_handler(target: type[ContextService[E, R]], /) -> ColdstartHandler[ContextService[E, R], [E], R]: ...
@overload
def coldstart_handler(target: type[KeywordCall[E, R]], /) -> ColdstartHandler[KeywordCall[E, R], [E], R]: ...
@overload
def coldstart_handler(target: Callable[[E, InvocationContext], R], /) -> ColdstartHandler[None, [E], R]: ...
@overload
def coldstart_handler(target: KeywordCall[E, R], /) -> ColdstartHandler[None, [E], R]: ...
@overload
def coldstart_handler(target: Callable[[E], R], /) -> ColdstartHandler[None, [E], R]: ...
@overload
def coldstart_handler(
    *, weights: str | None = None, load: Callable[[Weights], M], **options: Unpack[HandlerOptions]
) -> ModelDecorator[M]: ...
@overload
def coldstart_handler(
    *, weights: None = None, load: Callable[[], M], **options: Unpack[HandlerOptions]
) -> ModelDecorator[M]: ...
@overload
def coldstart_handler(*, weights: str, load: None = None, **options: Unpack[HandlerOptions]) -> WeightsDecorator: ...
@overload
def coldstart_handler(
    *, weights: None = None, load: None = None, **options: Unpack[HandlerOptions]
) -> PlainDecorator: ...
def coldstart_handler(
    target: Callable[..., Any] | None = None,
    /,
    *,
    weights: str | None = None,
    load: Callable[..., Any] | None = None,
    **options: Unpack[HandlerOptions],
) -> Any:
    """Turns a function or class into a handler that `coldstart serve module:name` starts and calls.

    What it is given depends on what it declares:

    | with | the function takes | made before the first call |
    |---|---|---|
    | `load=` | `(model, event[, context])` | `model = load(weights)`, or `load()` without weights |
    | `weights=` alone | `(weights, event[, context])` | |
    | neither | `(event[, context])` | |
    | a class | `__call__(self, event[, context])` | an instance, then its `load(self, weights)` if it has one |

    `context` is passed to a parameter of that name, or annotated with `InvocationContext`. A generator streams its
    items; an async function may serve several invocations at a time.

    Put on a class with `@`, pyright sees the handler and mypy the class (python/mypy#3135); both see it in
    `embedder = coldstart_handler(weights=...)(Embedder)`.

    Args:
        target: The function or class, when used bare.
        weights: Where the weights are: `s3://bucket/prefix/`, a directory. Literal text (or a constant of the module)
            lets the stream start before the module is imported.
        load: Makes the model, once.
        **options: `device` ("auto", "cpu", "cuda" or "cuda:N"), `devices` (1), `concurrency` (1; more needs an async
            handler), `timeout_s` (of one invocation), `init_timeout_s` (from the process's start to readiness),
            `inference_mode` (True).

    Raises:
        HandlerDefinitionError: It cannot work as written; the message says why and where.
    """
    if target is not None:
        return PlainDecorator(weights, load, options).decorate(target)
    if load is not None:
        return ModelDecorator[Any](weights, load, options)
    return PlainDecorator(None, None, options) if weights is None else WeightsDecorator(weights, None, options)
