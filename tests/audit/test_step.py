"""The step audit: its power, its figures, and what it does to its surroundings."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from hoarfrost import audit, budget
from hoarfrost.audit import battery
from hoarfrost.audit.battery import Configuration, configurations
from hoarfrost.audit.canaries import ByFreezer, Freezing, clipping_of, worst_case_norms
from hoarfrost.clipping import Block, Clipper, Clipping, Local
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing import Freezer, Largest, Random, Ranked
from hoarfrost.info import RunInfo
from tests.audit.faults import SIGMA_OF_EPSILON_1, SIGMA_OF_EPSILON_4

SMALL = {"canaries": 128, "rounds": 10}


@pytest.mark.parametrize(
    ("sigma", "epsilon", "at_least"), [(SIGMA_OF_EPSILON_1, 1.0, 0.65), (SIGMA_OF_EPSILON_4, 4.0, 3.4)]
)
def test_the_lower_bound_is_close_to_the_truth(sigma: float, epsilon: float, at_least: float) -> None:
    """Or the audit is too weak to be one: with 51,200 samples, at 99.9999 % confidence."""
    result = audit.step(noise_multiplier=sigma, delta=1e-5)
    assert result.samples == 51_200
    assert at_least <= result.epsilon_lower <= result.epsilon_claimed == pytest.approx(epsilon, rel=1e-4)


@pytest.mark.parametrize("configuration", list(configurations()), ids=str)
def test_every_configuration_passes(configuration: Configuration) -> None:
    result = configuration.step(**SMALL)
    assert result.passed, result
    assert result.samples == 1280  # no frozen coordinate took a canary's place
    assert result.mu_lower > 0.3  # it could have failed: canaries are detected


@pytest.mark.parametrize("freezer", [Ranked(rate=0.5), Largest(share=0.5)], ids=str)
def test_coordinates_that_were_ranked_by_their_noise_or_by_the_weights_pass(freezer: Freezer) -> None:
    """Not in the battery, since neighbouring batches cannot be compared: each training chooses others."""
    result = audit.step(noise_multiplier=1.0, freeze=ByFreezer(freezer, share=0.45), **SMALL)
    assert result.passed, result
    assert result.samples == 1280
    assert result.mu_lower > 0.3


def test_what_is_claimed_is_what_the_budget_says() -> None:
    result = audit.step(noise_multiplier=0.8, sample_rate=0.1, steps=50, delta=1e-6, **SMALL)
    run = budget.Gaussian(noise_multiplier=0.8, sample_rate=0.1, steps=50)
    assert result.mu_claimed == 1.25
    assert result.run_epsilon_claimed == budget.epsilon(run, 1e-6)
    assert 0 < result.run_epsilon_lower < result.run_epsilon_claimed
    one = budget.epsilon(budget.Gaussian(noise_multiplier=0.8), 1e-6)
    assert result.epsilon_claimed == pytest.approx(one, abs=1e-3)


def test_it_tells_people_and_machines_the_same() -> None:
    result = audit.step(noise_multiplier=1.0, seed=3, **SMALL)
    facts = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert facts["kind"] == "step"
    assert facts["passed"] is True
    assert facts["alarms"] == []
    assert facts["mu_lower"] == result.mu_lower
    assert f"μ 1.000 claimed, lower bound {result.mu_lower:.3f}" in str(result)
    assert result.lines()[-1] == "no alarm"


def test_a_seed_repeats_it_and_no_seed_does_not() -> None:
    runs = [audit.step(noise_multiplier=1.0, seed=seed, **SMALL) for seed in (5, 5, None, None)]
    assert runs[0] == runs[1]
    assert len({(run.false_negatives, run.false_positives) for run in runs}) > 1


def test_torchs_random_state_is_left_alone() -> None:
    before = torch.get_rng_state()
    audit.step(noise_multiplier=1.0, **SMALL)
    audit.sensitivity(rounds=1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("inf")])
def test_a_step_that_promises_nothing_is_not_audited(sigma: float) -> None:
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        audit.step(noise_multiplier=sigma)


@dataclass(frozen=True)
class PerTensor(Clipper):
    """A block for each tensor, with norms of their own, and perhaps noise in proportion to them."""

    norms: tuple[float, ...]
    proportional: bool = False

    def begin(self, step: int, info: RunInfo) -> Clipping:
        pairs = zip(info.shapes, self.norms, strict=True)
        weights = self.norms if self.proportional else (1.0,) * len(self.norms)
        blocks = [Block(name, (name,), norm, w) for (name, norm), w in zip(pairs, weights, strict=True)]
        return Clipping(tuple(blocks), lambda norms: (torch.tensor(self.norms) / norms).clamp(max=1))


@pytest.mark.parametrize("proportional", [False, True])
def test_a_canary_uses_what_every_block_allows(proportional: bool) -> None:
    """Or the bound would be that of one block alone, at most 0.71."""
    clip = PerTensor((0.3, 0.4, 0.5), proportional)
    result = audit.step(noise_multiplier=1.0, clip=clip, canaries=512, rounds=20)
    assert result.passed, result
    assert result.mu_lower > 0.75
    assert audit.sensitivity(clip=clip, rounds=1).passed


@dataclass(frozen=True)
class Global(Local):
    """What is longer than Z is dropped, all else scaled by C/Z."""

    bound: float = 7.3

    def factors(self, norms: Tensor) -> Tensor:
        return torch.where(norms <= self.bound, self.norm / self.bound, 0.0)


def test_the_canary_of_a_clipper_that_drops_is_just_below_the_drop() -> None:
    clip = Global(0.5)
    assert 0.9998 * clip.bound < float(worst_case_norms(clipping_of(clip, nn.Linear(2, 1)))) <= clip.bound
    result = audit.step(noise_multiplier=1.0, clip=clip, **SMALL)
    assert result.passed, result
    assert result.mu_lower > 0.3
    assert audit.sensitivity(clip=clip, rounds=1).ratio > 0.999


class Alternating(Freezing):
    """Another tensor is frozen in every step."""

    name = "alternating"
    share = 2 / 3

    def live(self, model: nn.Module, step: int, info: RunInfo) -> dict[str, Tensor]:
        for i, p in enumerate(model.parameters()):
            p.requires_grad_(i != step % 3)
        return super().live(model, step, info)


def test_canaries_follow_the_live_coordinates() -> None:
    result = audit.step(noise_multiplier=1.0, freeze=Alternating(), canaries=128, rounds=12)
    assert result.passed, result
    assert result.samples == 128 * 12


@pytest.mark.parametrize("optimizer", ["momentum", "Adam"])
def test_coordinates_that_are_drawn_anew_in_every_step_raise_no_alarm(optimizer: str) -> None:
    freeze = ByFreezer(Random(rate=0.5, redraw="step"), share=0.4)
    make = battery.optimizers()[optimizer]
    assert audit.step(noise_multiplier=1.0, freeze=freeze, optimizer=make, canaries=64, rounds=20).passed
