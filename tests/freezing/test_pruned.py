"""Choosing by magnitude: what is small in a reference is zero and stays zero, or is frozen where it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hoarfrost
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Largest, Pruned
from tests import oracle
from tests.support.freezing import PLAN, data, make, net, step


def reference() -> dict[str, Tensor]:
    torch.manual_seed(8)
    return {name: torch.randn_like(p) * (1 + k / 4) for k, (name, p) in enumerate(net().named_parameters())}


def matrices(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: weight for name, weight in weights.items() if weight.dim() > 1}


OPTIMIZERS = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9, weight_decay=0.1),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.1),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("per", ["layer", "model"])
@pytest.mark.parametrize("rewind", [True, False])
@pytest.mark.parametrize("biases", [True, False])
def test_the_survivors_are_the_largest_and_the_others_stay_zero(
    optimizer: Any, per: str, rewind: bool, biases: bool
) -> None:
    model, important = net(), reference()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    freezer = Pruned(0.4, important, per=per, rewind=rewind, biases=biases)
    private = make(model, optimizer(model.parameters()), freeze=freezer, **PLAN)
    chosen = important if biases else matrices(important)
    everything = {name: torch.ones_like(weight) > 0 for name, weight in important.items()}
    survive = everything | oracle.largest(chosen, 0.4, together=per == "model")
    begin = initial if rewind else important
    for name, p in model.named_parameters():
        assert torch.equal(p, torch.where(survive[name], begin[name], 0.0))
    for _ in range(3):
        step(private)
    for name, p in model.named_parameters():
        assert (p[~survive[name]] == 0).all()
        assert (p[survive[name]] != begin[name][survive[name]]).all()


def test_a_model_is_as_good_a_reference_as_its_weights() -> None:
    other = net()
    other.load_state_dict(reference())
    masks = []
    for given in (other, other.state_dict()):
        model = net()
        make(model, freeze=Pruned(0.3, given), **PLAN)
        masks.append([p == 0 for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*masks, strict=True))
    assert any(mask.any() for mask in masks[0])


def test_what_is_kept_whole_is_not_pruned() -> None:
    model = net()
    make(model, freeze=Pruned(1.0, reference()), **PLAN)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), net().parameters(), strict=True))


def test_the_reference_is_trained_on_public_data_and_the_model_is_not() -> None:
    """Examples whose class lies in one pixel: the weight that sees it is what must survive."""
    torch.manual_seed(0)
    x = torch.randn(400, 10)
    public = TensorDataset(x, (x[:, 7] > 0).long())
    model = nn.Linear(10, 2)
    before = model.weight.detach().clone()
    pruned = hoarfrost.freeze.prune_from(model, public, keep=0.1, epochs=5)
    assert torch.equal(model.weight, before)
    pruned.start({name: p.data for name, p in model.named_parameters()})
    assert (model.weight != 0).nonzero().tolist() == [[0, 7], [1, 7]]
    assert torch.equal(model.weight[:, 7], before[:, 7])


@pytest.mark.parametrize("per", ["layer", "model"])
def test_small_weights_are_frozen_where_they_are(per: str) -> None:
    model = net()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    private = make(
        model, torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.1), freeze=Largest(0.3, per), **PLAN
    )
    for _ in range(3):
        step(private)
    live = oracle.largest(before, 0.3, together=per == "model")
    for name, p in model.named_parameters():
        assert torch.equal(p != before[name], live[name]), name


def test_pruning_refuses_before_it_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: pytest.fail("it trained"))
    for wrong in ({"keep": 2.0}, {"keep": 0.5, "per": "x"}, {"keep": 0.5, "private": 1}):
        with pytest.raises(InvalidValue):
            hoarfrost.freeze.prune_from(net(), data(), **wrong)


def test_pruning_says_what_does_not_fit() -> None:
    for public in (
        TensorDataset(torch.randn(5, 1, 7, 7), torch.zeros(5, dtype=torch.long)),
        TensorDataset(torch.randn(5)),
    ):
        with pytest.raises(InvalidValue, match="cannot be trained on the public data set"):
            hoarfrost.freeze.prune_from(net(), public, keep=0.5, epochs=1)
    assert hoarfrost.freeze.prune_from(net(), DataLoader(data()), keep=0.5, epochs=1).public()[0].tensors
