from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from adapter import Cancelled, ColdstartHandler, coldstart_handler
from adapter.errors import HandlerDefinitionError, HeaderError, LoadError

untyped: Any = coldstart_handler
WEIGHTS: Any = {"fc.weight": 1.0}


def answer(model: Any, event: Any) -> Any:
    return model, event


# -- the model ---------------------------------------------------------------------------------------------------------


def test_load_makes_the_model_of_the_weights() -> None:
    handler = untyped(weights="s3://b/p/", load=lambda weights: list(weights))(answer)
    assert handler.make_model(WEIGHTS) == ["fc.weight"]


def test_the_address_may_come_from_the_settings() -> None:
    handler = untyped(load=lambda weights: list(weights))(answer)
    assert handler.needs_weights
    assert handler.make_model(WEIGHTS) == ["fc.weight"]


def test_load_without_weights_is_called_with_nothing() -> None:
    handler = untyped(load=lambda: "made")(answer)
    assert not handler.needs_weights
    assert handler.make_model() == "made"
    # COLDSTART_WEIGHTS is set for this replica, but this load never asked for them
    assert handler.make_model(WEIGHTS) == "made"


def test_load_that_can_do_without_is_given_weights_when_there_are_any() -> None:
    handler = untyped(load=lambda weights=None: weights)(answer)
    assert not handler.needs_weights
    assert handler.make_model() is None
    assert handler.make_model(WEIGHTS) is WEIGHTS


def test_without_load_the_weights_are_the_model() -> None:
    assert untyped(weights="s3://b/p/")(answer).make_model(WEIGHTS) is WEIGHTS


def test_without_either_there_is_no_model() -> None:
    handler = untyped(lambda event: event)
    assert handler.make_model() is None
    assert handler.make_model(WEIGHTS) is None


def test_a_class_is_made_once_and_loads_itself() -> None:
    class Service:
        def __init__(self) -> None:
            self.weights: Any = None

        def load(self, weights: Any) -> None:
            self.weights = weights

        def __call__(self, event: Any, context: Any) -> Any:
            return self.weights, event, context.request_id

    handler = untyped(weights="s3://b/p/")(Service)
    model = handler.make_model(WEIGHTS)
    assert isinstance(model, Service)
    assert handler.bind(model)(3) == (WEIGHTS, 3, "local")


def test_a_class_may_load_without_weights_or_not_at_all() -> None:
    class Loads:
        loaded = 0

        def load(self) -> None:
            self.loaded += 1

        def __call__(self, event: Any) -> Any:
            return self.loaded

    class Plain:
        def __call__(self, event: Any) -> Any:
            return event

    loads, plain = untyped(Loads), untyped(Plain)
    assert loads.bind(loads.make_model(WEIGHTS))(0) == 1
    assert plain.bind(plain.make_model())("a") == "a"


def test_a_class_may_take_its_load_and_call_from_a_base_or_as_static_methods() -> None:
    class Base:
        @staticmethod
        def load(weights: Any) -> None:
            weights["loaded"] = True

        @classmethod
        def __call__(cls, event: Any) -> Any:
            return cls.__name__, event

    class Service(Base):
        pass

    weights: dict[str, Any] = {}
    handler = untyped(weights="s3://b/p/")(Service)
    assert handler.bind(handler.make_model(weights))(1) == ("Service", 1)
    assert weights == {"loaded": True}


def test_missing_weights_are_named_with_both_places_to_set_them() -> None:
    with pytest.raises(HandlerDefinitionError, match=r"weights= or COLDSTART_WEIGHTS"):
        untyped(load=lambda weights: weights)(answer).make_model()


def load_that_fails(weights: Any) -> Any:
    return weights["no.such.tensor"]


def test_load_that_raises_is_told_with_type_message_place_and_trimmed_trace() -> None:
    """A6."""
    handler = untyped(load=load_that_fails)(answer)
    with pytest.raises(LoadError) as caught:
        handler.make_model(WEIGHTS)
    error = caught.value
    line = load_that_fails.__code__.co_firstlineno + 1
    assert "raised KeyError: 'no.such.tensor'" in error.message
    assert f"({__file__}:{line})" in error.message
    assert error.fields["error_type"] == "KeyError"
    assert (error.fields["file"], error.fields["line"]) == (__file__, line)
    trace = str(error.fields["trace"])
    assert 'return weights["no.such.tensor"]' in trace
    assert "adapter/handler" not in trace
    assert isinstance(error.__cause__, KeyError)


def test_load_that_calls_exit_is_a_failed_load() -> None:
    """S-29: `sys.exit(3)` in the init phase."""
    with pytest.raises(LoadError, match=r"load of .* raised SystemExit: 3"):
        untyped(load=lambda: sys.exit(3))(answer).make_model()


class Unreadable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError


def test_load_may_raise_anything_and_still_is_a_failed_load() -> None:
    def load() -> Any:
        raise Unreadable

    with pytest.raises(LoadError, match=r"raised Unreadable: \(its message cannot be read\)"):
        untyped(load=load)(answer).make_model()


def test_a_long_message_is_cut() -> None:
    def load() -> Any:
        raise ValueError("x" * 1_000_000)

    with pytest.raises(LoadError) as caught:
        untyped(load=load)(answer).make_model()
    assert len(caught.value.message) < 3000


def test_a_class_may_switch_off_an_inherited_load() -> None:
    class Base:
        def load(self, weights: Any) -> None: ...

    class Service(Base):
        load: Any = None

        def __call__(self, event: Any) -> Any:
            return event

    assert isinstance(untyped(Service).make_model(), Service)


def test_a_constructor_that_raises_is_named_as_such() -> None:
    class Broken:
        def __init__(self) -> None:
            raise RuntimeError("no licence")

        def __call__(self, event: Any) -> Any:
            return event

    with pytest.raises(LoadError, match=r"the constructor of .*Broken raised RuntimeError: no licence"):
        untyped(Broken).make_model()


def test_errors_of_the_weights_keep_their_type_through_load() -> None:
    def load(weights: Any) -> Any:
        raise HeaderError("broken", rule="overlap")

    with pytest.raises(HeaderError):
        untyped(load=load)(answer).make_model(WEIGHTS)


@pytest.mark.parametrize("signal", [KeyboardInterrupt, Cancelled])
def test_what_ends_the_process_or_the_call_passes_through_load(signal: type[BaseException]) -> None:
    def load(weights: Any) -> Any:
        raise signal

    with pytest.raises(signal):
        untyped(load=load)(answer).make_model(WEIGHTS)


# -- calls -------------------------------------------------------------------------------------------------------------


def test_bind_gives_a_function_of_the_event() -> None:
    assert untyped(load=lambda: 1)(answer).bind("model")("event") == ("model", "event")


def test_a_handler_without_model_is_called_as_it_was_written() -> None:
    assert untyped(lambda event, context: (event, context.request_id))(3) == (3, "local")


def test_calling_a_handler_that_needs_its_model_says_how() -> None:
    with pytest.raises(HandlerDefinitionError, match=r"\.bind\(model\)\(event\)"):
        untyped(load=lambda: 1)(answer)("event")


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2), {}), ((1,), {"context": 2}), ((), {"event": 1})])
def test_anything_but_the_event_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    handler = untyped(lambda event: event)
    for call in (handler, handler.bind(None), handler.warm_up):
        with pytest.raises(HandlerDefinitionError, match="called with its event alone, by position"):
            call(*args, **kwargs)
    assert handler.recorded == ()


def test_what_the_handler_raises_is_passed_on_untouched() -> None:
    error = ValueError("bad text")

    def fails(event: Any) -> Any:
        raise error

    with pytest.raises(ValueError, match="bad text") as caught:
        untyped(fails)(1)
    assert caught.value is error


# -- recorded calls ----------------------------------------------------------------------------------------------------


def test_warm_up_keeps_the_event_as_it_was_and_where_it_was_recorded() -> None:
    handler: ColdstartHandler[None, [dict[str, list[int]]], int] = untyped(lambda event: len(event))
    event = {"tokens": [1, 2]}
    handler.warm_up(event)
    line = sys._getframe().f_lineno - 1
    event["tokens"].append(3)
    handler.warm_up(event)
    assert [call.event for call in handler.recorded] == [{"tokens": [1, 2]}, {"tokens": [1, 2, 3]}]
    assert handler.recorded[0].where == f"{__file__}:{line}"


def test_an_event_that_cannot_be_copied_is_refused_where_it_is_recorded() -> None:
    handler = untyped(lambda event: event)
    with pytest.raises(HandlerDefinitionError, match=r"cannot be copied: .*lock"):
        handler.warm_up({"lock": threading.Lock()})


# -- what it costs to write a handler ----------------------------------------------------------------------------------


def test_importing_and_decorating_touches_no_framework_and_no_device(tmp_path: Path) -> None:
    """S-26: no CUDA before the init phase; not even torch, whose module is made to explode here."""
    for name in ("torch", "numpy", "boto3", "starlette"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported too early')")
    program = """
        import sys
        from adapter import InvocationContext, coldstart_handler

        @coldstart_handler(weights="s3://models/minilm/", load=lambda weights: weights, device="cuda")
        def embed(model, event, context: InvocationContext):
            return event

        embed.warm_up({"text": "a"})
        assert embed.spec.device == "cuda" and embed.kind == "sync"
        assert not {"torch", "numpy", "boto3", "starlette", "asyncio"} & set(sys.modules), sorted(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
