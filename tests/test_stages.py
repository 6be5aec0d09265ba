"""A second stage on the same weights: steps, learning rate and epsilon of its own, and what is said is joint."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.budget import Gaussian, Ledger, epsilon
from hoarfrost.checkpoint import Checkpoint
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.freezing import Layers
from tests.support.freezing import Selecting
from tests.support.small_runs import equal_weights, new_run, train_until, weights

FIRST = Gaussian(noise_multiplier=8.0, steps=5)


def first_stage(steps: int = 5, **options: Any) -> Any:
    private = new_run(**options)
    train_until(private, steps)
    return private


def second_stage(after: Any, model: nn.Module | None = None, **options: Any) -> Any:
    """On other data, with another rate and noise."""
    if model is None:
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    torch.manual_seed(8)
    data = TensorDataset(torch.randn(30, 4), torch.randint(3, (30,)))
    settings = {"sample_rate": 0.5, "epsilon": 1.0, "delta": 1e-5, "steps": 4, "accountant": "rdp", "after": after}
    return hoarfrost.make_private(model, torch.optim.Adam(model.parameters(), lr=0.03), data, **(settings | options))


def state_of(private: Any) -> Any:
    file = io.BytesIO()
    torch.save(private.optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def check_joint(private: Any, *before: Gaussian, steps: int = 4) -> None:
    """What is said about the weights after ``steps`` steps of a second stage, against the events written down here."""
    now = Gaussian(noise_multiplier=private.noise_multiplier, sample_rate=0.5, steps=steps)
    assert private.epsilon() == pytest.approx(epsilon([*before, now], 1e-5, "rdp"))
    assert private.statement().epsilon == private.epsilon()
    assert epsilon(now, 1e-5, "rdp") <= 1.0
    assert private.epsilon() > epsilon([*before], 1e-5, "rdp")


WAYS: dict[str, Any] = {
    "the run": lambda run, folder: run,
    "a checkpoint": lambda run, folder: run.save(folder / "first") or folder / "first",
    "its path as a text": lambda run, folder: run.save(folder / "first") or str(folder / "first"),
    "a state_dict": lambda run, folder: state_of(run),
    "a list": lambda run, folder: [run],
}


@pytest.mark.parametrize("way", WAYS)
def test_a_second_stage_has_steps_rate_and_epsilon_of_its_own_and_a_joint_statement(way: str, tmp_path: Path) -> None:
    first = first_stage()
    model = copy.deepcopy(first.model)
    second = second_stage(WAYS[way](first, tmp_path), model)
    assert equal_weights(weights(second), weights(first))
    assert (second.steps_taken, second.steps, second.loader.steps_drawn, second.charged) == (0, 4, 0, 0)
    assert second.optimizer.param_groups[0]["lr"] == 0.03
    assert second.epsilon() == first.epsilon()
    assert second.noise_multiplier == new_noise()  # as if nothing had been before
    train_until(second, 4)
    check_joint(second, FIRST)
    with pytest.raises(BudgetSpent):
        next(iter(second.loader))


def new_noise() -> float:
    return float(second_stage(None).noise_multiplier)


def test_the_statement_says_what_came_before_and_what_this_stage_is() -> None:
    first = first_stage()
    second = second_stage(first, copy.deepcopy(first.model))
    train_until(second, 3)
    told = second.statement().lines()
    own = Gaussian(noise_multiplier=second.noise_multiplier, sample_rate=0.5, steps=3)
    assert told[0].startswith("epsilon ")
    assert f"in earlier stages: {FIRST}" in told
    (line,) = (line for line in told if line.startswith(f"in this stage: {own}"))
    assert "of its own)" in line
    facts = second.statement().as_dict()
    assert facts["before"] == [FIRST.as_dict()]
    assert [event["steps"] for event in facts["releases"]] == [5, 3]
    assert "stage" not in str(first.statement())


def test_stages_of_one_kind_are_added_up() -> None:
    first = first_stage()
    second = second_stage(first, first.model, epsilon=None, noise_multiplier=8.0, sample_rate=1.0, steps=7)
    train_until(second, 7)
    (event,) = second.events()
    assert event == Gaussian(noise_multiplier=8.0, steps=12)


def test_several_earlier_stages_count_each_once(tmp_path: Path) -> None:
    first = first_stage()
    first.save(tmp_path / "first")
    second = second_stage(first, copy.deepcopy(first.model))
    train_until(second, 2)
    third = second_stage([second, tmp_path / "first", first], copy.deepcopy(second.model))
    train_until(third, 4)
    check_joint(third, FIRST, Gaussian(noise_multiplier=second.noise_multiplier, sample_rate=0.5, steps=2))


def test_the_same_model_is_taken_over_and_the_run_before_ends(tmp_path: Path) -> None:
    first = first_stage(sample_rate=0.25)
    batches = iter(first.loader)
    x, y = next(batches)
    nn.functional.cross_entropy(first.model(x), y).backward()
    second = second_stage(first, first.model)
    for go_on in (
        lambda: next(batches),
        lambda: next(iter(first.loader)),
        first.optimizer.step,
        first.optimizer.state_dict,
        lambda: first.save(tmp_path / "late"),
    ):
        with pytest.raises(NotPrivate, match="later stage"):
            go_on()
    before = weights(second)
    train_until(second, 4)
    assert not equal_weights(before, weights(second))
    check_joint(second, Gaussian(noise_multiplier=8.0, sample_rate=0.25, steps=6))  # one batch was drawn, and lost


def test_part_of_the_model_is_taken_over() -> None:
    first = first_stage()
    model = nn.Sequential(first.model, nn.Tanh(), nn.Linear(3, 3))
    second = second_stage(first, model)
    train_until(second, 4)
    check_joint(second, FIRST)
    with pytest.raises(NotPrivate, match="later stage"):
        first.optimizer.step()


def test_a_model_that_is_private_already_says_how_to_go_on() -> None:
    first = first_stage()
    with pytest.raises(NotPrivate, match=r"after=private"):
        second_stage(None, first.model)


def test_if_the_second_stage_is_refused_the_first_goes_on(tmp_path: Path) -> None:
    first = first_stage(freeze=Layers(1))
    frozen = [p.requires_grad for p in first.model.parameters()]
    assert not all(frozen)
    books = Ledger.create(tmp_path / "ledger", epsilon=0.1, delta=1e-5, accountant="rdp")
    with pytest.raises(BudgetSpent):
        second_stage(first, first.model, ledger=books.path)
    before = weights(first)
    train_until(first, 7)
    after = weights(first)
    assert [p.requires_grad for p in first.model.parameters()] == frozen
    assert [not torch.equal(a, b) for a, b in zip(before, after, strict=True)] == frozen
    assert (first.steps_taken, first.charged) == (7, 7)


def test_what_the_first_stage_froze_is_trained_in_the_second() -> None:
    first = first_stage(freeze=Layers(1))
    second = second_stage(first, first.model)
    before = weights(second)
    train_until(second, 4)
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(second), strict=True))


@pytest.mark.parametrize("said", [True, False])
def test_a_second_stage_is_resumed_from_its_checkpoint(said: bool, tmp_path: Path) -> None:
    """Which knows of the first, whether or not it is named again."""
    first = first_stage()
    first.save(tmp_path / "first")
    second = second_stage(first, first.model)
    train_until(second, 2)
    second.save(tmp_path / "second")
    train_until(second, 3)  # one is lost
    second.save(tmp_path / "third")
    later = second_stage(tmp_path / "first" if said else None)
    later.load(tmp_path / "third")
    later.load(tmp_path / "second")
    assert (later.steps_taken, later.steps) == (2, 3)
    train_until(later, 3)
    check_joint(later, FIRST)
    assert "in earlier stages: 5 steps" in str(later.statement())


def test_the_state_of_an_earlier_stage_is_not_loaded_into_a_later_one(tmp_path: Path) -> None:
    """Its learning rate and steps would come along; its weights alone do."""
    first = first_stage()
    first.save(tmp_path / "first")
    for load in (
        lambda run: run.load(tmp_path / "first"),
        lambda run: run.optimizer.load_state_dict(state_of(first)),
    ):
        second = second_stage(tmp_path / "first")
        before = weights(second)
        with pytest.raises(InvalidValue, match="earlier stage"):
            load(second)
        assert equal_weights(before, weights(second))
        assert (second.steps, second.optimizer.param_groups[0]["lr"]) == (4, 0.03)
    second.model.load_state_dict(Checkpoint.read(tmp_path / "first").weights())
    assert equal_weights(weights(second), weights(first))
    train_until(second, 4)
    check_joint(second, FIRST)


def test_a_ledger_has_an_entry_for_each_stage(tmp_path: Path) -> None:
    books = Ledger.create(tmp_path / "ledger", epsilon=None, delta=1e-5, accountant="rdp")
    first = first_stage(ledger=books.path, run="first")
    with pytest.raises(InvalidValue, match="earlier stage"):
        second_stage(first, first.model, ledger=books.path, run="first", epsilon=None, noise_multiplier=8.0,
                     sample_rate=1.0)  # fmt: skip
    second = second_stage(first, first.model, ledger=books.path, run="second")
    train_until(second, 4)
    ledger = Ledger(books.path)
    assert [(entry.run, entry.reserved, entry.closed) for entry in ledger.entries] == [
        ("first", 5, True),
        ("second", 4, False),
    ]
    check_joint(second, FIRST)
    assert ledger.epsilon() == pytest.approx(second.epsilon())
    assert "ledger" not in str(second.statement())


def test_what_a_freezer_found_in_an_earlier_stage_counts() -> None:
    first = first_stage(freeze=Selecting())
    (look,) = first.account.releases.values()
    second = second_stage(first, first.model, freeze=Selecting(), epsilon=3.0)
    train_until(second, 4)
    assert len(second.account.releases) == 2  # it looked again, at these data
    own = Gaussian(noise_multiplier=second.noise_multiplier, sample_rate=0.5, steps=4)
    assert epsilon([own, look], 1e-5, "rdp") <= 3.0 < second.epsilon()
    assert second.epsilon() == pytest.approx(epsilon([FIRST, look, look, own], 1e-5, "rdp"))


def test_a_seeded_stage_is_told_of_in_all_that_follow(tmp_path: Path) -> None:
    first = second_stage(None, seed=3)
    train_until(first, 2)
    second = second_stage(first, first.model)
    train_until(second, 2)
    assert not second.seeded
    assert second.statement().seeded
    second.save(tmp_path / "second")
    later = second_stage(None)
    later.load(tmp_path / "second")
    assert "must not be released" in str(later.statement())


@pytest.mark.parametrize("wrong", [3, {}, {"state": {}, "param_groups": []}, nn.Linear(1, 1)])
def test_what_says_nothing_of_what_was_spent_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match="after= takes"):
        second_stage(wrong)
