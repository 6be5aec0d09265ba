"""What a run has spent, as it moves between checkpoints, ledgers and names: never less than the truth."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoarfrost import budget
from hoarfrost.budget import Gaussian, Ledger, epsilon
from hoarfrost.checkpoint import Checkpoint, save
from hoarfrost.errors import BudgetSpent, InvalidValue, NotPrivate
from hoarfrost.freezing import Layers, Pruned
from tests.support.freezing import Selecting
from tests.support.small_runs import STEPS, new_run, train_until

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
    """All that were charged for these weights."""
    return private.account.charged_in_all


def counts(private: Any) -> list[int]:
    """The same, counter by counter."""
    return sorted(event.steps for event in private.account.counters.values() if event.steps)


def test_a_calibrated_run_keeps_to_its_plan_under_whatever_name_it_goes_on(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first = new_run(epsilon=2.0, ledger=books.path, run="first")
    train_until(first, 3)
    save(path, first)
    train_until(first, 7)  # four of them are lost
    for name in ("second", None):
        later = restored(path, new_run(epsilon=2.0, ledger=books.path, run=name))
        assert later.steps == STEPS - 4
        train_until(later, later.steps)
        assert steps(later) == STEPS
        assert later.epsilon() <= 2.0


@pytest.mark.parametrize("calibrated", [True, False])
def test_what_is_reserved_ahead_and_in_hand_can_still_be_taken(path: Path, tmp_path: Path, calibrated: bool) -> None:
    given: dict[str, Any] = {"epsilon": 2.0} if calibrated else {}
    plan = replace(STEP, noise_multiplier=new_run(**given).noise_multiplier, steps=STEPS)
    private = new_run(**given, ledger=ledger(tmp_path).admit(plan, run="mine", ahead=5))
    train_until(private, 3)
    save(path, private)
    assert (private.charged, restored(path, private).charged) == (5, 5)
    assert private.steps == STEPS
    train_until(private, STEPS)
    assert (private.charged, private.allowance.entry.event.steps) == (STEPS, STEPS)


@pytest.mark.parametrize("behind", [0, 3])
def test_no_more_is_reserved_ahead_than_a_calibrated_run_may_take(path: Path, tmp_path: Path, behind: int) -> None:
    before = new_run(epsilon=2.0)
    train_until(before, behind)
    save(path, before)
    plan = replace(STEP, noise_multiplier=before.noise_multiplier, steps=30)
    private = restored(path, new_run(epsilon=2.0, ledger=ledger(tmp_path).admit(plan, ahead=5)))
    train_until(private, private.steps)
    assert steps(private) == private.steps == STEPS
    assert private.epsilon() <= 2.0


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("booked", [True, False])
def test_a_batch_that_was_broken_off_is_lost(tmp_path: Path, calibrated: bool, booked: bool) -> None:
    """What the ledger admitted would be enough; the epsilon that the noise was chosen for is not."""
    given: dict[str, Any] = {"epsilon": 2.0} if calibrated else {}
    plan = replace(STEP, noise_multiplier=new_run(**given).noise_multiplier, steps=30)
    if booked:
        given["ledger"] = ledger(tmp_path).admit(plan, ahead=4)
    private = new_run(**given, max_physical_batch=5)
    for _ in range(3):
        train_until(private, private.steps_taken + 2)
        for _x, _y in private.loader:
            break
    if not calibrated:
        train_until(private, STEPS)
        assert private.charged == STEPS + 3
        return
    with pytest.raises(BudgetSpent, match="broken off"):
        train_until(private, STEPS)
    assert (private.steps_taken, private.charged) == (STEPS - 3, STEPS)
    assert private.epsilon() <= 2.0


def test_steps_that_a_ledger_has_not_seen_are_not_those_that_it_has(path: Path, tmp_path: Path) -> None:
    """Of the same name and noise: seven without a ledger, then five that no checkpoint knows."""
    before = new_run(run="mine")
    train_until(before, 7)
    save(path, before)
    books = ledger(tmp_path)
    for _ in range(2):
        private = restored(path, new_run(ledger=books.path, run="mine"))
        seen = steps(private)
        train_until(private, 12)
    assert seen == 12


def test_weights_cost_at_least_the_steps_behind_them() -> None:
    with pytest.raises(InvalidValue, match="more steps behind them"):
        new_run().account.restore(budget.Snapshot(steps_taken=5, counters={}, releases={}))


def test_of_two_accounts_the_larger_counts(path: Path) -> None:
    private = new_run()
    train_until(private, 3)
    little = private.account.counters
    train_until(private, 7)
    save(path, private)
    later = new_run()
    Checkpoint.read(path).restore(later, also=little)
    assert steps(later) == 7


def test_runs_that_part_from_one_checkpoint_are_not_taken_for_one(path: Path, tmp_path: Path) -> None:
    """Under one name and without a ledger: three steps, then four on one branch and two on the other."""
    first = new_run(run="mine")
    train_until(first, 3)
    save(path, first)
    branch = restored(path, new_run(run="mine"))
    train_until(branch, 7)
    save(tmp_path / "branch.safetensors", branch)
    train_until(first, 5)
    assert steps(restored(tmp_path / "branch.safetensors", first)) == 3 + 4 + 2


def test_a_name_may_be_used_again_and_again_with_another_noise(path: Path) -> None:
    taken = 0
    for noise, number in ((4.0, 3), (8.0, 2), (4.0, 3), (8.0, 1)):
        private = new_run(noise_multiplier=noise, run="mine")
        if taken:
            restored(path, private)
        taken += number
        train_until(private, taken)
        save(path, private)
    assert {event.noise_multiplier: event.steps for event in private.events()} == {4.0: 6, 8.0: 3}


def test_a_closed_run_can_still_be_looked_at(path: Path, tmp_path: Path) -> None:
    private = new_run(ledger=ledger(tmp_path).path)
    train_until(private, 3)
    save(path, private)
    train_until(private, 5)
    private.account.close()
    assert restored(path, private).steps_taken == 3
    assert private.steps == 3


def test_a_second_allowance_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = new_run(ledger=books.admit(replace(STEP, steps=2)))
    assert private.steps == 2
    train_until(private, 2)
    private.account.attach(books.admit(replace(STEP, steps=10)))
    train_until(private, STEPS)
    assert steps(private) == STEPS


def test_a_ledger_is_drawn_on_by_a_run_that_has_steps_behind_it(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    private = new_run()
    train_until(private, 3)
    private.account.attach(books.admit(replace(STEP, steps=STEPS), run="mine"))
    train_until(private, 5)
    assert counts(private) == [2, 3]
    assert private.epsilon() == epsilon(replace(STEP, steps=5), 1e-5, "rdp")


def test_another_noise_under_the_ledger_s_name_is_another_run(path: Path, tmp_path: Path) -> None:
    other = new_run(noise_multiplier=4.0, run="mine")
    train_until(other, 3)
    save(path, other)
    private = restored(path, new_run())
    private.account.attach(ledger(tmp_path).admit(replace(STEP, steps=STEPS), run="mine"))
    train_until(private, 5)
    assert set(private.events()) == {replace(STEP, steps=2), Gaussian(noise_multiplier=4.0, steps=3)}


def test_a_ledger_drawn_on_after_restoring_tells_what_others_lost(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first = new_run(ledger=books.path, run="first")
    train_until(first, 3)
    save(path, first)
    train_until(first, 7)
    later = restored(path, new_run())
    assert steps(later) == 3
    later.account.attach(books.admit(replace(STEP, steps=STEPS), run="second"))
    assert steps(later) == 7


def test_what_others_have_written_to_the_ledger_is_read(path: Path, tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first, second = (new_run(ledger=books.path, run=name) for name in ("first", "second"))
    train_until(first, 3)
    save(path, first)
    train_until(first, 7)
    assert steps(restored(path, second)) == 7


def test_equal_names_in_two_ledgers_are_two_runs(path: Path, tmp_path: Path) -> None:
    one, other = (new_run(ledger=ledger(tmp_path, name).path, run="run-1") for name in ("one", "other"))
    train_until(one, 3)
    save(path, one)
    train_until(other, 2)  # on other weights, and yet in its account
    train_until(restored(path, other), 6)
    assert counts(other) == [3, 5]


def test_a_freezer_that_looks_again_is_charged_again_whatever_its_words(path: Path, tmp_path: Path) -> None:
    """Going on with what a checkpoint holds costs nothing; a look of one's own is a release of its own."""
    books = ledger(tmp_path)
    private = new_run(ledger=books.path, run="mine", freeze=Selecting())
    train_until(private, 1)
    save(path, private)
    for _ in range(3):  # never looks: what was found comes back with the checkpoint
        later = restored(path, new_run(ledger=books.path, run="mine", freeze=Selecting()))
        train_until(later, 2)
        assert len(later.account.releases) == 1
    assert len([entry for entry in Ledger(books.path).entries if entry.owner is not None and entry.reserved]) == 1
    for number in (2, 3):
        looked = new_run(ledger=books.path, run="mine", freeze=Selecting())
        train_until(looked, 1)  # before the checkpoint comes: it has looked
        assert len(restored(path, looked).account.releases) == number
    reserved = [entry for entry in Ledger(books.path).entries if entry.owner is not None and entry.reserved]
    assert len(reserved) == 3
    assert len({entry.id for entry in reserved}) == 3


def test_a_run_that_goes_back_to_before_a_look_looks_again(path: Path, tmp_path: Path) -> None:
    """What it found is gone with the state that the checkpoint replaces."""
    private = new_run(ledger=ledger(tmp_path).path, freeze=Selecting(step=2))
    train_until(private, 1)
    save(path, private)
    train_until(private, 3)
    train_until(restored(path, private), 3)
    assert len(private.account.releases) == 2


def test_a_copy_of_a_run_s_account_counts_for_itself() -> None:
    private = new_run()
    train_until(private, 2)
    for account in (copy.deepcopy(private.account), pickle.loads(pickle.dumps(private.account))):
        account.reserve()
        private.account.restore(account.snapshot())
    assert steps(private) == 4


def test_a_spent_epsilon_is_found_at_the_same_step_however_the_run_came_there(path: Path, tmp_path: Path) -> None:
    def freezer() -> Layers:
        return Layers(first=1, epsilon=epsilon(replace(STEP, steps=9), 1e-5, "rdp"))

    def begins(private: Any) -> int:
        return freezer().begins(private.optimizer.controller.info)

    books = ledger(tmp_path)
    private = new_run(ledger=books.path, run="first", freeze=freezer())
    train_until(private, 3)
    assert begins(private) == 9
    save(path, private)
    train_until(private, 7)
    assert begins(restored(path, private)) == 5  # seven are spent when three are taken
    assert begins(restored(path, new_run(ledger=books.path, run="first", freeze=freezer()))) == 5
    unbooked = restored(path, new_run(freeze=freezer()))
    train_until(unbooked, 4)
    assert begins(unbooked) == 9
    unbooked.account.attach(books.admit(replace(STEP, steps=STEPS), run="second"))
    assert begins(unbooked) == 5


def test_what_was_not_private_is_not_kept_to_an_epsilon(path: Path, tmp_path: Path) -> None:
    """Nor if only the ledger knows of it, which books it as a release without noise."""
    books = ledger(tmp_path)
    settings = {"epsilon": 2.0, "ledger": books.path, "run": "mine"}
    stated = new_run(**settings | {"epsilon": None, "noise_multiplier": new_run(epsilon=2.0).noise_multiplier})
    with pytest.raises(KeyboardInterrupt), stated.account.release(budget.Unprotected("a mask"), "a mask"):
        raise KeyboardInterrupt
    later = new_run(**settings)
    assert later.epsilon() == float("inf")
    train_until(later, 3)
    save(path, later)
    train_until(later, 7)
    assert restored(path, later).steps == STEPS  # the four that were lost are bought anew
    train_until(later, STEPS)


def test_what_was_not_private_keeps_its_words_and_stops_no_other_freezer(path: Path, tmp_path: Path) -> None:
    peeking = Pruned(0.5, new_run().model, private=False)
    train_until(new_run(epsilon=2.0, freeze=peeking), STEPS)
    layers = Layers(first=1, epsilon=epsilon(replace(STEP, steps=9), 1e-5, "rdp"))
    settings = {"ledger": ledger(tmp_path).path, "run": "mine", "freeze": layers & peeking}
    for _ in range(2):
        private = new_run(**settings)
        train_until(private, 1)
        assert layers.begins(private.optimizer.controller.info) in (9, 8)  # a step is lost when it is made anew
        assert "the pruning mask" in str(private.statement())


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_run_is_not_copied(duplicate: Any) -> None:
    with pytest.raises(NotPrivate, match=r"Use save\(\) and load\(\)"):
        duplicate(new_run())
    copy.deepcopy(new_run().model)
