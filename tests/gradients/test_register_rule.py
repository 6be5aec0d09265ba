"""A layer of one's own with a rule of one's own: equal to the oracle if the rule is right, and seen if it is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hoarfrost
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.gradients.rules import (
    Dense,
    LayerRule,
    NamedContributions,
    Outer,
    flatten_positions,
    registry,
    rule_for,
    sum_positions,
)
from hoarfrost.gradients.rules.fallback import FallbackRule
from hoarfrost.gradients.rules.linear import LinearRule
from hoarfrost.masks import resolve_mask
from tests import oracle
from tests.support.engines import announce, engine_for

SCALE = 3.0


class LowRank(nn.Module):
    """y = scale · x downᵀ upᵀ + shift: a matrix of rank 2 that is never written out."""

    def __init__(self, inputs: int = 5, outputs: int = 4, rank: int = 2) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(rank, inputs)), nn.Parameter(torch.randn(outputs, rank))
        self.shift = nn.Parameter(torch.randn(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return SCALE * (x @ self.down.T @ self.up.T) + self.shift


class Saturating(LowRank):
    """The same with an activation whose result autograd keeps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class LowRankRule(LayerRule):
    parameters = frozenset({"down", "up", "shift"})
    input_name = "x"
    scale = SCALE

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: Any, *saved: Tensor) -> NamedContributions:
        x, g = flatten_positions(x), flatten_positions(g)
        if "down" in live:
            yield "down", Outer(x, self.scale * (g @ module.up))
        if "up" in live:
            yield "up", Outer(x @ module.down.T, self.scale * g)
        if "shift" in live:
            yield "shift", Dense(sum_positions(g))


class SaturatingRule(LowRankRule):
    """With the output's derivative from what `run` kept of the forward pass."""

    def run(self, module: Any, original: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        output = original(*args, **kwargs)
        return output, 1 - output.detach().square()

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: Any, *saved: Tensor) -> NamedContributions:
        return super().contributions(module, x, g * saved[0], live)


class ForgetsTheScale(LowRankRule):
    scale = 1.0


class ForgetsTheShift(LowRankRule):
    def contributions(self, *args: Any) -> NamedContributions:
        return (pair for pair in super().contributions(*args) if pair[0] != "shift")


class Around(nn.Module):
    """The layer between two others, called by keyword."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(3, 5), layer, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x=self.first(x).relu()))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    monkeypatch.setattr(registry, "RULES", dict(registry.RULES))


def loss(model: nn.Module, batch: Any) -> Tensor:
    return model(batch).square().sum()


def compare(layer: nn.Module, shape: tuple[int, ...], views: int = 1, live: dict[str, Tensor] | None = None) -> None:
    """Clipped sums of a model with this layer in it against the oracle's; half of the examples are clipped."""
    plain, batch = Around(layer).double(), torch.randn(*shape, dtype=torch.float64)
    per_example = oracle.gradients(plain, batch, loss, views=views)
    if live is not None:
        everything = {name: torch.ones_like(p, dtype=torch.bool) for name, p in plain.named_parameters()}
        per_example = oracle.masked(per_example, everything | live)
    clip_norm = oracle.halving_norm(per_example)
    assert {oracle.norm(gradient) > clip_norm for gradient in per_example} == {True, False}
    expected = oracle.clipped_sum(per_example, clip_norm)

    engine = engine_for(copy.deepcopy(plain), clip_norm, views=views)
    parameters = dict(engine.model.named_parameters())
    engine.masks = {name: resolve_mask(mask, parameters[name]) for name, mask in (live or {}).items()}
    announce(engine, len(batch) // views)
    loss(engine.model, batch).backward()
    found = engine.release()
    assert found is not None
    for name in parameters:
        # As in test_against_oracle: clippers aim a little below the norm, at C(1 - 1e-5).
        torch.testing.assert_close(found.sums[name], expected[name], rtol=2e-4, atol=1e-5 * clip_norm)


SHAPES = {"no sequence": ((6, 3), 1), "a sequence": ((6, 7, 3), 1), "views": ((12, 3), 2)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("layer", "rule"), [(LowRank, LowRankRule), (Saturating, SaturatingRule)])
def test_a_registered_rule_equals_the_oracle(layer: Callable, rule: Callable, shape: str) -> None:
    hoarfrost.register_rule(layer, made := rule())
    assert rule_for(layer()) is made
    compare(layer(), *SHAPES[shape])


def test_what_a_rule_is_made_from_is_exported() -> None:
    assert {"register_rule", "rules"} <= set(hoarfrost.__all__) & set(dir(hoarfrost))
    assert hoarfrost.register_rule is hoarfrost.rules.register_rule
    assert hoarfrost.rules.LayerRule is LayerRule


def test_it_is_masked_like_any_other() -> None:
    hoarfrost.register_rule(LowRank, LowRankRule())
    live = {
        "layer.up": torch.rand(4, 2) < 0.5,
        "layer.down": torch.rand(2, 5) < 0.5,
        "layer.shift": torch.arange(4) > 1,
    }
    assert all(0 < mask.sum() < mask.numel() for mask in live.values())
    compare(LowRank(), (6, 7, 3), live=live)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_rule_is_seen(shape: str) -> None:
    hoarfrost.register_rule(LowRank, ForgetsTheScale())
    with pytest.raises(AssertionError, match="not close"):
        compare(LowRank(), *SHAPES[shape])


def test_a_rule_that_forgets_a_parameter_is_refused() -> None:
    hoarfrost.register_rule(LowRank, ForgetsTheShift())
    with pytest.raises(NotPrivate, match=r"layer \(LowRank\): ForgetsTheShift yields no .* parameter shift"):
        compare(LowRank(), (6, 3))
    layer = LowRank()
    layer.shift.requires_grad_(False)  # what is frozen needs no contribution
    engine = engine_for(Around(layer))
    announce(engine, 6)
    loss(engine.model, torch.randn(6, 3)).backward()
    assert engine.release() is not None


def test_subclasses_have_the_rule_while_they_keep_the_forward() -> None:
    hoarfrost.register_rule(LowRank, rule := LowRankRule())

    class Keeps(LowRank):
        pass

    class HoldsMore(LowRank):
        def __init__(self) -> None:
            super().__init__()
            self.unknown = nn.Parameter(torch.zeros(()))

    assert rule_for(Keeps()) is rule
    assert isinstance(rule_for(Saturating()), FallbackRule)
    assert isinstance(rule_for(HoldsMore()), FallbackRule)
    assert isinstance(rule_for(nn.Linear(2, 2)), LinearRule)


def test_a_rule_is_replaced_only_if_that_is_meant() -> None:
    class Named(nn.Linear):
        pass

    class Other(LinearRule):
        pass

    with pytest.raises(InvalidValue, match=r"Linear has a rule already \(LinearRule\)\. Pass replace=True"):
        hoarfrost.register_rule(nn.Linear, Other())
    with pytest.raises(InvalidValue, match="Named has a rule already"):  # the one it inherits
        hoarfrost.register_rule(Named, Other())
    hoarfrost.register_rule(Named, first := Other(), replace=True)
    assert rule_for(Named(2, 2)) is first
    assert type(rule_for(nn.Linear(2, 2))) is LinearRule
    hoarfrost.register_rule(LowRank, LowRankRule())
    with pytest.raises(InvalidValue, match="LowRank has a rule already"):
        hoarfrost.register_rule(LowRank, LowRankRule())


@pytest.mark.parametrize(
    ("module_class", "rule", "message"),
    [
        (LowRank(), LowRankRule(), "a subclass of nn.Module"),
        (int, LowRankRule(), "a subclass of nn.Module"),
        ("LowRank", LowRankRule(), "a subclass of nn.Module"),
        (nn.Module, LowRankRule(), "no forward of its own"),
        (nn.ModuleList, LowRankRule(), "no forward of its own"),
        (LowRank, LowRankRule, r"pass an instance, LowRankRule\(\)"),
        (LowRank, lambda *_: None, "hoarfrost.rules.LayerRule"),
        (LowRank, None, "hoarfrost.rules.LayerRule"),
    ],
)
def test_what_cannot_be_is_refused(module_class: Any, rule: Any, message: str) -> None:
    before = dict(registry.RULES)
    with pytest.raises(InvalidValue, match=message):
        hoarfrost.register_rule(module_class, rule)
    assert before == registry.RULES
