"""Layers are frozen in the order in which the model uses them, from the step that was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost import budget
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer, Layers, RunInfo
from hoarfrost.models import resnet18_groupnorm
from tests.support.freezing import make, step


class Backwards(nn.Module):
    """Uses its layers in the opposite order of that in which it lists them."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.middle, self.stem = nn.Linear(5, 3), nn.Linear(4, 5), nn.Linear(36, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.stem(x.flatten(1)).tanh()).tanh())


def frozen_modules(freezer: Freezer, number: int, info: RunInfo) -> set[str]:
    """The modules that are frozen in a step."""
    return {name.rpartition(".")[0] for name, live in freezer.live(number, info).items() if not live}


# Which layers.

CHOICES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "the first half, rounded down": ({}, {"stem"}),
    "a number": ({"first": 2}, {"stem", "middle"}),
    "a share": ({"first": 0.7}, {"stem", "middle"}),
    "a name": ({"names": "middle"}, {"middle"}),
    "names": ({"names": ["head", "stem"]}, {"head", "stem"}),
    "a pattern": ({"names": ["[hm]*d*"]}, {"middle", "head"}),
    "a parameter's name": ({"names": ["stem.weight", "stem.bias"]}, {"stem"}),
    "all but one": ({"train": ["middle"]}, {"head", "stem"}),
    "all but a pattern": ({"train": ["m*"]}, {"head", "stem"}),
}


@pytest.mark.parametrize("case", CHOICES)
def test_what_is_frozen_is_what_was_asked_for(case: str) -> None:
    given, expected = CHOICES[case]
    model = Backwards()
    before = {name: p.clone() for name, p in model.named_parameters()}
    private = make(model, freeze=Layers(step=1, **given), steps=3)
    step(private)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)  # everything, before it begins
    between = {name: p.clone() for name, p in model.named_parameters()}
    for _ in range(2):
        step(private)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, between[name])}
    assert {name.rpartition(".")[0] for name in set(before) - moved} == expected
    assert {name.rpartition(".")[0] for name in moved}.isdisjoint(expected)


def test_what_two_leave_together_is_judged_when_the_order_is_known() -> None:
    """As listed, the first two layers are head and middle; as used, stem and middle."""
    model = Backwards()
    before = {name: p.clone() for name, p in model.named_parameters()}
    step(make(model, freeze=Layers(first=2, step=0) & Layers(train=["head"], step=0), steps=3))
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {"head.weight", "head.bias"}
    with pytest.raises(InvalidValue, match="nothing to train in the last step"):
        step(make(Backwards(), freeze=Layers(first=2, step=0) & Layers(train=["stem"], step=2), steps=3))


class Attending(nn.Module):
    """Its attention calls none of its own children."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))  # which is the first to be used
        self.head, self.attention = nn.Linear(6, 3), nn.MultiheadAttention(6, 2, batch_first=True)
        self.stem = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.flatten(1, 2) * self.scale)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_what_is_never_called_comes_with_what_is_called_around_it() -> None:
    private = make(Attending(), freeze=Layers(first=3, step=0), steps=3)
    step(private)
    layers = private.optimizer.controller.info.layers
    assert [{name.rpartition(".")[0] for name in layer} for layer in layers] == [
        {""}, {"stem"}, {"attention"}, {"attention.out_proj"}, {"head"},
    ]  # fmt: skip


def test_layers_wait_for_the_order_in_which_they_are_used() -> None:
    model = Backwards()
    private = make(model, freeze=Layers(first=1, step=0), sample_rate=1e-9, noise_multiplier=1.0, steps=2)
    for _ in private.loader:
        with pytest.raises(InvalidValue, match="before the model has run"):
            private.optimizer.step()
        break
    model = Backwards()
    before = model.stem.weight.clone()
    private = make(model, freeze=Layers(first=1, step=0), sample_rate=1e-9, noise_multiplier=1.0, steps=2)
    step(private)  # runs the model on an empty batch
    assert torch.equal(model.stem.weight, before)


def test_residual_groups_have_names() -> None:
    names = {name: p.shape for name, p in resnet18_groupnorm().named_parameters()}
    info = RunInfo(names, tuple((name,) for name in names), 100, 0.1, int)
    groups = sorted({name.rpartition(".")[0].split(".")[1] for name in names if name.startswith("blocks.")})
    assert groups
    for group in groups:
        frozen = Layers(names=[f"blocks.{group}"], step=0).frozen(info)
        assert frozen == {name for name in names if name.startswith(f"blocks.{group}.")}


# From when on.

BEGINNINGS: dict[str, tuple[dict[str, Any], int]] = {
    "20 steps before the end": ({}, 80),
    "a step": ({"step": 37}, 37),
    "the first step": ({"step": 0}, 0),
    "a fraction": ({"fraction": 0.25}, 25),
    "an epoch": ({"epoch": 3}, 21),  # 100 steps of 1/7: epochs begin at 0, 7, 14, 21
    "a spent epsilon": ({"epsilon": 2.0}, 42),
}


@pytest.mark.parametrize("case", BEGINNINGS)
def test_it_begins_in_the_very_step(case: str) -> None:
    given, begins = BEGINNINGS[case]
    shapes = {name: p.shape for name, p in Backwards().named_parameters()}
    layers = tuple((f"{layer}.weight", f"{layer}.bias") for layer in ("stem", "middle", "head"))
    info = RunInfo(shapes, layers, 100, 1 / 7, lambda epsilon: {2.0: 42}[epsilon])
    freezer = Layers(first=1, **given)
    assert [bool(frozen_modules(freezer, number, info)) for number in range(100)] == [n >= begins for n in range(100)]
    assert len({freezer.key(number, info) for number in range(begins)} & {freezer.key(begins, info)}) == 0


def test_a_run_shorter_than_the_default_is_frozen_from_the_beginning() -> None:
    info = RunInfo(
        {"a.weight": torch.Size([2]), "b.weight": torch.Size([2])}, (("a.weight",), ("b.weight",)), 7, 0.1, int
    )
    assert Layers().begins(info) == 0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_spent_epsilon_is_the_last_step_within_it(accountant: Any) -> None:
    settings = {"sample_rate": 0.5, "noise_multiplier": 3.0, "steps": 60, "accountant": accountant}
    private = make(Backwards(), freeze=Layers(first=1, epsilon=3.0), **settings)
    begins = private.optimizer.controller.freezer.begins(private.optimizer.controller.info)
    spent = [
        budget.epsilon([budget.Gaussian(noise_multiplier=3.0, sample_rate=0.5, steps=n)], 1e-5, accountant)
        for n in (begins, begins + 1)
    ]
    assert spent[0] <= 3.0 < spent[1]
    assert 0 < begins < 60
