"""Ranking by what the last epoch released: one draw of noise, and what was frozen can come back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hoarfrost.freezing import Random, Ranked, RunInfo
from tests import oracle
from tests.support.freezing import make, net, step


def seen(private: Any) -> list[dict[str, Tensor]]:
    """What the freezer is shown from now on."""
    shown: list[dict[str, Tensor]] = []
    freezer = private.optimizer.controller.freezer
    real = freezer.observe

    def observe(number: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:
        shown.append({name: gradient.clone() for name, gradient in gradients.items()})
        real(number, gradients, info)

    freezer.observe = observe
    return shown


@pytest.mark.parametrize(("rate", "cooling"), [(0.5, None), (0.8, 3)])
def test_the_largest_noisy_sums_of_the_last_epoch_are_live(rate: float, cooling: int | None) -> None:
    model = net()
    private = make(
        model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1),
        freeze=Ranked(rate, cooling), noise_multiplier=1.0, sample_rate=0.5, steps=10,
    )  # fmt: skip
    shown = seen(private)
    for number in range(10):
        before = {name: p.clone() for name, p in model.named_parameters()}
        step(private)
        epoch = number // 2
        share = 1 - Random(rate, cooling).rate_in(epoch)
        if epoch == 0 or share == 1:
            assert all((p != before[name]).all() for name, p in model.named_parameters())
            continue
        last = shown[2 * epoch - 2 : 2 * epoch]
        sums = {name: sum(gradients[name] for gradients in last) for name in before}
        expected = oracle.largest(sums, share, together=True)
        for name, p in model.named_parameters():
            assert torch.equal(p != before[name], expected[name]), (number, name)


def test_what_is_frozen_takes_up_noise_and_can_come_back() -> None:
    """Noise of the right size, drawn once a step, for live and frozen coordinates alike."""
    model = net()
    private = make(model, freeze=Ranked(0.9), noise_multiplier=2.0, sample_rate=0.5, steps=20, seed=0)
    shown, masks, weight = seen(private), [], model[3].weight
    for number in range(20):
        step(private)
        assert private.optimizer.mechanism.noise.draws == number + 1
        masks.append(torch.ones_like(weight) > 0 if number < 2 else private.optimizer.controller.masks["3.weight"].mask)
    frozen = torch.cat([shown[n]["3.weight"][~masks[n]] for n in range(2, 20)])
    assert frozen.std() == pytest.approx(2.0 * 0.5 / 6, rel=0.05)  # multiplier · clipping norm / expected batch
    assert all((masks[n + 2] & ~masks[n]).any() for n in range(2, 18, 2))


def test_sums_from_a_checkpoint_follow_the_gradients_to_their_device() -> None:
    info = RunInfo({"weight": torch.Size([3])}, (("weight",),), 100, 0.1, int)
    before, after = Ranked(0.5), Ranked(0.5)
    before.observe(0, {"weight": torch.ones(3)}, info)
    after.load_state(before.state())
    after.observe(1, {"weight": torch.ones(3, device="meta")}, info)
    assert after.state()["sums.weight"].device.type == "meta"


def test_ranked_and_random_keep_as_many() -> None:
    info = RunInfo({"weight": torch.Size([15])}, (("weight",),), 100, 0.1, int)
    ranked = Ranked(0.9)
    ranked.observe(9, {"weight": torch.randn(15)}, info)
    assert ranked.live(10, info)["weight"].sum() == Random(0.9).live(10, info)["weight"].sum() == 2
