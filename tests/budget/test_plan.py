"""A plan: epochs to steps, batches to rates, epsilon to noise, in one place and the same wherever it is asked for."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import hoarfrost
from hoarfrost.budget import Account, Gaussian, Plan, PlannedRelease, Unprotected, epsilon
from hoarfrost.cli import app
from hoarfrost.epochs import MOST_STEPS, epoch_of, first_step
from hoarfrost.errors import BudgetSpent, InvalidValue
from hoarfrost.sampling import PoissonLoader
from hoarfrost.train.prepare import Parts
from tests.support.recipes import tiny

LOOK = PlannedRelease(event=Gaussian(noise_multiplier=4.0), what="a look")
MASK = PlannedRelease(event=Unprotected("a mask"), what="a mask")


def solve(**settings: Any) -> Plan:
    return Plan.solve(**{"size": 200, "delta": 1e-5, "accountant": "rdp"} | settings)


RATES = ({}, {"batch_size": 20.0}, {"sample_rate": 0.1}, {"batch_size": 20.0, "sample_rate": 0.1})
LENGTHS = ({}, {"steps": 30}, {"epochs": 3.0}, {"steps": 30, "epochs": 3.0})
NOISES = ({}, {"epsilon": 2.0}, {"noise_multiplier": 1.5}, {"epsilon": 2.0, "noise_multiplier": 1.5})


@pytest.mark.parametrize(("rate", "length", "noise"), list(itertools.product(RATES, LENGTHS, NOISES)), ids=str)
def test_every_combination_is_solved_or_refused(
    rate: dict[str, Any], length: dict[str, Any], noise: dict[str, Any]
) -> None:
    """One of each pair; and how long it is may be left open if the noise is stated."""
    given = {**rate, **length, **noise}
    if len(rate) == 1 and len(noise) == 1 and (len(length) == 1 or (not length and "epsilon" not in noise)):
        plan = solve(**given)
        assert (plan.sample_rate, plan.expected_batch) == (0.1, 20.0)
        assert plan.steps == (30 if length else None)
        assert plan.epsilon == given.get("epsilon")
        assert plan.noise_multiplier == given.get("noise_multiplier", plan.noise_multiplier)
        if plan.epsilon is not None:
            assert 1.99 < plan.statement().epsilon <= plan.epsilon
    else:
        with pytest.raises(InvalidValue):
            solve(**given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0}, {"size": 2.5}, {"size": True}, {"delta": 0}, {"delta": 1.0}, {"delta": "1e-5"},
        {"batch_size": 201, "sample_rate": None}, {"batch_size": 0, "sample_rate": None}, {"sample_rate": 0.0},
        {"sample_rate": 1.5}, {"sample_rate": math.nan}, {"steps": 0}, {"steps": -1}, {"steps": 2.0},
        {"steps": MOST_STEPS + 1}, {"steps": None, "epochs": 0}, {"steps": None, "epochs": -1.0},
        {"steps": None, "epochs": math.inf}, {"steps": None, "epochs": 1e9}, {"epsilon": 0.0}, {"epsilon": -1.0},
        {"epsilon": math.inf}, {"epsilon": math.nan}, {"epsilon": None, "noise_multiplier": -1.0},
        {"epsilon": None, "noise_multiplier": math.inf}, {"accountant": "prv"}, {"taken": -1}, {"taken": 0.5},
        {"releases": ["a look"]}, {"spent": "a look"},
    ],
    ids=str,
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    right = {"sample_rate": 0.1, "steps": 30, "epsilon": 2.0}
    solve(**right)
    with pytest.raises(InvalidValue):
        solve(**right | wrong)


@pytest.mark.parametrize("wrong", [{"steps": None}, {"epsilon": 0.0}, {"epsilon": math.inf}, {"taken": -1}], ids=str)
def test_a_plan_for_an_epsilon_is_for_so_many_steps(wrong: dict[str, Any]) -> None:
    """However it is made: nothing would stop a run without an end."""
    right = {"size": 200, "sample_rate": 0.1, "noise_multiplier": 1.5, "delta": 1e-5, "steps": 30, "epsilon": 2.0}
    Plan(**right)
    with pytest.raises(InvalidValue):
        Plan(**right | wrong)


@pytest.mark.parametrize("wrong", [{"event": "a look"}, {"what": 7}, {"step": -1}, {"step": 1.0}], ids=str)
def test_a_planned_release_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        PlannedRelease(**{"event": LOOK.event, "what": "a look"} | wrong)


# Epsilon.


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("releases", [(), (LOOK,), (LOOK, LOOK)], ids=len)
@pytest.mark.parametrize("spent", [(), Gaussian(noise_multiplier=2.0, sample_rate=0.1, steps=12)], ids=["", "spent"])
def test_steps_releases_and_what_was_spent_stay_within_epsilon_together(
    accountant: str, releases: tuple[PlannedRelease, ...], spent: Any
) -> None:
    taken = 10 if spent else 0
    plan = solve(
        sample_rate=0.1, steps=30, epsilon=2.0, accountant=accountant, releases=releases, taken=taken, spent=spent
    )
    before = (spent,) if spent else ()
    events = (*before, plan.event(30 - taken), *(release.event for release in releases))
    cost = epsilon(events, 1e-5, accountant)
    assert 1.98 < cost <= 2.0
    assert plan.statement(spent).epsilon == pytest.approx(cost, rel=1e-9)
    assert plan.taken == taken


def test_an_epsilon_that_is_spent_is_refused() -> None:
    dear = PlannedRelease(event=Gaussian(noise_multiplier=0.5), what="a look")
    for spent in ({"releases": [dear]}, {"spent": dear.event}):
        with pytest.raises(BudgetSpent, match="no noise keeps 30 more steps"):
            solve(sample_rate=0.1, steps=30, epsilon=2.0, **spent)


def test_what_had_no_noise_is_left_to_the_statement() -> None:
    plan = solve(sample_rate=0.1, steps=30, epsilon=2.0, releases=[MASK], spent=Gaussian(noise_multiplier=0.0))
    assert plan.noise_multiplier == solve(sample_rate=0.1, steps=30, epsilon=2.0).noise_multiplier
    assert plan.unprotected == (MASK.event,)
    assert plan.statement().epsilon == math.inf


def test_weights_that_have_all_their_steps_get_noise_for_one_more() -> None:
    one = solve(sample_rate=0.1, steps=1, epsilon=2.0)
    assert solve(sample_rate=0.1, steps=30, taken=30, epsilon=2.0).noise_multiplier == one.noise_multiplier


def test_steps_within_an_epsilon_leave_room_for_what_was_spent() -> None:
    plan, spent = solve(sample_rate=0.1, noise_multiplier=1.5), (LOOK.event, Gaussian(noise_multiplier=0.0))
    for before in ((), spent):
        most = plan.steps_within(2.0, before)
        noisy = before[:1]  # what had no noise counts for nothing here
        costs = [epsilon((*noisy, plan.event(steps)), 1e-5, "rdp") for steps in (most, most + 1)]
        assert costs[0] <= 2.0 < costs[1]


# Epochs.


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.3, 1 / 7, 10 / 99, 0.07])
@pytest.mark.parametrize("epochs", [1, 2, 3.5, 0.01])
def test_epochs_are_those_of_the_loader(rate: float, epochs: float) -> None:
    plan = solve(sample_rate=rate, epochs=epochs, noise_multiplier=1.0)
    assert plan.steps is not None
    loader = PoissonLoader(TensorDataset(torch.arange(200)), sample_rate=rate, steps=plan.steps)
    step = 0
    for epoch in range(math.ceil(epochs)):
        assert first_step(epoch, plan.sample_rate) == step
        for _ in loader:
            assert epoch_of(step, plan.sample_rate) == epoch
            step += 1
        if step == plan.steps:
            break
    assert (step, loader.steps_drawn) == (plan.steps, plan.steps)
    with pytest.raises(BudgetSpent):
        iter(loader)


def test_one_number_of_steps_is_the_limit_everywhere() -> None:
    model = nn.Linear(1, 1)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(torch.randn(200, 1)), sample_rate=0.1,
        steps=3, noise_multiplier=1.0, delta=1e-5,
    )  # fmt: skip
    assert private.plan.steps == private.steps == private.loader.steps == private.account.steps == len(private.loader)
    account = Account(private.plan)
    for _ in range(3):
        account.reserve()
        account.charge()
    account.reserve()  # without a target it may be drawn, and is charged
    with pytest.raises(BudgetSpent, match="all 3 steps"):
        account.charge()


# One plan, whoever asks.


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "settings",
    [{"epsilon": 2.0, "epochs": 2.5}, {"epsilon": 2.0, "steps": 7}, {"noise_multiplier": 1.25, "epochs": 0.7}],
    ids=str,
)
def test_the_command_line_make_private_and_a_recipe_make_the_same_plan(
    settings: dict[str, Any], accountant: str
) -> None:
    changes = {f"privacy__{name}": settings.get(name) for name in ("epsilon", "noise_multiplier", "epochs", "steps")}
    parts = Parts.build(tiny(**changes, privacy__accountant=accountant), torch.device("cpu"))
    asked, size = parts.recipe.privacy, len(parts.splits.train)
    by_recipe = parts.solve()

    model = nn.Linear(1, 1)
    by_make_private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), TensorDataset(torch.randn(size, 1)), delta=asked.delta,
        batch_size=asked.batch_size, accountant=accountant, **settings,
    ).plan  # fmt: skip
    assert by_make_private == by_recipe

    command = "noise" if "epsilon" in settings else "epsilon"
    flags = {"size": size, "delta": asked.delta, "batch-size": asked.batch_size, "accountant": accountant, **settings}
    arguments = [text for name, value in flags.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    result = CliRunner().invoke(app, ["budget", command, *arguments, "--json"])
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    event = by_recipe.event(by_recipe.steps or 0)
    assert {name: said[name] for name in ("noise_multiplier", "sample_rate", "steps")} == {
        "noise_multiplier": event.noise_multiplier, "sample_rate": event.sample_rate, "steps": event.steps
    }  # fmt: skip
    assert (said["delta"], said["accountant"]) == (by_recipe.delta, by_recipe.accountant)
    assert said["epsilon"] == by_recipe.statement().epsilon
