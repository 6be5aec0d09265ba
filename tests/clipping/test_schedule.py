"""Schedules: stages begin where they should, and the learning rate is multiplied for their steps and no others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import budget
from hoarfrost.clipping import Adaptive, Clipper, Global, Local, PerLayer, Schedule
from hoarfrost.info import RunInfo
from hoarfrost.observers import Observer, Released

STEPS = 8
INFO = RunInfo({"0.weight": torch.Size([6, 4]), "0.bias": torch.Size([6])}, steps=STEPS)
MIXED = Schedule((0, Local(0.5), 0.3), (3, Global(1.0)), (5, Local(0.2), 2.5), by="step")
FACTORS = [0.3, 0.3, 0.3, 1.0, 1.0, 2.5, 2.5, 2.5]

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "Adam, lr a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
    "SGD, lr a tensor": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), foreach=False),
}
SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], LRScheduler] | None] = {
    "constant": None,
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 0.8**step),
    "CosineAnnealingLR": lambda optimizer: CosineAnnealingLR(optimizer, T_max=STEPS),
}


def network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def examples(number: int = 20) -> TensorDataset:
    torch.manual_seed(6)
    return TensorDataset(torch.randn(number, 4), torch.randint(3, (number,)))


def make(
    clip: Clipper, optimizer: Make = OPTIMIZERS["SGD"], groups: Callable[[nn.Module], Any] | None = None, **options: Any
) -> Any:
    model = network()
    parameters = model.parameters() if groups is None else groups(model)
    given = {"sample_rate": 1.0, "noise_multiplier": 1.0, "delta": 1e-5, "steps": STEPS, "accountant": "rdp"} | options
    return hoarfrost.make_private(model, optimizer(parameters), examples(), clip=clip, **given)


class Recorder(Observer):
    """The clipping, the gradients and the noisy statistics of every step."""

    def __init__(self, private: Any) -> None:
        self.private = private
        self.released: list[Released] = []
        self.gradients: list[dict[str, Tensor]] = []
        private.observe(self)

    def on_release(self, released: Released) -> None:
        self.released.append(released)
        self.gradients.append({name: p.grad.clone() for name, p in self.private.model.named_parameters()})

    @property
    def bounds(self) -> list[float]:
        return [each.clipping.bounds[0] for each in self.released]

    @property
    def factors(self) -> list[float]:
        return [each.clipping.learning_rate for each in self.released]


def train(private: Any, until: int = STEPS, scheduler: LRScheduler | None = None) -> None:
    while private.steps_taken < until:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            if scheduler is not None:
                scheduler.step()
            if private.steps_taken == until:
                break


def rates(optimizer: torch.optim.Optimizer) -> list[float]:
    return [float(group["lr"]) for group in optimizer.param_groups]


# The learning rate.


def two_groups(model: nn.Module) -> Any:
    first, second = model[0], model[2]  # type: ignore[index]
    return [{"params": list(first.parameters()), "lr": 0.02}, {"params": list(second.parameters()), "lr": 0.005}]


def assert_multiplied(optimizer: Make, scheduler: str, groups: Callable[[nn.Module], Any] | None = None) -> None:
    """A private run equals a plain one on its noisy gradients, whose learning rates are multiplied by hand."""
    private = make(MIXED, optimizer, groups)
    seen = Recorder(private)
    plain = network()
    twin = optimizer(plain.parameters() if groups is None else groups(plain))
    build = SCHEDULERS[scheduler]
    own, other = (None, None) if build is None else (build(private.optimizer), build(twin))
    for step in range(STEPS):
        train(private, step + 1, own)
        before = [group["lr"] for group in twin.param_groups]
        for group in twin.param_groups:
            group["lr"] = group["lr"] * FACTORS[step]
        for name, p in plain.named_parameters():
            p.grad = seen.gradients[step][name].clone()
        twin.step()
        for group, rate in zip(twin.param_groups, before, strict=True):
            group["lr"] = rate
        if other is not None:
            other.step()
        assert rates(private.optimizer) == rates(private.optimizer.inner) == rates(twin)
        for name, p in plain.named_parameters():
            assert torch.equal(private.model.get_parameter(name), p), (name, step)
    assert seen.factors == FACTORS


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_learning_rate_is_multiplied_as_by_hand(optimizer: str, scheduler: str) -> None:
    assert_multiplied(OPTIMIZERS[optimizer], scheduler)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_group_s_own_learning_rate_is_multiplied(optimizer: str, scheduler: str) -> None:
    if "tensor" in optimizer:
        lr = lambda model: [{**g, "lr": torch.tensor(g["lr"])} for g in two_groups(model)]  # noqa: E731
        assert_multiplied(OPTIMIZERS[optimizer], scheduler, lr)
    else:
        assert_multiplied(OPTIMIZERS[optimizer], scheduler, two_groups)


def test_a_factor_that_is_left_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hoarfrost.optim.private._learning_rates_times", lambda factor, optimizer: nullcontext())
    with pytest.raises(AssertionError):
        assert_multiplied(OPTIMIZERS["SGD"], "constant")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_learning_rate_object_is_the_scheduler_s_again(optimizer: str) -> None:
    """A tensor is the same tensor, too: a captured graph, or another scheduler, holds on to it."""
    private = make(MIXED, OPTIMIZERS[optimizer])
    before = private.optimizer.param_groups[0]["lr"]
    value = float(before)
    train(private)
    assert private.optimizer.param_groups[0]["lr"] is before
    assert float(before) == value


@pytest.mark.parametrize("optimizer", ["SGD", "Adam, lr a tensor"])
def test_after_a_failed_step_the_learning_rate_is_the_scheduler_s(
    optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = make(MIXED, OPTIMIZERS[optimizer], groups=two_groups)
    scheduler = LambdaLR(private.optimizer, lambda step: 0.5**step)
    train(private, 2, scheduler)
    before, during = rates(private.optimizer), []

    def fails() -> None:
        during.extend(rates(private.optimizer.inner))
        raise ZeroDivisionError

    monkeypatch.setattr(private.optimizer.inner, "step", fails)
    with pytest.raises(ZeroDivisionError):
        train(private, 3, scheduler)
    assert during == pytest.approx([0.3 * rate for rate in before])
    assert rates(private.optimizer) == before == pytest.approx([0.02 / 4, 0.005 / 4])


def test_factors_of_schedules_in_schedules_multiply() -> None:
    inner = Schedule((0, Local(0.5), 0.5), (2, Local(0.5), 0.25), by="step")
    outer = Schedule((0, inner, 0.5), (4, inner), (6, inner, 4.0), by="step")
    assert [outer.begin(step, INFO).learning_rate for step in range(STEPS)] == [
        0.25,
        0.25,
        0.125,
        0.125,
        0.25,
        0.25,
        1,
        1,
    ]


# Where stages begin.

STAGES = [Local(0.5), Global(0.7), Local(0.9)]
BEGIN: dict[str, tuple[list[float], dict[str, Any], list[int]]] = {
    "step": ([0, 3, 5], {}, [0, 3, 5]),
    "fraction": ([0, 0.4, 0.8], {"steps": 10}, [0, 4, 8]),
    "fraction, rounded": ([0, 0.3, 0.65], {"steps": 8}, [0, 2, 5]),
    "epoch": ([0, 1, 3], {"sample_rate": 0.5, "steps": 10}, [0, 2, 6]),
    "epoch, not whole": ([0, 1, 2], {"sample_rate": 0.3, "steps": 10}, [0, 4, 7]),
}  # fmt: skip


@pytest.mark.parametrize("case", BEGIN)
def test_stages_begin_at_the_right_step(case: str) -> None:
    starts, options, wanted = BEGIN[case]
    by: Any = case.partition(",")[0]
    schedule = Schedule(*zip(starts, STAGES, strict=True), by=by)
    private = make(schedule, **options)
    seen = Recorder(private)
    train(private, private.steps)
    assert seen.bounds == [STAGES[sum(begin <= step for begin in wanted) - 1].norm for step in range(private.steps)]
    assert len(set(seen.bounds)) == 3


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_stages_by_epsilon_begin_when_that_much_is_spent(accountant: Any) -> None:
    plan: dict[str, Any] = {"noise_multiplier": 2.0, "sample_rate": 0.5, "accountant": accountant}
    step = budget.Gaussian(noise_multiplier=2.0, sample_rate=0.5)
    after = [budget.epsilon([replace(step, steps=n)], 1e-5, accountant=accountant) for n in range(1, STEPS + 1)]
    starts = [0.0, (after[1] + after[2]) / 2, after[5] * (1 + 1e-9)]
    private = make(Schedule(*zip(starts, STAGES, strict=True), by="epsilon"), **plan)
    seen = Recorder(private)
    train(private)
    wanted = []
    for step in range(STEPS):
        # A stage begins with the first step that would go beyond its epsilon.
        spent = after[step]
        wanted.append(STAGES[sum(start == 0 or spent > start for start in starts) - 1].norm)
    assert seen.bounds == wanted
    assert wanted == [0.5, 0.5, 0.7, 0.7, 0.7, 0.7, 0.9, 0.9]


# Going on from a checkpoint.

RESUMED = Schedule(
    (0, Adaptive(start=0.5, cost=0.2), 0.5),
    (3, PerLayer(Adaptive(start=0.3, cost=0.2))),
    (6, Global(0.4), 2.0),
    by="step",
)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 6, 7])
def test_a_run_goes_on_within_a_stage_and_at_its_beginning(at: int, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    first = make(RESUMED, OPTIMIZERS["Adam"])
    train(first, at)
    first.save(path)
    later = make(RESUMED, OPTIMIZERS["Adam"])
    assert later.optimizer.engine.clipper.state().keys() <= first.optimizer.engine.clipper.state().keys()
    later.load(path)
    later.save(path)  # nothing is lost if no step lies between
    latest = make(RESUMED, OPTIMIZERS["Adam"])
    latest.load(path)
    seen = Recorder(latest)
    ahead = first.optimizer.engine.clipper.begin(at, first.info())
    train(latest, at + 1)
    assert seen.released[0].clipping.bounds == ahead.bounds
    assert seen.released[0].clipping.learning_rate == ahead.learning_rate == [0.5, 1.0, 2.0][(at >= 3) + (at >= 6)]
    starts = {0: (0.5,), 3: (0.3, 0.3), 6: (0.4,), 7: (0.4,)}
    if at in starts:  # a stage that begins, begins anew
        assert seen.released[0].clipping.bounds == starts[at]
    else:  # and one that is under way has learned something
        assert all(bound not in (0.5, 0.3) for bound in seen.released[0].clipping.bounds)
    train(latest)
    assert latest.steps_taken == STEPS


def test_adaptive_stages_keep_their_own_norms() -> None:
    """What the first one learned is not the second one's, and the style that was handed over stays as it was."""
    local, dropping = Adaptive(start=0.5, cost=0.2), Adaptive(start=0.9, style="global", cost=0.2)
    schedule = Schedule((0, local), (4, dropping), by="step")
    private = make(schedule)
    seen = Recorder(private)
    train(private, 4)
    first = private.optimizer.engine.clipper.stages[0].style.norm
    assert len(set(seen.bounds)) == 4
    assert seen.bounds[0] == 0.5
    train(private)
    assert seen.bounds[4] == 0.9
    assert len(set(seen.bounds)) == 8
    own = private.optimizer.engine.clipper.stages
    assert own[0].style.norm == first
    assert own[1].style.norm not in (0.9, first)
    assert (local.norm, dropping.norm) == (0.5, 0.9)
    assert {key: float(value) for key, value in private.optimizer.engine.clipper.state().items()} == {
        "0/norm": first, "1/norm": own[1].style.norm
    }  # fmt: skip
    again = Recorder(make(schedule))
    train(again.private, 1)
    assert again.bounds == [0.5]


def test_one_style_in_two_stages_follows_twice() -> None:
    """Stages are runs of their own: the same object in two of them follows twice."""
    style = Adaptive(start=0.5, cost=0.2)
    private = make(Schedule((0, style), (4, style, 0.5), by="step"))
    seen = Recorder(private)
    train(private)
    assert seen.bounds[4] == 0.5
    assert seen.factors == [1.0] * 4 + [0.5] * 4


def test_the_statement_names_every_way_of_clipping_that_was_used(tmp_path: Path) -> None:
    """Also one that a later stage, or a checkpoint, has left behind: the jump of a first stage is not forgotten."""
    jumping = Schedule((0, Global(1.0, edge=0)), (2, PerLayer(Local(0.5))), by="step")
    private = make(jumping)
    with pytest.warns(UserWarning, match="jumps"):
        train(private, 4)
    first, second, *_ = private.statement().notes
    assert first.endswith("one block, a rule that jumps, so that all this holds in exact arithmetic alone")
    assert second.endswith("2 blocks, noise of one level for all of them")
    private.save(tmp_path / "checkpoint")
    later = make(Local(1.0))
    later.load(tmp_path / "checkpoint")
    train(later, 5)
    assert later.statement().notes[:2] == (first, second)
    assert later.statement().notes[2].startswith("gradients clipped by Local(norm=1.0): one block")
