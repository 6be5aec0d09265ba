"""Only the optimizer changes what is saved: models that keep data are refused by name, and left as they were."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.freezing.scaling import PrivateScaling
from hoarfrost.models.standardize import Standardize
from tests.support.engines import announce, clipped_sums, engine_for


def squares(output: Tensor) -> Tensor:
    return output.square().sum()


class Net(nn.Module):
    """A linear layer, and something in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class ActNorm(nn.Module):
    """Data-dependent initialisation as in Glow: the first batch sets the shift and the scale."""

    def __init__(self) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))
        self.initialised = False

    def forward(self, x: Tensor) -> Tensor:
        if not self.initialised:
            self.shift.data.copy_(-x.mean(0))
            self.scale.data.copy_(1 / (x.std(0) + 1))
            self.initialised = True
        return (x + self.shift) * self.scale


class RegistersLate(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "centre"):
            self.register_buffer("centre", x[0].detach().clone())
        return self.inner(x) + 0 * self.centre[:3]


class RegistersParameterLate(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "centre"):
            self.register_parameter("centre", nn.Parameter(x[0].detach().clone(), requires_grad=False))
        return self.inner(x)


class AddsAModule(Net):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "extra"):
            self.extra = nn.LayerNorm(4)
        return self.inner(x)


class RunningMean(nn.Module):
    """In a Parameter that is not trained, written through `.data`, which bumps no version."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.mean.data.lerp_(x.detach().mean(0), 0.1)
        return x


class Codebook(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("codebook", torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codebook).argmin(1)
        if self.training:
            with torch.no_grad():
                self.codebook.index_copy_(0, nearest, 0.9 * self.codebook[nearest] + 0.1 * x)
        return self.inner(x + (self.codebook[nearest] - x).detach())


class Queue(Net):
    """MoCo's: the last keys."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.zeros(16, 3))

    def forward(self, x: Tensor) -> Tensor:
        keys = self.inner(x)
        self.queue = torch.cat([keys.detach(), self.queue])[:16]
        return keys


class WithGradientsOnly(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            self.seen += x.detach().sum(0)
        return self.inner(x)


class ReplacesItsParameter(Net):
    def forward(self, x: Tensor) -> Tensor:
        self.inner.bias = nn.Parameter(x.detach().mean(0)[:3])
        return self.inner(x)


class PlainAttribute(Net):
    """A running mean that no state_dict holds: one batch's examples move the next one's values."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(4)

    def forward(self, x: Tensor) -> Tensor:
        output = self.inner(x - self.mean)
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return output


class PlainAttributeInPlace(Net):
    def __init__(self) -> None:
        super().__init__()
        self.history = [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        output = self.inner(x - self.history[-1])
        self.history.append(x.detach().mean(0))
        self.history[0].add_(1)
        return output


class CacheOfData(Net):
    """Not saved, but of data."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("last", x.detach().clone(), persistent=False)
        return self.inner(x)


class Counter(Net):
    """Depends on no data, but nobody can know: it has to be declared."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.inner(x)


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "data-dependent initialisation": (
        lambda: nn.Sequential(ActNorm(), nn.Linear(4, 3)),
        r"the parameter 0\.(shift|scale) changes",
    ),
    "a buffer registered in the first run": (RegistersLate, "the buffer centre appears"),
    "a parameter registered in the first run": (RegistersParameterLate, "the parameter centre appears"),
    "a module added in the first run": (AddsAModule, r"the parameter extra\.weight appears"),
    "a running mean in a parameter": (
        lambda: nn.Sequential(RunningMean(), nn.Linear(4, 3)),
        r"the parameter 0\.mean changes",
    ),
    "a VQ codebook": (Codebook, "the buffer codebook changes"),
    "a MoCo queue": (Queue, "the buffer queue changes"),
    "a buffer that changes with gradients on": (WithGradientsOnly, "the buffer seen changes"),
    "a parameter that is replaced": (ReplacesItsParameter, r"the parameter inner\.bias"),
    "a running mean in a plain attribute": (PlainAttribute, r"inner \(Linear\), its input: .*batch before"),
    "a plain attribute, in place": (PlainAttributeInPlace, r"inner \(Linear\), its input: .*batch before"),
    "a cache that holds data": (CacheOfData, "the buffer last"),
    "a counter": (Counter, "the buffer calls changes .*allow_state"),
}


def everything(model: nn.Module) -> dict[str, Any]:
    """All that a model holds: registered tensors and plain values, by name, copied."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        for key, value in module.__dict__.items():
            if key not in ("forward", "_forward_hooks", "_forward_pre_hooks"):
                found[f"{name}:{key}"] = (id(value), copy.deepcopy(value) if key != "_modules" else list(value))
    return found


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and torch.equal(a, b) and a.requires_grad == b.requires_grad
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


@pytest.mark.parametrize("kind", REFUSED)
def test_a_model_that_keeps_data_is_refused_by_name_and_left_as_it_was(kind: str) -> None:
    torch.manual_seed(0)
    make, message = REFUSED[kind]
    model = make()
    engine = engine_for(model)
    before, objects = everything(model), {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}
    announce(engine, 5)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    with pytest.raises(NotPrivate, match=message):
        model(torch.randn(5, 4) + 1)
    assert same(before, everything(model))
    assert objects == {name: id(t) for name, t in model.state_dict(keep_vars=True).items()}
    assert not model.state_dict().keys() - objects.keys()
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]


# After the probe: what it could not see is seen before the next release, or at a save.


class Late(Net):
    """Begins to keep data after 20 calls."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.calls = how, 0
        self.register_buffer("seen", torch.zeros(4))
        self.other = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 20:
            mean = x.detach().mean(0)
            if self.how == "in place":
                self.seen += mean
            elif self.how == "data":
                self.seen.data += mean
            elif self.how == "replaced":
                self.seen = mean
            elif self.how == "untrained":
                self.other.data.copy_(mean)
            elif self.how == "registered":
                self.register_buffer("late", mean)
            elif self.how == "trained":
                with torch.no_grad():
                    self.inner.bias.copy_(mean[:3])
        return self.inner(x)


def private_run(model: nn.Module, **options: Any) -> Any:
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(40, 4) + 1, torch.randn(40, 3))
    settings = {"sample_rate": 0.2, "noise_multiplier": 1.0, "delta": 1e-5, "steps": 60, "accountant": "rdp"}
    trained = [p for p in model.parameters() if p.requires_grad]
    return hoarfrost.make_private(model, torch.optim.SGD(trained, lr=0.1), data, **(settings | options))


def train(private: Any, after_step: Callable[[int], None] = lambda step: None) -> None:
    while private.steps_taken < private.steps:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.mse_loss(private.model(x), y, reduction="sum").div(max(1, len(x))).backward()
            private.optimizer.step()
            after_step(private.steps_taken)


LATE = {
    "in place": "the buffer seen changes",
    "data": "the buffer seen changes",
    "replaced": "the buffer seen changes",
    "untrained": "the parameter other changes",
    "registered": "the buffer late appears",
    "trained": r"the parameter inner\.bias changes",
}


@pytest.mark.parametrize("how", LATE)
def test_what_begins_to_keep_data_later_is_refused_before_the_release(how: str) -> None:
    private = private_run(Late(how))
    with pytest.raises(NotPrivate, match=LATE[how]):
        train(private)
    assert 0 < private.steps_taken < 60
    taken = private.steps_taken
    with pytest.raises(NotPrivate, match=LATE[how]):
        private.optimizer.step()
    assert private.steps_taken == taken


def test_a_large_tensor_is_compared_in_slices_and_wholly_at_a_save(tmp_path: Any) -> None:
    model = Net()
    model.register_buffer("table", torch.randn(1000, 1000))
    private = private_run(model, steps=4)
    train(private, lambda step: model.table.data[-1].add_(1) if step == 2 else None)  # found within some releases
    with pytest.raises(NotPrivate, match="the buffer table changes"):
        private.save(tmp_path / "checkpoint.safetensors")
    assert not (tmp_path / "checkpoint.safetensors").exists()

    def many_releases() -> None:
        for _ in range(1000):
            private.optimizer.engine.state.check()

    with pytest.raises(NotPrivate, match="the buffer table changes"):
        many_releases()


def test_a_parameter_that_changes_in_the_backward_pass_is_refused() -> None:
    class Writes(Net):
        def forward(self, x: Tensor) -> Tensor:
            output = self.inner(x)
            if output.requires_grad and self.calls >= 0:
                output.register_hook(self.keep)
            return output

        calls = -1

        @torch.no_grad()
        def keep(self, gradient: Tensor) -> None:
            self.inner.bias.add_(gradient.mean(0))

    model = Writes()
    engine = engine_for(model)
    clipped_sums(engine, torch.randn(5, 4), squares)
    model.calls = 0
    announce(engine, 5)
    with pytest.raises(NotPrivate, match=r"inner\.bias changes"):
        squares(model(torch.randn(5, 4))).backward()


def frozen_after_two_steps(model: nn.Module, write: Callable[[Tensor], Any], **options: Any) -> Any:
    """A large layer that the optimizer holds is trained, frozen, and then written to after every step."""
    wide = model.wide.weight

    def after_step(step: int) -> None:
        if step == 2:
            wide.requires_grad_(False)
        if step > 3:
            write(wide)

    private = private_run(model, **options)
    train(private, after_step)
    return private


class Wide(Net):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(4, 1 << 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.wide(x)[:, -3:]


@torch.no_grad()
def add_one(t: Tensor) -> None:
    t[-1] += 1


@torch.no_grad()
def double_and_halve(t: Tensor) -> None:
    t.mul_(2).mul_(0.5)


def test_a_large_frozen_parameter_is_compared_when_it_was_written_to() -> None:
    with pytest.raises(NotPrivate, match=r"wide\.weight \(whose requires_grad is off\) changes"):
        frozen_after_two_steps(Wide(), add_one, steps=8)
    assert frozen_after_two_steps(Wide(), double_and_halve, steps=8).steps_taken == 8
    assert frozen_after_two_steps(Wide(), add_one, steps=8, allow_state=["wide.*"]).steps_taken == 8


def test_a_large_frozen_parameter_is_compared_in_turn_where_no_version_shows(tmp_path: Any) -> None:
    private = frozen_after_two_steps(Wide(), lambda t: None, steps=40)  # its slices are read in turn
    private.model.wide.weight.data[-1] += 1
    with pytest.raises(NotPrivate, match=r"wide\.weight"):
        private.save(tmp_path / "checkpoint.safetensors")


@pytest.mark.parametrize("velocity", ["stands", "flows"])
def test_what_a_freezer_lets_flow_is_not_compared(velocity: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(40, 4) + 1, torch.randn(40, 3))
    freezer = hoarfrost.freeze.Random(0.5, granularity="tensor", velocity=velocity)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), data, sample_rate=0.2, noise_multiplier=1.0,
        delta=1e-5, steps=12, accountant="rdp", freeze=freezer,
    )  # fmt: skip
    train(private)
    assert private.steps_taken == 12


# What honest programs do.


class Positions(nn.Module):
    """Position ids as BERT has them; a rotary table that grows with the longest sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("position_ids", torch.arange(32)[None], persistent=False)
        self.register_buffer("angles", torch.zeros(0), persistent=False)
        self.table, self.inner = nn.Embedding(32, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if len(self.angles) < x.shape[1]:
            self.register_buffer("angles", torch.arange(float(x.shape[1])).sin(), persistent=False)
        h = x + self.table(self.position_ids[:, : x.shape[1]]).expand(len(x), -1, -1)
        return self.inner(h * self.angles[: x.shape[1], None]).sum(1)


def test_caches_that_depend_on_shapes_alone_may_grow() -> None:
    engine = engine_for(Positions())
    for length in (3, 5, 4, 9):
        clipped_sums(engine, torch.randn(5, length, 4), squares)
        engine.state.check()
    assert len(engine.model.angles) == 9


def test_what_is_declared_may_change_and_the_statement_names_it() -> None:
    private = private_run(Counter(), steps=5, allow_state=["calls"])
    train(private)
    assert int(private.model.calls) == 5  # not moved by the probe
    assert "calls" in str(private.statement())
    late = private_run(Late("registered"), steps=40, allow_state=["l*"])
    train(late)
    assert "late" in late.model.state_dict()


def test_declarations_are_names() -> None:
    with pytest.raises(InvalidValue, match="allow_state"):
        private_run(Counter(), allow_state="calls")


def test_honest_programs_are_not_accused(tmp_path: Any) -> None:
    """Loads, casts, clamps, an average of weights, buffers set before the first step, a plain counter."""

    class Honest(Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(4))
            self.frozen, self.calls = nn.Linear(4, 4).requires_grad_(False), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            temperature = 1 / self.calls  # annealed, whatever the data are
            return self.inner(self.frozen(x - self.mean) * (1 + temperature))

    model = Honest()
    private = private_run(model, steps=12)
    model.mean.fill_(0.5)
    average = torch.optim.swa_utils.AveragedModel(model)
    saved = copy.deepcopy(model.state_dict())
    calls: list[int] = []

    def after_step(step: int) -> None:
        average.update_parameters(model)
        with torch.no_grad():
            model.inner.weight.clamp_(-1, 1)
        if step == 3:
            other = copy.deepcopy(saved)
            other["mean"] += 1
            model.load_state_dict(other)
        if step == 4:
            model.frozen.load_state_dict({name: t + 1 for name, t in model.frozen.state_dict().items()})
        if step == 5:
            model.to(torch.device("cpu"), memory_format=torch.contiguous_format)
            model.mean = model.mean.clone()
        if step == 6:
            model.frozen.requires_grad_(True).requires_grad_(False)
            private.save(tmp_path / "checkpoint.safetensors")
        if step == 10:
            model.frozen.to(torch.float64).to(torch.float32)
        calls.append(model.calls)

    train(private, after_step)
    assert calls[:3] == [1, 2, 3]  # the probe leaves plain values alone, too
    private.save(tmp_path / "end.safetensors")
    later = private_run(Honest(), steps=12)
    later.load(tmp_path / "checkpoint.safetensors")
    train(later)
    later.save(tmp_path / "end.safetensors")


class LaterScaling(PrivateScaling):
    def releases(self, info: Any) -> Any:
        return tuple(replace(planned, step=2) for planned in super().releases(info))


@pytest.mark.parametrize("kind", [PrivateScaling, LaterScaling])
def test_private_scaling_may_set_its_layer(kind: Any) -> None:
    layer = Standardize([0, 1, 2, 3], width=4)
    model = nn.Sequential(layer, nn.Linear(4, 3))
    private = private_run(model, steps=4, freeze=kind(layer, noise_multiplier=20.0))
    train(private)
    assert layer.mean.any()


def test_a_copy_of_a_private_model_is_not_watched() -> None:
    model = Net()
    model.register_buffer("mean", torch.zeros(4))
    private = private_run(model, steps=2)
    twin = copy.deepcopy(model)
    twin.load_state_dict(model.state_dict())
    train(private, lambda step: twin.mean.add_(1))
    assert twin.mean.sum() > 0
