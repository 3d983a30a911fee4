"""Every way to write a handler, and the type that checkers must see of it; read by checkers, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, assert_type

from adapter import ColdstartHandler, InvocationContext, Weights, coldstart_handler


class Encoder:
    def __init__(self, weights: Weights | None = None) -> None: ...

    def encode(self, text: str) -> list[float]:
        return [float(len(text))]


def load(weights: Weights) -> Encoder:
    return Encoder(weights)


def make() -> Encoder:
    return Encoder()


# -- neither weights nor load ------------------------------------------------------------------------------------------


@coldstart_handler
def echo(event: dict[str, int]) -> str:
    return str(event)


assert_type(echo, ColdstartHandler[None, [dict[str, int]], str])
assert_type(echo({"a": 1}), str)
assert_type(echo.bind(None), Callable[[dict[str, int]], str])
assert_type(echo.make_model(), None)
echo.warm_up({"a": 1})


@coldstart_handler
def with_context(event: dict[str, int], context: InvocationContext) -> str:
    return context.request_id


assert_type(with_context, ColdstartHandler[None, [dict[str, int]], str])
assert_type(with_context({"a": 1}), str)


@coldstart_handler
def with_context_after_star(event: dict[str, int], *, context: InvocationContext) -> str:
    return context.request_id


assert_type(with_context_after_star, ColdstartHandler[None, [dict[str, int]], str])


@coldstart_handler(concurrency=4, timeout_s=2.5)
async def concurrent(event: int) -> float:
    return event / 2


async def call_concurrent() -> None:
    assert_type(await concurrent(3), float)
    assert_type(await concurrent.bind(None)(3), float)


called: Callable[[int], Coroutine[Any, Any, float]] = concurrent.bind(None)


@coldstart_handler(inference_mode=False)
def count(event: int) -> Iterator[int]:
    yield from range(event)


assert_type(count, ColdstartHandler[None, [int], Iterator[int]])


@coldstart_handler
async def count_async(event: int) -> AsyncIterator[int]:
    yield event


assert_type(count_async, ColdstartHandler[None, [int], AsyncIterator[int]])


@coldstart_handler
def with_default(event: int, scale: int = 2) -> int:
    return event * scale


assert_type(with_default, ColdstartHandler[None, [int], int])


# -- a model made by load ----------------------------------------------------------------------------------------------


@coldstart_handler(weights="s3://models/minilm/", load=load, device="auto")
def embed(model: Encoder, event: dict[str, str], context: InvocationContext) -> list[float]:
    return model.encode(event["text"])


assert_type(embed, ColdstartHandler[Encoder, [dict[str, str]], list[float]])
assert_type(embed.bind(make())({"text": "a"}), list[float])
assert_type(embed.make_model(), Encoder)
embed.warm_up({"text": "a sentence of the usual length"})


@coldstart_handler(load=load)
def address_from_settings(model: Encoder, event: str) -> list[float]:
    return model.encode(event)


assert_type(address_from_settings, ColdstartHandler[Encoder, [str], list[float]])


@coldstart_handler(load=make)
def without_weights(model: Encoder, event: str) -> list[float]:
    return model.encode(event)


assert_type(without_weights, ColdstartHandler[Encoder, [str], list[float]])


@coldstart_handler(weights="s3://models/minilm/", load=Encoder)
def made_by_class(model: Encoder, event: str, *, context: InvocationContext) -> list[float]:
    return model.encode(event)


assert_type(made_by_class, ColdstartHandler[Encoder, [str], list[float]])


# -- the weights themselves --------------------------------------------------------------------------------------------


@coldstart_handler(weights="/models/minilm")
def names(weights: Weights, event: str) -> list[str]:
    return [name for name in weights if event in name]


assert_type(names, ColdstartHandler[Weights, [str], list[str]])


@coldstart_handler(weights="/models/minilm")
def names_with_context(weights: Weights, event: str, context: InvocationContext) -> list[str]:
    return [name for name in weights if event in name]


assert_type(names_with_context, ColdstartHandler[Weights, [str], list[str]])


# -- classes: M is what an instance can do; put on a class with @, mypy does not follow it (python/mypy#3135) ----------


class Greeter:
    def __call__(self, event: str) -> int:
        return len(event)


greeter = coldstart_handler(Greeter)
assert_type(greeter.bind(Greeter())("someone"), int)
assert_type(greeter.bind(greeter.make_model()), Callable[[str], int])
greeter.warm_up("someone")


class Service:
    def load(self, weights: Weights) -> None:
        self.encoder = Encoder(weights)

    def __call__(self, event: dict[str, str], context: InvocationContext) -> list[float]:
        return self.encoder.encode(event["text"])


service = coldstart_handler(weights="s3://models/minilm/")(Service)
assert_type(service.bind(Service()), Callable[[dict[str, str]], list[float]])
service.warm_up({"text": "a"})


class Streaming:
    async def __call__(self, event: str, *, context: InvocationContext) -> AsyncIterator[str]:
        yield event


streaming = coldstart_handler(concurrency=2)(Streaming)
assert_type(streaming.bind(Streaming()), Callable[[str], AsyncIterator[str]])


class OptionalContext:
    async def __call__(self, event: str, context: InvocationContext | None = None) -> str:
        return event


optional = coldstart_handler(OptionalContext)
answer: Callable[[str], Coroutine[Any, Any, str]] = optional.bind(OptionalContext())


@coldstart_handler(weights="s3://models/minilm/")
class Decorated:
    def load(self, weights: Weights) -> None:
        self.encoder = Encoder(weights)

    def __call__(self, event: str) -> list[float]:
        return self.encoder.encode(event)
