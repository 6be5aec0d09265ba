"""What a run has spent, as it moves between checkpoints, ledgers and names: never less than the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoarfrost import budget
from hoarfrost.budget import Gaussian, Ledger, epsilon
from hoarfrost.freezing import Facts, Freezer, Layers, Live, Pruned, releases
from hoarfrost.train.checkpoint import Checkpoint, save
from tests.train.test_checkpoint import STEPS, new, train

STEP = Gaussian(noise_multiplier=8.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.safetensors"


def ledger(folder: Path, name: str = "ledger.jsonl") -> Ledger:
    return Ledger.create(folder / name, epsilon=None, delta=1e-5, accountant="rdp")


def restored(path: Path, private: Any) -> Any:
    Checkpoint.read(path).restore(private)
    return private


def steps(private: Any) -> int:
    """All that were spent on these weights."""
    return sum(event.steps for event in private.spent().values())


def test_a_calibrated_run_keeps_to_its_plan_under_whatever_name_it_goes_on(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first = new(epsilon=2.0, ledger=books.path, run="first")
    train(first, 3)
    save(path, first)
    train(first, 7)  # four of them are lost
    for name in ("second", None):
        later = restored(path, new(epsilon=2.0, ledger=books.path, run=name))
        assert later.steps == STEPS - 4
        train(later, later.steps)
        assert steps(later) == STEPS
        assert later.epsilon() <= 2.0


def test_what_is_reserved_ahead_and_in_hand_can_still_be_taken(path: Path, tmp_path: Path) -> None:
    plan = replace(STEP, noise_multiplier=new(epsilon=2.0).noise_multiplier, steps=STEPS)
    private = new(epsilon=2.0, ledger=ledger(tmp_path).admit(plan, run="mine", ahead=5))
    train(private, 3)
    assert (private.charged, private._gone) == (5, 3)
    train(private, STEPS)


def test_a_ledger_is_drawn_on_by_a_run_that_has_steps_behind_it(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = new()
    train(private, 3)
    private.draw_on(books.admit(replace(STEP, steps=STEPS), run="mine"))
    train(private, 5)
    assert sorted(event.steps for event in private.spent().values()) == [2, 3]
    assert private.epsilon() == epsilon(replace(STEP, steps=5), 1e-5, "rdp")


def test_another_noise_under_the_ledger_s_name_is_another_run(path: Path, tmp_path: Path) -> None:
    other = new(noise_multiplier=4.0, run="mine")
    train(other, 3)
    save(path, other)
    private = restored(path, new())
    private.draw_on(ledger(tmp_path).admit(replace(STEP, steps=STEPS), run="mine"))
    train(private, 5)
    assert set(private.spent().values()) == {replace(STEP, steps=2), Gaussian(noise_multiplier=4.0, steps=3)}


def test_a_ledger_drawn_on_after_restoring_tells_what_others_lost(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first = new(ledger=books.path, run="first")
    train(first, 3)
    save(path, first)
    train(first, 7)
    later = restored(path, new())
    assert steps(later) == 3
    books.refresh()
    later.draw_on(books.admit(replace(STEP, steps=STEPS), run="second"))
    assert steps(later) == 7


def test_runs_without_names_are_different_ones_in_every_ledger(path: Path, tmp_path: Path) -> None:
    one, other = (new(ledger=ledger(tmp_path, name).path) for name in ("one", "other"))
    train(one, 3)
    save(path, one)
    train(other, 2)  # on other weights, and yet in its account
    train(restored(path, other), 6)
    assert sorted(event.steps for event in other.spent().values()) == [3, 5]


class Selecting(Freezer):
    """Released something; how noisily, it says only later."""

    noise = 2.0

    def live(self, step: int, facts: Facts) -> Live:
        return dict.fromkeys(facts.shapes, True)

    def events(self) -> tuple[budget.Gaussian, ...]:
        return (Gaussian(noise_multiplier=self.noise),)


def test_a_release_that_changed_under_the_same_words_is_booked_once(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = new(ledger=books.path, run="mine", freeze=Selecting())
    train(private, 1)
    save(path, private)
    changed = Selecting()
    changed.noise = 3.0
    for _ in range(3):
        later = restored(path, new(ledger=books.path, run="mine", freeze=changed))
        save(path, later)
    assert sorted(event.noise_multiplier for event in later.freezer_events()) == [2.0, 3.0]
    assert len(Ledger(books.path).entries) == 3  # the run, and two releases


def test_a_spent_epsilon_is_found_at_the_same_step_however_the_run_came_there(path: Path, tmp_path: Path) -> None:
    def freezer() -> Layers:
        return Layers(first=1, epsilon=epsilon(replace(STEP, steps=9), 1e-5, "rdp"))

    def begins(private: Any) -> int:
        return freezer().begins(private.optimizer.switch.facts)

    books = ledger(tmp_path)
    private = new(ledger=books.path, run="first", freeze=freezer())
    train(private, 3)
    assert begins(private) == 9
    save(path, private)
    train(private, 7)
    assert begins(restored(path, private)) == 5  # seven are spent when three are taken
    assert begins(restored(path, new(ledger=books.path, run="first", freeze=freezer()))) == 5
    unbooked = restored(path, new(freeze=freezer()))
    assert begins(unbooked) == 9
    books.refresh()
    unbooked.draw_on(books.admit(replace(STEP, steps=STEPS), run="second"))
    unbooked.optimizer.switch._facts = None
    assert begins(unbooked) == 5


def test_what_was_not_private_is_not_kept_to_an_epsilon(path: Path, tmp_path: Path) -> None:
    """Nor if only the ledger knows of it, which books it as a release without noise."""
    books = ledger(tmp_path)
    settings = {"epsilon": 2.0, "ledger": books.path, "run": "mine"}
    new(**settings)
    unprotected = budget.Unprotected("the pruning mask")
    releases.book(books.resume("mine"), {"mine"}, {"pruning": unprotected})  # and it crashed
    later = new(**settings)
    assert later.epsilon() == float("inf")
    train(later, STEPS)
    peeking = Pruned(0.5, later.model, private=False)
    train(new(epsilon=2.0, freeze=peeking), STEPS)
