from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any, Optional

import pytest

from adapter import HandlerKind, InvocationContext, coldstart_handler
from adapter.errors import HandlerDefinitionError

Ctx = InvocationContext
untyped: Any = coldstart_handler  # what users without a type checker may do


def load(weights: Any) -> str:
    return f"model of {weights}"


def given(handler: Any, model: Any = "model", event: Any = "event", **context: Any) -> Any:
    return handler.call(model, event, InvocationContext(**context))


# -- what a function is given ------------------------------------------------------------------------------------------


def test_a_function_alone_takes_the_event() -> None:
    assert given(untyped(lambda event: (event,))) == ("event",)


def test_with_load_the_model_comes_first() -> None:
    assert given(untyped(load=load)(lambda model, event: (model, event))) == ("model", "event")


def test_with_weights_alone_the_weights_come_first() -> None:
    assert given(untyped(weights="s3://b/p/")(lambda weights, event: (weights, event))) == ("model", "event")


def test_with_load_and_weights_the_model_comes_first() -> None:
    handler = untyped(weights="s3://b/p/", load=load)(lambda model, event: (model, event))
    assert given(handler) == ("model", "event")


def by_name(event: Any, context: Any) -> Any:
    return context.request_id


def by_annotation(event: Any, ctx: InvocationContext) -> Any:
    return ctx.request_id


def by_alias(event: Any, ctx: Ctx) -> Any:
    return ctx.request_id


def by_optional(event: Any, ctx: Optional[InvocationContext] = None) -> Any:  # noqa: UP045 - an old spelling users have
    return ctx.request_id if ctx else None


def by_annotated(event: Any, ctx: Annotated[InvocationContext, "this one"]) -> Any:
    return ctx.request_id


def after_star(event: Any, *, context: InvocationContext) -> Any:
    return context.request_id


def after_other_defaults(event: Any, scale: int = 2, context: InvocationContext | None = None) -> Any:
    return context.request_id if context and scale == 2 else None


def positional_only(event: Any, context: InvocationContext, /) -> Any:
    return context.request_id


@pytest.mark.parametrize(
    "function",
    [
        by_name,
        by_annotation,
        by_alias,
        by_optional,
        by_annotated,
        after_star,
        after_other_defaults,
        positional_only,
        lambda event, context: context.request_id,
    ],
)
def test_the_context_goes_to_the_parameter_that_declares_it(function: Callable[..., Any]) -> None:
    assert given(untyped(function), request_id="r-7") == "r-7"


def test_annotations_that_are_no_text_are_understood_too() -> None:
    def function(event: Any, ctx: Any) -> Any:
        return ctx.request_id

    function.__annotations__["ctx"] = InvocationContext | None
    assert given(untyped(function), request_id="r-7") == "r-7"


def test_the_context_is_not_passed_when_it_is_not_declared() -> None:
    def star(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def default(event: Any, scale: int = 2) -> Any:
        return event, scale

    assert given(untyped(star)) == (("event",), {})
    assert given(untyped(default)) == ("event", 2)


def test_partials_and_callable_objects_are_handlers() -> None:
    class Scaled:
        def __init__(self, scale: int) -> None:
            self.scale = scale

        async def __call__(self, event: int) -> int:
            return event * self.scale

    def scaled(scale: int, event: int) -> int:
        return event * scale

    partial = untyped(functools.partial(scaled, 3))
    assert (given(partial, event=2), partial.kind) == (6, HandlerKind.SYNC)
    instance = untyped(Scaled(3))
    assert instance.kind is HandlerKind.ASYNC
    assert instance.spec.name.endswith(":test_partials_and_callable_objects_are_handlers.<locals>.Scaled")


# -- kinds -------------------------------------------------------------------------------------------------------------


def generate(event: int) -> Iterator[int]:
    yield event


async def answer(event: int) -> int:
    return event


async def stream(event: int) -> AsyncIterator[int]:
    yield event


class Service:
    async def __call__(self, event: int) -> AsyncIterator[int]:
        yield event


@pytest.mark.parametrize(
    ("target", "kind", "streams", "is_async"),
    [
        (by_name, "sync", False, False),
        (generate, "generator", True, False),
        (answer, "async", False, True),
        (stream, "async_generator", True, True),
        (Service, "async_generator", True, True),
        (functools.partial(answer), "async", False, True),
    ],
)
def test_the_kind_is_read_from_the_definition(target: Any, kind: str, streams: bool, is_async: bool) -> None:
    found = untyped(target).kind
    assert (found, found.streams, found.is_async) == (kind, streams, is_async)


def test_a_plain_wrapper_counts_as_what_it_wraps() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    assert untyped(logged(answer)).kind is HandlerKind.ASYNC
    assert untyped(logged(generate)).kind is HandlerKind.GENERATOR


def test_concurrency_of_an_async_handler_is_kept() -> None:
    assert untyped(concurrency=8)(answer).spec.concurrency == 8
    assert untyped(concurrency=8)(Service).spec.concurrency == 8


def test_the_handler_looks_like_what_was_decorated() -> None:
    handler = untyped(documented)
    assert handler.__doc__ == "Says what it does."
    assert (handler.__module__, handler.__name__, handler.__wrapped__) == (__name__, "documented", documented)
    assert handler.spec.name == f"{__name__}:documented"
    assert "documented" in repr(handler)
    assert inspect.unwrap(handler) is documented


def documented(event: Any) -> Any:
    """Says what it does."""


# -- what cannot work is refused when it is written --------------------------------------------------------------------


class NoCall:
    def load(self, weights: Any) -> None: ...


class NeedsArgument:
    def __init__(self, size: int) -> None: ...
    def __call__(self, event: Any) -> Any: ...


class NoLoad:
    def __call__(self, event: Any) -> Any: ...


class AsyncLoad(NoLoad):
    async def load(self, weights: Any) -> None: ...


class LoadOfTwo(NoLoad):
    def load(self, weights: Any, device: Any) -> None: ...


class ModelFirst:
    def __call__(self, model: Any, event: Any) -> Any: ...


class Holder:
    def method(self, event: Any) -> Any: ...


async def async_load(weights: Any) -> Any: ...


def no_event() -> Any: ...
def one(event: Any) -> Any: ...
def two(a: Any, b: Any) -> Any: ...
def three(a: Any, b: Any, c: Any) -> Any: ...
def context_first(context: InvocationContext, event: Any) -> Any: ...
def context_instead(model: Any, context: InvocationContext) -> Any: ...
def late_positional(event: Any, scale: int = 1, ctx: InvocationContext | None = None) -> Any: ...
def star_needed(event: Any, *, scale: int) -> Any: ...


@pytest.mark.parametrize(
    ("arguments", "target", "said"),
    [
        ({}, no_event, "must take (event[, context]), but it takes ()"),
        ({}, two, "load= or weights="),
        ({"load": load}, one, "must take (model, event[, context]), but it takes (event)"),
        ({"load": load}, three, "nothing is passed for 'c'"),
        ({"weights": "s3://b/p/"}, one, "must take (weights, event[, context])"),
        ({}, context_first, "the context comes last"),
        ({"load": load}, context_instead, "the context comes last"),
        ({}, late_positional, "'ctx' must follow right after the event"),
        ({}, star_needed, "nothing is passed for 'scale'"),
        ({"concurrency": 2}, one, "needs an async handler; this one is sync"),
        ({"concurrency": 2}, generate, "needs an async handler; this one is generator"),
        ({"concurrency": 2}, NoLoad, "needs an async handler"),
        ({}, NoCall, "is a class without __call__(self, event[, context])"),
        ({}, NeedsArgument, "must be made without arguments"),
        ({"weights": "s3://b/p/"}, NoLoad, "no load(self, weights)"),
        ({"load": load}, NoLoad, "is a class and load= is given"),
        ({"weights": "s3://b/p/"}, AsyncLoad, "must be a plain function"),
        ({}, LoadOfTwo, "must take (weights) or nothing, but it takes (weights, device)"),
        ({}, ModelFirst, "must take (event[, context]), but it takes (model, event)"),
        ({}, Holder.method, "is a method: decorate a function, or the class"),
        ({"load": async_load}, two, "must be a plain function"),
        ({"load": functools.partial(async_load)}, two, "must be a plain function"),
        ({"load": answer}, two, "must be a plain function"),
        ({"load": generate}, two, "must be a plain function"),
        ({"load": three}, two, "must take (weights) or nothing"),
        ({"load": "module:load"}, two, "which is no function"),
        ({"weights": "s3://b/p/", "load": lambda: 1}, two, "fetched for nothing"),
        ({"weights": ""}, two, "weights=''"),
        ({"weights": b"s3://b/p/"}, two, "as a str"),
        ({"device": "gpu"}, one, "device='gpu'"),
        ({"device": "cuda:x"}, one, "device='cuda:x'"),
        ({"devices": 2}, one, "one device"),
        ({"concurrency": 0}, answer, "concurrency=0"),
        ({"concurrency": True}, answer, "concurrency=True"),
        ({"concurrency": 1.5}, answer, "concurrency=1.5"),
        ({"timeout_s": 0}, one, "timeout_s=0"),
        ({"timeout_s": "5"}, one, "timeout_s='5'"),
        ({"init_timeout_s": float("inf")}, one, "init_timeout_s=inf"),
        ({"init_timeout_s": float("nan")}, one, "init_timeout_s=nan"),
        ({"inference_mode": 1}, one, "inference_mode=1"),
        ({"conurrency": 2}, one, "is 'concurrency' meant?"),
        ({"warmup": []}, one, "unknown option 'warmup'"),
        ({}, 3, "3 is no function"),
        ({}, coldstart_handler(one), "decorated twice"),
    ],
)
def test_misuse_is_refused_when_it_is_written(arguments: dict[str, Any], target: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError) as caught:
        untyped(**arguments)(target)
    assert said in caught.value.message


def test_a_refusal_says_where_the_handler_stands() -> None:
    line = no_event.__code__.co_firstlineno
    with pytest.raises(HandlerDefinitionError, match=rf"no_event .*\({__file__}:{line}\)") as caught:
        untyped(no_event)
    assert caught.value.fields["where"] == f"{__file__}:{line}"


def test_an_abstract_class_is_refused_with_what_is_missing() -> None:
    import abc

    class Half(abc.ABC):
        @abc.abstractmethod
        def encode(self) -> None: ...

        def __call__(self, event: Any) -> Any:
            return event

    with pytest.raises(HandlerDefinitionError, match="is abstract: encode is missing"):
        untyped(Half)
