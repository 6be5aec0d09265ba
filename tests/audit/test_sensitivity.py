"""The sensitivity audit on models that are given to it."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hoarfrost import audit
from hoarfrost.audit.battery import clipping, freezing
from hoarfrost.audit.canaries import Freezing
from hoarfrost.clipping import Clipper, Clipping, Local
from hoarfrost.errors import InvalidValue
from tests.audit.faults import nothing_clipped


def pairs() -> list[Any]:
    """Every clipping style with every freezer; in a fast run with a third of them, so that each of both is met."""
    return [
        pytest.param(clip, freeze, id=f"{style}-{freezer}", marks=[pytest.mark.slow] * bool((i + j) % 3))
        for i, (style, clip) in enumerate(clipping().items())
        for j, (freezer, freeze) in enumerate(freezing().items())
    ]


@pytest.mark.parametrize(("clip", "freeze"), pairs())
def test_every_clipping_style_keeps_to_its_sensitivity(clip: Clipper, freeze: Freezing) -> None:
    result = audit.sensitivity(clip=clip, freeze=freeze, rounds=1)
    assert result.passed, result
    assert result.ratio > 0.9  # it could have failed: one example moves nearly all that it may


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))


def classified(output: Tensor) -> Tensor:
    return F.cross_entropy(output, torch.zeros(len(output), dtype=torch.long))


@pytest.mark.parametrize("loss", [None, classified])
def test_a_network_of_ones_own_can_be_audited(loss: object) -> None:
    result = audit.sensitivity(clip=Local(0.2), model=network(), shape=(1, 6, 6), loss=loss, rounds=1)  # type: ignore[arg-type]
    assert result.passed, result
    assert result.ratio > 0.999
    assert result.model == "Sequential"


def test_it_fails_on_the_same_network_when_nothing_is_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing_clipped(monkeypatch)
    result = audit.sensitivity(clip=Local(0.2), model=network(), shape=(1, 6, 6), rounds=1)
    assert not result.passed
    assert result.ratio > 100


def test_the_network_is_left_as_it_was() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    audit.sensitivity(model=model, shape=(1, 6, 6), rounds=1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.training
    assert "forward" not in model.__dict__


def test_a_release_that_is_not_finite_is_an_infinite_ratio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Clipping, "factors", lambda self, norms, **_: torch.full_like(norms, torch.nan))
    result = audit.sensitivity(rounds=1)
    assert result.ratio == torch.inf
    assert json.loads(json.dumps(result.as_dict(), allow_nan=False))["ratio"] is None
    assert "ALARM" in str(result)


def test_a_shape_without_a_model_is_refused() -> None:
    with pytest.raises(InvalidValue, match=r"give both model and shape .*, or neither"):
        audit.sensitivity(shape=(3,))
