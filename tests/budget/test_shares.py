"""Releases that have a share of epsilon: their noise, and that of the steps."""

from __future__ import annotations

from typing import Any

import pytest

from hoarfrost.budget import Gaussian, Plan, PlannedRelease, PlannedShare, Snapshot, epsilon
from hoarfrost.budget.shares import check_share, least_in_all
from hoarfrost.errors import BudgetSpent, InvalidValue

# SST-2: 67,349 examples, batches of 1024, 3 epochs.
SST2: dict[str, Any] = {"size": 67_349, "batch_size": 1024, "epochs": 3, "delta": 1 / (2 * 67_349)}


def shares(count: int, share: Any = 0.1, sample_rate: float = 0.02) -> list[PlannedShare]:
    return [PlannedShare(share=share, sample_rate=sample_rate, what="a round")] * count


@pytest.mark.parametrize(
    ("target", "rounds", "of_steps", "of_rounds"),
    # By dp_accounting's PLD alone: python -m tests.budget.figures_of_shares
    [(0.5, 5, 1.940, 1.296), (0.5, 1, 1.940, 1.081), (2.0, 5, 0.916, 0.781), (2.0, 1, 0.916, 0.701)],
)
def test_the_noise_of_a_split_budget(target: float, rounds: int, of_steps: float, of_rounds: float) -> None:
    plan = Plan.solve(**SST2, epsilon=target, releases=shares(rounds))
    assert plan.steps == 197
    assert plan.noise_multiplier == pytest.approx(of_steps, abs=6e-4)
    assert [r.event.noise_multiplier for r in plan.releases] == pytest.approx([of_rounds] * rounds, abs=6e-4)  # type: ignore[union-attr]
    assert plan.statement(steps=197).epsilon == pytest.approx(target, rel=1e-3)
    assert plan.statement(steps=197).epsilon <= target
    assert epsilon(plan.event(197), plan.delta) == pytest.approx(0.9 * target, rel=1e-3)


SMALL: dict[str, Any] = {"size": 1000, "batch_size": 100, "steps": 40, "delta": 1e-5, "accountant": "rdp"}


def test_shares_of_several_freezers_and_releases_with_noise_of_their_own() -> None:
    own = PlannedRelease(event=Gaussian(noise_multiplier=9.0), what="a look")
    wanted = [*shares(2, 0.1), own, *shares(1, 0.2, sample_rate=0.5)]
    plan = Plan.solve(**SMALL, epsilon=3.0, releases=wanted)
    first, second, looked, other = plan.releases
    assert looked == own
    assert first == second
    parts = [plan.event(40), own.event, first.event, second.event, other.event]
    assert epsilon(parts[:2], 1e-5, "rdp") == pytest.approx(0.7 * 3, rel=1e-3)
    assert epsilon(parts[:4], 1e-5, "rdp") == pytest.approx(0.8 * 3, rel=1e-3)
    assert 2.99 < epsilon(parts, 1e-5, "rdp") <= 3.0


@pytest.mark.parametrize(("target", "rate"), [(0.5, 0.4), (3.0, 0.1)])
def test_an_automatic_split_has_the_least_noise_in_all(target: float, rate: float) -> None:
    """How it is split follows from the central limit theorem: 1 % is what that may cost here."""

    def noise(share: Any) -> float:
        plan = Plan.solve(**SMALL | {"accountant": "pld"}, epsilon=target, releases=shares(3, share, rate))
        assert plan.statement(steps=40).epsilon <= target
        return plan.noise_multiplier**2 * 40 + sum(r.event.noise_multiplier**2 for r in plan.releases)  # type: ignore[union-attr]

    best = noise("auto")
    others = [noise(share) for share in (0.005, 0.05, 0.15, 0.4)]
    assert best <= 1.01 * min(others)
    assert max(others) > 1.2 * best


def test_the_least_noise_in_all_grows_with_that_of_the_steps() -> None:
    for ratio in (1e-3, 0.5, 1.0, 7.0, 1e3):
        found = [least_in_all(noise, ratio) for noise in (1e-6, 1e-3, 0.3, 1.0, 30.0, 1e6, 1e9)]
        assert found == sorted(found)


def test_a_plan_for_the_rest_takes_the_noise_that_was_found() -> None:
    plan = Plan.solve(**SMALL, epsilon=2.0, releases=shares(2))
    stated = {"noise_multiplier": plan.noise_multiplier, "releases": shares(2)}
    again = Plan.solve(**SMALL, **stated, solved=[release.event for release in plan.releases])
    assert again.releases == plan.releases
    for solved in ([], [release.event for release in plan.releases[:1]]):
        with pytest.raises(InvalidValue, match=r"no epsilon to take it from: state its own noise"):
            Plan.solve(**SMALL, **stated, solved=solved)
    with pytest.raises(InvalidValue, match="was planned as something else before"):
        Plan.solve(**SMALL, **stated, solved=[Gaussian(noise_multiplier=1.0)] * 2)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(InvalidValue, match="nothing is left for the steps"):
        Plan.solve(**SMALL, epsilon=2.0, releases=[*shares(1, 0.5), *shares(1, 0.5, 0.3)])
    with pytest.raises(InvalidValue, match="choose one for all"):
        Plan.solve(**SMALL, epsilon=2.0, releases=[*shares(1, "auto"), *shares(1)])
    look = PlannedRelease(event=Gaussian(noise_multiplier=3.0), what="a look")
    assert epsilon(look.event, 1e-5, "rdp") > 1.0
    with pytest.raises(BudgetSpent, match=r"of epsilon 1, 0.9 are for the steps, and other releases spend that"):
        Plan.solve(**SMALL, epsilon=1.0, releases=[look, *shares(1)])
    for share in (0.0, 1.0, -0.1, 2, float("nan"), "much", True):
        with pytest.raises(InvalidValue, match="budget"):
            check_share(budget=share)


def test_an_account_is_not_told_of_shares() -> None:
    plan = Plan.solve(**SMALL, epsilon=2.0, releases=shares(2))
    assert all(isinstance(release, PlannedRelease) for release in plan.releases)
    assert Snapshot(0, {}, {}).made == ()
