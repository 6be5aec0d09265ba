"""What a freezer cannot do is refused in words, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hoarfrost import budget
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.freezing import Channels, Freezer, Layers, Pruned, RandomTensors, RunInfo
from tests.support.freezing import PLAN, ledger, make, net, step

NAN = {name: torch.full_like(value, torch.nan) for name, value in net().state_dict().items()}


class Saying(Freezer):
    def __init__(self, said: Any) -> None:
        self.said = said

    def live(self, step: int, info: RunInfo) -> Any:
        return self.said


REFUSED: dict[str, tuple[Any, str]] = {
    "a word": (lambda: "random", "a freezer is wanted"),
    "a class": (lambda: Layers, "a freezer is wanted"),
    "with nothing": (lambda: Layers() & None, "a freezer is wanted"),  # type: ignore[operator]
    "no layer in so small a share": (lambda: Layers(first=0.1, step=0), "freezes nothing"),
    "infinitely many": (lambda: Layers(first=float("inf")), "first must be finite"),
    "a share above 1": (lambda: Layers(first=1.7), "first is a number of layers"),
    "no names": (lambda: Layers(names=[]), "names takes patterns"),
    "a number for a name": (lambda: Layers(names=[3]), "names takes patterns"),
    "everything trains": (lambda: Layers(train=["*"], step=0), "freezes nothing"),
    "after the run": (lambda: Layers(step=4), "never"),
    "in an epoch after the run": (lambda: Layers(epoch=7), "never"),
    "when more is spent than ever will be": (lambda: Layers(epsilon=500.0), "never"),
    "a fraction that is none": (lambda: Layers(fraction="a"), "fraction must be a number"),
    "both leave nothing": (lambda: Layers(names=["0", "3"], step=2) & Layers(names=["5"]), "in the last step"),
    "NaN": (lambda: Pruned(0.5, NAN), "not finite"),
    "no reference": (lambda: Pruned(0.5, None), "a model or a state dict"),  # type: ignore[arg-type]
    "too few": (lambda: Pruned(0.001, net()), "survives: keep more$"),
    "no tensor": (lambda: RandomTensors(0.05), r"RandomTensors\(share=0.05"),
    "a list": (lambda: Saying([True]), "by their names"),
    "nothing said": (lambda: Saying(None), "by their names"),
    "a mask that does not fit": (lambda: Saying({"0.weight": torch.ones(3) > 0}), "for 0.weight: .*got torch.bool of"),
    "a row that is not there": (lambda: Saying({"0.weight": Channels([7])}), "for 0.weight"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_words(case: str) -> None:
    wanted, words = REFUSED[case]
    with pytest.raises(InvalidValue, match=words):
        step(make(net(), freeze=wanted(), **PLAN))


def test_nothing_but_what_somebody_switched_off_is_live() -> None:
    model = net()
    model[5].requires_grad_(False)
    with pytest.raises(InvalidValue, match="nothing is live in step 0"):
        step(make(model, freeze=Layers(train=["5"], step=0), **PLAN))


def test_a_refused_freezer_leaves_the_model_and_the_ledger_as_they_were(tmp_path: Path) -> None:
    books, model = ledger(tmp_path), net()
    with pytest.raises(InvalidValue, match="nope"):
        make(model, freeze=Layers(names=["nope"]), ledger=books.path, **PLAN)
    assert budget.Ledger(books.path).entries == ()
    model(torch.randn(2, 1, 6, 6)).sum().backward()  # it trains as an ordinary model
    assert model[0].weight.grad is not None
    model.zero_grad()
    step(make(model, freeze=Layers(names=["0"], step=0), ledger=books.path, **PLAN))


def test_a_forward_that_somebody_had_put_there_comes_back() -> None:
    model = nn.Linear(36, 3)
    model.forward = other = lambda x: F.linear(x.flatten(1), model.weight, model.bias)  # type: ignore[method-assign]
    with pytest.raises(HoarfrostError):
        make(model, freeze=Layers(names=["nope"]), **PLAN)
    assert model.forward is other
