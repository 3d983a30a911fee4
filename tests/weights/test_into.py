"""A module that is filled equals the module that was saved: ties, buffers, dtypes, and nothing left without values."""

from __future__ import annotations

import copy
import io
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from adapter.errors import LoadError, MissingTensor, TensorMismatch
from adapter.weights import Weights
from tests.support.modules import assert_equal

Open = Callable[[Mapping[str, torch.Tensor]], Weights]


class Rotary(nn.Module):
    """A buffer that is computed and never saved (S-24)."""

    inv_freq: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("inv_freq", 1 / 10000 ** (torch.arange(0, 8, 2) / 4), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(x) * self.inv_freq.repeat(2)
        return found


def test_a_computed_buffer_equals_the_plainly_built_twins_bit_for_bit(saved: Open) -> None:
    """S-24."""
    twin = Rotary()
    model = saved(twin.state_dict()).into(Rotary)
    assert_equal(model, twin)
    x = torch.randn(3, 8)
    assert torch.equal(model(x), twin(x))


def test_views_cost_no_memory_and_are_the_files_bytes(saved: Open) -> None:
    weights = saved({"weight": torch.randn(4, 8), "bias": torch.randn(4)})
    model = weights.into(lambda: nn.Linear(8, 4))
    assert model.weight.data_ptr() == weights["weight"].data_ptr()
    assert torch.equal(model.weight, load_file(weights.path("model.safetensors"))["weight"])


class Wide(nn.Module):
    """Initialised in place, as constructors do."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, 1 << 20))
        nn.init.normal_(self.weight)
        self.weight.data.mul_(0.02)
        with torch.no_grad():
            self.weight[0].zero_()


def test_initialisation_in_place_costs_nothing(saved: Open) -> None:
    """2 GiB would take seconds to draw and would show in the process's memory."""
    before = _peak_bytes()
    with pytest.raises(TensorMismatch, match=r"weight \[1, 2\] in the checkpoint, \[512, 1048576\] in the model"):
        saved({"weight": torch.zeros(1, 2)}).into(lambda: Wide(512))
    assert _peak_bytes() - before < 256 << 20


def test_building_imports_nothing_for_values_that_are_not_there() -> None:
    """Torch's Python code for meta tensors takes 1.5 to 3 s to import at the first `normal_`."""
    code = """
import sys, torch
from torch import nn
from adapter.device.meta import build
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([
            nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 4), nn.LayerNorm(4), nn.LSTM(4, 4), nn.Conv2d(2, 2, 3),
            nn.MultiheadAttention(4, 2), nn.BatchNorm1d(4), nn.TransformerEncoderLayer(4, 2), nn.GroupNorm(1, 4),
        ])
        self.own = nn.Parameter(torch.empty(4, 4))
        for name in ("normal_", "eye_", "orthogonal_", "trunc_normal_", "xavier_normal_", "kaiming_normal_", "ones_"):
            getattr(nn.init, name)(self.own)
        self.own.data.normal_().mul_(2).div_(3).erfinv_().clamp_(-1, 1).exponential_()
        with torch.no_grad():
            self.own[0].fill_(1)
            torch.ones(4, 4, out=self.own)
before = len(sys.modules)
assert build(Model).own.is_meta
print("sympy" in sys.modules, len(sys.modules) - before < 20)
"""
    said = subprocess.check_output([sys.executable, "-W", "ignore", "-c", code], text=True)
    assert said.split() == ["False", "True"]


def test_what_changes_a_shape_in_place_is_done(saved: Open) -> None:
    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(2, 3))
            self.weight.data = self.weight.data.normal_().t_()

    assert saved({"weight": torch.ones(3, 2)}).into(Turned).weight.shape == (3, 2)


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError


# -- kinds of modules -------------------------------------------------------------------------------------------------


class Own(nn.Parameter):
    """A parameter class of the user's."""

    shard_dim: int


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Own(torch.randn(3))
        self.weight.shard_dim = 1


def test_class_and_attributes_of_a_parameter_are_kept(saved: Open) -> None:
    model = saved({"weight": torch.zeros(3)}).into(Marked)
    assert type(model.weight) is Own
    assert model.weight.shard_dim == 1
    assert model.weight.tolist() == [0, 0, 0]


def nested() -> nn.Module:
    return nn.Sequential(
        nn.ModuleDict({"a": nn.ModuleList([nn.Linear(2, 2), nn.LayerNorm(2)]), "b": nn.Conv1d(2, 2, 1)}),
        nn.ParameterList([torch.randn(2), torch.randn(3)]),
        nn.ParameterDict({"x": torch.randn(2)}),
        nn.MultiheadAttention(4, 2),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8), 2, enable_nested_tensor=False),
        nn.Bilinear(2, 2, 2),
        nn.PReLU(),
        nn.GroupNorm(1, 2),
    )


@pytest.mark.parametrize(
    "factory",
    [
        nested,
        lambda: nn.LSTM(3, 4, 2, bidirectional=True),
        lambda: nn.BatchNorm2d(3),
        lambda: parametrizations.weight_norm(nn.Linear(3, 2)),
        lambda: parametrizations.spectral_norm(nn.Linear(3, 2)),
        lambda: nn.Sequential(nn.Flatten(), nn.Identity(), nn.EmbeddingBag(4, 2)),
    ],
)
def test_every_kind_of_module_equals_its_saved_twin(saved: Open, factory: Callable[[], nn.Module]) -> None:
    twin = factory()
    assert_equal(saved(twin.state_dict()).into(factory), twin)


def test_a_recurrent_module_computes_with_the_filled_parameters(saved: Open) -> None:
    """It keeps its parameters a second time, in a flat list and as weak references."""
    twin = nn.LSTM(3, 4)
    model = saved(twin.state_dict()).into(lambda: nn.LSTM(3, 4))
    x = torch.randn(5, 3)
    assert torch.equal(model(x)[0], twin(x)[0])


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def test_a_parametrized_module_is_filled_under_its_own_names(saved: Open) -> None:
    def factory() -> nn.Module:
        linear = nn.Linear(2, 2)
        parametrize.register_parametrization(linear, "weight", Doubled())
        return linear

    twin = factory()
    model = saved(twin.state_dict()).into(factory)
    assert "parametrizations.weight.original" in model.state_dict()
    assert torch.equal(model.weight, twin.weight)  # type: ignore[arg-type]


def test_a_modules_own_hook_for_older_files_is_asked(saved: Open) -> None:
    """The weight norm of old stored `weight_g` and `weight_v`; batch norm had no counter."""
    old = {"weight_g": torch.ones(2, 1), "weight_v": torch.ones(2, 3), "bias": torch.zeros(2)}
    model = saved(old).into(lambda: parametrizations.weight_norm(nn.Linear(3, 2)))
    assert torch.allclose(model.weight, torch.full((2, 3), 3**-0.5))
    norm = {name: torch.ones(3) for name in ("weight", "bias", "running_mean", "running_var")}
    assert saved(norm).into(lambda: nn.BatchNorm1d(3)).state_dict()["num_batches_tracked"].item() == 0


def test_hooks_do_not_hide_what_is_missing(saved: Open) -> None:
    with pytest.raises(MissingTensor, match="2 missing from the checkpoint: running_mean, running_var"):
        saved({"weight": torch.ones(3), "bias": torch.ones(3)}).into(lambda: nn.BatchNorm1d(3))
    with pytest.raises(TensorMismatch, match="size mismatch for weight"):
        saved({name: torch.ones(4) for name in nn.BatchNorm1d(3).state_dict()}).into(lambda: nn.BatchNorm1d(3))


def test_a_lazy_module_is_refused_by_name(saved: Open) -> None:
    twin = nn.Linear(2, 3)
    with pytest.raises(TensorMismatch, match="weight, bias belong to lazy modules"):
        saved(twin.state_dict()).into(lambda: nn.LazyLinear(3))


@pytest.mark.parametrize("value", [None, {"weight": torch.zeros(1)}, torch.zeros(1), (nn.Linear(1, 1),)])
def test_a_factory_that_makes_no_module_is_refused(saved: Open, value: object) -> None:
    with pytest.raises(LoadError, match=f"returned {type(value).__name__} where a torch.nn.Module is wanted"):
        saved({"weight": torch.zeros(1)}).into(lambda: value)  # type: ignore[type-var]


def test_a_module_in_place_of_a_factory_is_refused_with_advice(saved: Open) -> None:
    with pytest.raises(LoadError, match=r"lambda: Linear\(\.\.\.\)"):
        saved({"weight": torch.zeros(1)}).into(nn.Linear(1, 1))


def test_a_scripted_module_is_refused_with_advice(saved: Open) -> None:
    with pytest.raises(LoadError, match="script or trace the module after it was filled"):
        saved(nn.Linear(2, 2).state_dict()).into(lambda: torch.jit.script(nn.Linear(2, 2)))


def test_what_the_factory_raises_passes_through(saved: Open) -> None:
    def factory() -> nn.Module:
        raise KeyError("hidden_size")

    with pytest.raises(KeyError, match="hidden_size"):
        saved({"weight": torch.zeros(1)}).into(factory)
    assert not nn.Linear(1, 1).weight.is_meta


def test_only_the_building_threads_modules_have_no_values(saved: Open) -> None:
    elsewhere: list[bool] = []

    def factory() -> nn.Module:
        thread = threading.Thread(target=lambda: elsewhere.append(nn.Linear(1, 1).weight.is_meta))
        thread.start()
        thread.join()
        module = nn.Linear(1, 1)
        assert module.weight.is_meta
        return module

    saved({"weight": torch.ones(1, 1), "bias": torch.zeros(1)}).into(factory)
    assert elsewhere == [False]


def test_modules_are_built_in_many_threads_at_once(saved: Open) -> None:
    twin = nested()
    weights = saved(twin.state_dict())
    failed: list[BaseException] = []

    def use(make: Callable[[], nn.Module]) -> None:
        try:
            for _ in range(10):
                assert not any(parameter.is_meta for parameter in make().parameters())
        except BaseException as error:
            failed.append(error)

    makers = [nested, lambda: weights.into(nested)] * 3
    threads = [threading.Thread(target=use, args=(make,)) for make in makers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_module_that_was_filled_inside_a_factory_keeps_its_values(saved: Open) -> None:
    inner = saved({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    outer = saved({"head": torch.ones(1), "body.weight": torch.zeros(2, 2), "body.bias": torch.zeros(2)})

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = inner.into(lambda: nn.Linear(2, 2))
            self.seen = self.body.weight.tolist()
            self.head = nn.Parameter(torch.empty(1))

    assert outer.into(Outer).seen == [[1, 1], [1, 1]]


# -- dtype, mode, what follows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.float8_e4m3fn])
def test_the_files_dtype_is_kept(saved: Open, dtype: torch.dtype) -> None:
    tensors = {"weight": torch.ones(2, 2).to(dtype), "bias": torch.ones(2).to(dtype)}
    model = saved(tensors).into(lambda: nn.Linear(2, 2))
    assert model.weight.dtype == model.bias.dtype == dtype
    assert isinstance(model.weight, nn.Parameter)


def test_a_model_made_in_inference_mode_works_outside_of_it(saved: Open) -> None:
    with torch.inference_mode():
        model = saved(Rotary().state_dict()).into(Rotary)
        model(torch.ones(1, 8))
    assert not model.linear.weight.is_inference()
    assert not model.inv_freq.is_inference()
    model.linear.weight.add_(1)
    model.requires_grad_(True)
    model(torch.ones(1, 8)).sum().backward()


def test_the_model_is_in_evaluation_mode(saved: Open) -> None:
    """Dropout that goes on in service changes answers at random."""
    twin = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model = saved(twin.state_dict()).into(lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)))
    x = torch.ones(1, 2)
    assert torch.equal(model(x), twin[0](x))


def test_copying_and_saving_one_layer_does_not_take_the_file_along(saved: Open) -> None:
    weights = saved({"big": torch.zeros(1 << 18), "weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    model = weights.into(lambda: nn.Linear(2, 2), ignore=["big"])
    assert copy.deepcopy(model).weight.untyped_storage().nbytes() == 16
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    assert len(file.getvalue()) < 4096


def test_an_edit_in_place_never_reaches_the_file(saved: Open) -> None:
    weights = saved({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    model = weights.into(lambda: nn.Linear(2, 2))
    with torch.no_grad():
        model.weight.mul_(7)
    assert load_file(weights.path("model.safetensors"))["weight"].tolist() == [[1, 1], [1, 1]]
