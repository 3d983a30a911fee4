"""What type checkers must refuse, on exactly the marked lines; read by checkers, never run."""

from __future__ import annotations

from adapter import InvocationContext, Weights, coldstart_handler


class Encoder:
    def encode(self, text: str) -> list[float]: ...


class Other: ...


def load(weights: Weights) -> Encoder: ...


def load_of_two(weights: Weights, device: str) -> Encoder: ...


@coldstart_handler(weights="s3://models/minilm/", load=load)
def embed(model: Encoder, event: dict[str, str]) -> list[float]: ...


@coldstart_handler
def echo(event: str) -> str: ...


embed.warm_up("no mapping")  # refused
embed.warm_up()  # refused
embed.warm_up({"text": "a"}, InvocationContext())  # refused
embed.bind(Other())  # refused
embed.bind(Encoder())(3)  # refused
embed({"text": "a"})  # refused: it needs its model
echo(3)  # refused
length: int = echo("a")  # refused


@coldstart_handler(weights="s3://models/minilm/", load=load)  # refused: load makes another model
def of_another_model(model: Other, event: str) -> str: ...


@coldstart_handler(weights="s3://models/minilm/", load=load)  # refused: takes no event
def without_event(model: Encoder) -> str: ...


@coldstart_handler(load=load)  # refused: a class has its own load
class Service:
    def __call__(self, event: str) -> str: ...


@coldstart_handler  # refused: no model is passed without load or weights
def without_load(model: Encoder, event: str) -> str: ...


@coldstart_handler(weights="s3://models/minilm/")  # refused: the weights come first
def without_weights(event: str) -> str: ...


coldstart_handler(weights=3)  # refused
coldstart_handler(load=load_of_two)  # refused
coldstart_handler(concurrency="2")  # refused
coldstart_handler(conurrency=2)  # refused
coldstart_handler(3)  # refused
