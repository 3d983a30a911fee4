"""A decorated handler: the user's function or class with all that a replica must know to start and call it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, cast

from adapter.errors import AdapterError, HandlerDefinitionError, LoadError
from adapter.handler.spec import HandlerKind, HandlerSpec, Shape, handler_shape, refuse, signature_of, weights_wanted
from adapter.invocation import Cancelled, InvocationContext, error_text, user_frame, user_trace
from adapter.warm_up.calls import RecordedCall

if TYPE_CHECKING:
    from adapter.weights import Weights

M = TypeVar("M")
P = ParamSpec("P")
R = TypeVar("R")

Taken = Literal["none", "optional", "required"]


class ColdstartHandler(Generic[M, P, R]):
    """A decorated handler: M is its model (None without one); P and R are the call, without model and context.

    Nothing is loaded and no device is touched before `make_model`.

    Args:
        target: The user's function or class.
        spec: What it asks for.
        load: Makes the model; None when the model is the weights, an instance of the class, or absent.

    Raises:
        HandlerDefinitionError: They cannot work together; the message says why and where.
    """

    def __init__(self, target: Callable[..., Any], spec: HandlerSpec, load: Callable[..., Any] | None = None) -> None:
        self.target: Callable[..., Any] = target
        self.spec: HandlerSpec = spec
        self._load = load
        self._recorded: list[RecordedCall] = []
        self._shape, self._takes = _analyse(target, spec, load)
        if spec.concurrency > 1 and not self.kind.is_async:
            refuse(target, f"has concurrency={spec.concurrency}, which needs an async handler; this one is {self.kind}")
        module, _, name = spec.name.partition(":")
        self.__doc__: str | None = target.__doc__
        self.__module__: str = module
        self.__qualname__: str = name
        self.__name__: str = name.rpartition(".")[2]
        self.__wrapped__: Callable[..., Any] = target

    @property
    def kind(self) -> HandlerKind:
        """What a call gives: a value, a coroutine, a generator or an async generator."""
        return self._shape.kind

    @property
    def needs_weights(self) -> bool:
        """Whether it cannot be made without weights: it has their address, or its `load` asks for them."""
        return self.spec.weights is not None or self._takes == "required"

    @property
    def recorded(self) -> tuple[RecordedCall, ...]:
        """The calls recorded with `warm_up`, in order."""
        return tuple(self._recorded)

    def warm_up(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Record a call to make before the replica is ready, written as the call: `embed.warm_up({"text": "a"})`.

        The event is copied now: what happens to it later changes nothing.

        Raises:
            HandlerDefinitionError: It is not one event, or the event cannot be copied.
        """
        here = inspect.currentframe()
        caller = here.f_back if here is not None else None
        where = f"{caller.f_code.co_filename}:{caller.f_lineno}" if caller is not None else "an unknown place"
        event = self._event(args, kwargs)
        try:
            self._recorded.append(RecordedCall(copy.deepcopy(event), where))
        except Exception as error:
            raise HandlerDefinitionError(
                f"{self.spec.name}: the event of the warm_up at {where} cannot be copied: {error}",
                handler=self.spec.name,
                where=where,
            ) from error

    def make_model(self, weights: Weights | None = None) -> M:
        """The model: what `load` gives, the weights themselves, an instance of the class, or None.

        Args:
            weights: The weights, complete or still streaming; None when there are none.

        Raises:
            LoadError: The user's code raised, or called `sys.exit`. Fields: error_type, file, line, trace.
            HandlerDefinitionError: Weights are needed and there are none.
            AdapterError: What came up while tensors were waited for keeps its own type.
        """
        if weights is None and self.needs_weights:
            raise HandlerDefinitionError(
                f"{self.spec.name} needs weights: give their address by weights= or COLDSTART_WEIGHTS",
                handler=self.spec.name,
            )
        given: tuple[Weights, ...] = () if weights is None or self._takes == "none" else (weights,)
        step = "load"
        try:
            if not inspect.isclass(self.target):
                return cast("M", self._load(*given) if self._load is not None else given[0] if given else None)
            step = "the constructor"
            instance: Any = self.target()
            step = "load"
            if _member(self.target, "load") is not None:
                instance.load(*given)
            return cast("M", instance)
        except (AdapterError, KeyboardInterrupt, Cancelled):
            raise
        except BaseException as error:
            file, line = user_frame(error) or ("", 0)
            raise LoadError(
                f"{step} of {self.spec.name} raised {error_text(error)}" + (f" ({file}:{line})" if file else ""),
                error_type=type(error).__name__,
                file=file,
                line=line,
                trace=user_trace(error),
            ) from error

    def call(self, model: M, event: Any, context: InvocationContext) -> R:
        """Call the user's code; what it raises is passed on as it is.

        Returns:
            The value, or the coroutine or generator that the caller has to run: see `kind`.
        """
        function = model if inspect.isclass(self.target) else self.target
        return cast("R", self._shape.call(cast("Callable[..., Any]", function), model, event, context))

    def bind(self, model: M, context: InvocationContext | None = None) -> Callable[P, R]:
        """The handler as a plain function of the event, for tests and notebooks: `embed.bind(model)({"text": "a"})`."""

        def bound(*args: P.args, **kwargs: P.kwargs) -> R:
            return self.call(model, self._event(args, kwargs), context or InvocationContext())

        return bound

    def __call__(self: ColdstartHandler[None, P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a handler without a model: `echo({"a": 1})`; one with a model is called by `bind(model)`."""
        if self._shape.takes_model or inspect.isclass(self.target):
            raise HandlerDefinitionError(f"{self.spec.name} needs its model: call it by .bind(model)(event)")
        return self.bind(None)(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<ColdstartHandler {self.spec.name} ({self.kind})>"

    def _event(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            raise HandlerDefinitionError(
                f"{self.spec.name} is called with its event alone, by position; model and context are given to it: "
                f"got {len(args)} by position and {sorted(kwargs)} by name",
                handler=self.spec.name,
            )
        return args[0]


def _analyse(target: Callable[..., Any], spec: HandlerSpec, load: Callable[..., Any] | None) -> tuple[Shape, Taken]:
    if load is not None and not callable(load):
        refuse(target, f"has load={load!r}, which is no function")
    if inspect.isclass(target):
        return _analyse_class(target, spec, load)
    local = spec.name.partition(":")[2].rpartition("<locals>.")[2]
    if inspect.isfunction(target) and "." in local:
        refuse(
            target, "is a method: decorate a function, or the class, with load(self, weights) and __call__(self, event)"
        )
    if load is not None:
        taken = weights_wanted(load)
        if taken == "none" and spec.weights is not None:
            refuse(load, "takes no weights: those of weights= would be fetched for nothing")
        return handler_shape(target, wanted=("model", "event")), taken
    if spec.weights is not None:
        return handler_shape(target, wanted=("weights", "event")), "required"
    return handler_shape(target, wanted=("event",)), "none"


def _analyse_class(target: type, spec: HandlerSpec, load: Callable[..., Any] | None) -> tuple[Shape, Taken]:
    if load is not None:
        refuse(target, "is a class and load= is given: a class has its own method load(self, weights)")
    if inspect.isabstract(target):
        refuse(target, f"is abstract: {', '.join(sorted(getattr(target, '__abstractmethods__', ())))} is missing")
    call = _member(target, "__call__")
    if call is None:
        refuse(target, "is a class without __call__(self, event[, context])")
    if _constructor_wants(target):
        refuse(target, "must be made without arguments; what it needs it takes in load(self, weights)")
    shape = handler_shape(*_unbound(call, target, "__call__"), wanted=("event",))
    own_load = _member(target, "load")
    taken: Taken = "none" if own_load is None else weights_wanted(*_unbound(own_load, target, "load"))
    if taken == "none" and spec.weights is not None:
        refuse(target, "has weights= but no load(self, weights) to take them")
    return shape, taken


def _member(target: type, name: str) -> Any:
    """As written in the class, or a class above: `getattr` would find `__call__` of the metaclass in any class."""
    return next((vars(c)[name] for c in target.__mro__ if name in vars(c)), None)


def _unbound(member: Any, target: type, name: str) -> tuple[Callable[..., Any], bool]:
    """The method, and whether its first parameter is `self`."""
    return (member, True) if inspect.isfunction(member) else (getattr(target, name), False)


def _constructor_wants(target: type) -> bool:
    try:
        parameters = signature_of(target).parameters.values()
    except (ValueError, TypeError):
        return False  # not to be read (built in C): making it tells
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return any(p.default is inspect.Parameter.empty and p.kind not in variadic for p in parameters)
