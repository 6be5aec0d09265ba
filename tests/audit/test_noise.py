"""The noise audit finds noise that is missing somewhere in a given network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hoarfrost import audit
from hoarfrost.audit.canaries import ByFreezer
from hoarfrost.audit.noise_audit import NoiseAudit
from hoarfrost.audit.sensitivity_audit import SensitivityAudit
from hoarfrost.audit.suite import Subject, run_suite
from hoarfrost.freezing import Random
from hoarfrost.gradients import ClippedSum
from hoarfrost.gradients.batch_sums import BatchSums
from hoarfrost.gradients.contributions import MaskedOuter
from hoarfrost.gradients.uses import Uses
from hoarfrost.masks import PartialMask
from hoarfrost.noise import Noise
from hoarfrost.tickets import Ticket
from tests.support.recipes import tiny


def net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 16, 10))


def only(wanted: Callable[[Tensor], bool]) -> Callable[..., None]:
    """Noise for some tensors alone."""
    add = Noise.add_

    def faulty(self: Noise, tensors: Sequence[Tensor], stds: Sequence[float]) -> None:
        add(self, tensors, [std if wanted(t) else 0.0 for t, std in zip(tensors, stds, strict=True)])

    return faulty


def test_right_noise_raises_no_alarm() -> None:
    for _ in range(5):
        result = audit.noise(model=net(), shape=(1, 6, 6))
        assert result.passed
        assert result.coordinates == 80 + 1290


FAULTS: dict[str, Callable[[Tensor], bool]] = {
    "no noise on biases": lambda t: t.dim() > 1,
    "no noise on convolutions": lambda t: t.dim() != 4,
    "no noise on matrices": lambda t: t.dim() != 2,
    "no noise at all": lambda t: False,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_missing_noise_is_caught_every_time(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Noise, "add_", only(FAULTS[fault]))
    for _ in range(20):
        assert not audit.noise(model=net(), shape=(1, 6, 6)).passed


def test_chunks_and_views_are_audited_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is clipped in the first chunk alone, and norms that are divided by the number of views."""
    model, shape = nn.Linear(6, 5), (6,)
    right = Uses.norms
    assert audit.sensitivity(model=model, shape=shape, views=3, max_physical_batch=6, rounds=1).passed
    with monkeypatch.context() as patch:
        patch.setattr(Uses, "norms", lambda self: right(self) / 3)
        assert not audit.sensitivity(model=model, shape=shape, views=3, rounds=1).passed
    with monkeypatch.context() as patch:
        in_the_first: list[bool] = []
        cover = BatchSums.cover

        def covering(self: BatchSums, ticket: Ticket, *args: Any) -> ClippedSum:
            in_the_first.append(ticket.chunk.first)
            return cover(self, ticket, *args)

        patch.setattr(BatchSums, "cover", covering)
        patch.setattr(Uses, "norms", lambda self: right(self) * float(in_the_first[-1]))
        assert audit.sensitivity(model=model, shape=shape, rounds=1).passed
        assert not audit.sensitivity(model=model, shape=shape, max_physical_batch=1, rounds=1).passed


SOME = ByFreezer(Random(rate=0.7, redraw="never"))


def test_frozen_coordinates_get_no_noise_and_live_ones_get_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    result = audit.noise(model=net(), shape=(1, 6, 6), freeze=SOME)
    assert result.passed
    assert result.coordinates == round(0.3 * (80 + 1290))
    rows = ByFreezer(Random(rate=0.5, redraw="never", granularity="channel"))
    assert audit.noise(model=net(), shape=(1, 6, 6), freeze=rows).passed
    with monkeypatch.context() as patch:  # noise in the wrong places
        patch.setattr(PartialMask, "indices", property(lambda self: torch.arange(self.count)))
        assert not audit.noise(model=net(), shape=(1, 6, 6), freeze=SOME).passed
    with monkeypatch.context() as patch:  # noise on none that are live
        patch.setattr(Noise, "add_", lambda *_: None)
        assert not audit.noise(model=net(), shape=(1, 6, 6), freeze=SOME).passed


FREEZE = {
    "layers": {"kind": "layers", "first": 1},  # in the last 20 steps, and so from the first one of 7
    "random": {"kind": "random", "rate": 0.6, "cooling": 2},
    "ranked": {"kind": "ranked", "rate": 0.5},
    "pruned": {"kind": "pruned", "keep": 0.5, "public": "digits", "private": False, "epochs": 1},
}


@pytest.mark.parametrize("kind", FREEZE)
def test_a_recipe_is_audited_with_what_it_freezes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny(freeze=FREEZE[kind])
    found = [result for result in run_suite(Subject(recipe)) if isinstance(result, NoiseAudit | SensitivityAudit)]
    assert all(result.passed for result in found)
    shown = {"layers": "Layers(first=1", "random": "Random(rate=0.6", "ranked": "Ranked(rate=0.5", "pruned": "Pruned("}
    _, noise = (result for result in found if result.freeze.startswith(shown[kind]))
    assert noise.coordinates < 610 == 65 * 8 + 9 * 10
    if kind == "random":
        right = MaskedOuter._rounded_up
        monkeypatch.setattr(MaskedOuter, "_rounded_up", lambda *of: right(*of) / 4)  # half the norm of what is live
        assert not all(result.passed for result in run_suite(Subject(recipe)))
