"""Checkpoints: going on is as if nothing had happened, except that nothing is refunded."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, StepLR
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost.budget import Gaussian, Ledger, epsilon
from hoarfrost.checkpoint import Checkpoint, save
from hoarfrost.errors import BudgetSpent, Diverged, HoarfrostError, InvalidValue, LedgerDamaged
from tests.support.small_runs import OPTIMIZERS, STEPS, equal_weights, new_run, train_until, weights

SCHEDULERS: dict[str, Callable[[Any], LRScheduler]] = {
    "LambdaLR": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + 0.3 * step)),
    "StepLR": lambda optimizer: StepLR(optimizer, 3, 0.5),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint.safetensors"


# Going on.


@pytest.mark.parametrize("schedule", SCHEDULERS)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_going_on_equals_training_without_interruption_bit_for_bit(path: Path, kind: str, schedule: str) -> None:
    """Without noise and with every example in every batch, so that there is only one right answer."""
    first = new_run(kind, noise_multiplier=0.0)
    scheduler = SCHEDULERS[schedule](first.optimizer)
    train_until(first, 5, scheduler)
    save(path, first, scheduler=scheduler)
    train_until(first, STEPS, scheduler)
    uninterrupted = weights(first)

    other = new_run(kind, seed=99, noise_multiplier=0.0)
    for later, its_scheduler in ((first, scheduler), (other, SCHEDULERS[schedule](other.optimizer))):
        Checkpoint.read(path).restore(later, its_scheduler)
        assert later.steps_taken == 5
        assert not equal_weights(weights(later), uninterrupted)
        train_until(later, STEPS, its_scheduler)
        assert equal_weights(weights(later), uninterrupted)


def test_a_checkpoint_gets_by_without_pickle(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unpickled(*_: Any, **__: Any) -> Any:
        pytest.fail("something was unpickled")

    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load")):
        monkeypatch.setattr(module, name, unpickled)
    private = new_run("Adam")
    train_until(private, 2)
    save(path, private, facts={"note": "mine"})
    later = new_run("Adam")
    saved = Checkpoint.read(path)
    saved.restore(later)
    assert equal_weights(weights(private), weights(later))
    assert saved.facts == {"note": "mine"}


def test_what_follows_a_checkpoint_is_new_noise(path: Path) -> None:
    private = new_run()
    train_until(private, 2)
    save(path, private)
    ends = []
    for _ in range(2):
        later = new_run()
        Checkpoint.read(path).restore(later)
        train_until(later, 3)
        ends.append(weights(later))
    assert not equal_weights(*ends)


def test_a_seeded_run_does_not_use_its_noise_twice(path: Path) -> None:
    private = seeded()
    train_until(private, 2)
    save(path, private)
    train_until(private, 3)
    lost = weights(private)
    Checkpoint.read(path).restore(private)
    train_until(private, 3)
    assert not equal_weights(weights(private), lost)
    later = seeded()
    Checkpoint.read(path).restore(later)
    assert later.optimizer.mechanism.noise.draws == 2  # a new process does not begin with the first numbers again


def seeded() -> Any:
    torch.manual_seed(5)
    model = nn.Linear(4, 3)
    data = TensorDataset(torch.ones(20, 4), torch.zeros(20, dtype=torch.long))
    return hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, noise_multiplier=8.0, delta=1e-5,
        steps=STEPS, seed=1,
    )  # fmt: skip


# Nothing is refunded.


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_older_checkpoint_in_the_same_process_keeps_all_that_was_spent(path: Path, kind: str) -> None:
    private = new_run(kind)
    train_until(private, 3)
    save(path, private)
    train_until(private, 7)
    before = private.epsilon()
    Checkpoint.read(path).restore(private)
    assert (private.steps_taken, private.charged, private.epsilon()) == (3, 7, before)
    train_until(private, 5)
    assert private.events() == (Gaussian(noise_multiplier=8.0, steps=9),)


def test_an_older_checkpoint_in_a_new_process_keeps_all_that_the_ledger_has(path: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    Ledger.create(ledger, epsilon=8.0, delta=1e-5, accountant="rdp")
    private = new_run(ledger=ledger, run="mine")
    train_until(private, 3)
    save(path, private)
    train_until(private, 7)

    script = f"""
from hoarfrost.checkpoint import Checkpoint
from tests.support.small_runs import new_run, train_until
later = new_run(ledger={str(ledger)!r}, run="mine")
Checkpoint.read({str(path)!r}).restore(later)
print(later.steps_taken, later.charged, later.epsilon(), later.steps)
train_until(later, 5)
print(later.charged)
"""
    root = Path(__file__).parents[2]
    said = subprocess.run([sys.executable, "-c", script], cwd=root, check=True, capture_output=True, text=True).stdout
    seven = epsilon(Gaussian(noise_multiplier=8.0, steps=7), 1e-5, "rdp")
    assert said.split() == ["3", "7", str(seven), str(STEPS), "9"]
    (entry,) = Ledger(ledger).entries
    assert (entry.reserved, entry.event.steps) == (9, STEPS + 4)  # the four that were lost were asked for anew


def test_other_runs_on_the_same_weights_stay_in_the_account(path: Path, tmp_path: Path) -> None:
    """A run that goes on under another name has all that was spent before behind it, as far as anybody knows."""
    ledger = tmp_path / "ledger.jsonl"
    Ledger.create(ledger, epsilon=8.0, delta=1e-5, accountant="rdp")
    first = new_run(ledger=ledger, run="first")
    train_until(first, 3)
    save(path, first)
    train_until(first, 5)  # and these two are lost
    second = new_run(ledger=ledger, run="second")
    Checkpoint.read(path).restore(second)
    train_until(second, 4)
    counters = second.account.counters.items()
    known = {Ledger(ledger).with_id(id).run: event.steps for id, event in counters if event.steps}
    assert known == {"first": 5, "second": 1}
    save(path, second)
    third = new_run()
    Checkpoint.read(path).restore(third)
    assert third.epsilon() == epsilon(Gaussian(noise_multiplier=8.0, steps=6), 1e-5, "rdp")


def test_a_ledger_that_knows_less_than_the_checkpoint_does_not_lower_the_account(path: Path, tmp_path: Path) -> None:
    for name in ("ledger", "put back from an old copy"):
        Ledger.create(tmp_path / name, epsilon=8.0, delta=1e-5, accountant="rdp")
    private = new_run(ledger=tmp_path / "ledger", run="mine")
    train_until(private, 3)
    save(path, private)
    later = new_run(ledger=tmp_path / "put back from an old copy", run="mine")
    Checkpoint.read(path).restore(later)
    train_until(later, 5)
    assert later.account.charged_in_all == 5


def test_a_calibrated_run_never_exceeds_its_epsilon_however_often_it_is_restored(path: Path) -> None:
    """In the same process or in later ones, each of which restores twice."""
    private = new_run(epsilon=2.0)
    train_until(private, 3)
    save(path, private)
    train_until(private, 6)
    Checkpoint.read(path).restore(private)
    assert private.steps == STEPS - 3  # three were lost
    train_until(private, 4)
    Checkpoint.read(path).restore(private)
    assert private.steps == STEPS - 4  # and one more, not those three again
    train_until(private, private.steps)
    assert private.charged == STEPS
    assert private.epsilon() <= 2.0
    with pytest.raises(BudgetSpent):
        train_until(private, STEPS)

    later = new_run(epsilon=2.0)
    Checkpoint.read(path).restore(later)
    train_until(later, 8)
    Checkpoint.read(path).restore(later)
    train_until(later, later.steps)
    assert sum(event.steps for event in later.events()) == STEPS
    assert later.epsilon() <= 2.0


@pytest.mark.parametrize("booked", [True, False])
def test_what_others_spent_on_the_weights_counts_for_a_calibrated_run(path: Path, tmp_path: Path, booked: bool) -> None:
    other = new_run(noise_multiplier=4.0)
    train_until(other, 2)
    save(path, other)
    ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=None, delta=1e-5, accountant="rdp")
    private = new_run(epsilon=2.0, **({"ledger": ledger.path, "run": "mine"} if booked else {}))
    Checkpoint.read(path).restore(private)
    train_until(private, private.steps)
    assert 3 <= private.steps < STEPS
    one_more = Gaussian(noise_multiplier=private.noise_multiplier, steps=private.charged + 1)
    behind = Gaussian(noise_multiplier=4.0, steps=2)
    assert private.epsilon() <= 2.0 < epsilon((behind, one_more), 1e-5, "rdp")


def test_a_calibrated_run_takes_no_step_on_weights_that_cost_its_epsilon_already(path: Path) -> None:
    other = new_run(noise_multiplier=1.0)
    train_until(other, 2)
    save(path, other)
    private = new_run(epsilon=2.0)
    Checkpoint.read(path).restore(private)
    assert private.steps == 2
    with pytest.raises(BudgetSpent):
        list(private.loader)


def test_lost_steps_are_taken_again_only_as_far_as_the_ledger_s_budget_goes(path: Path, tmp_path: Path) -> None:
    budget = epsilon(Gaussian(noise_multiplier=8.0, steps=STEPS + 2), 1e-5, "rdp")
    ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=budget, delta=1e-5, accountant="rdp")
    private = new_run(ledger=ledger, run="mine")
    train_until(private, 3)
    save(path, private)
    train_until(private, 8)
    Checkpoint.read(path).restore(private)
    assert private.steps == STEPS - 3  # five were lost, two could be bought
    train_until(private, private.steps)
    assert (Ledger(ledger.path).entries[0].reserved, ledger.epsilon() <= budget) == (STEPS + 2, True)


# Files.


def test_a_checkpoint_says_which_ledger_and_how_far_it_was(path: Path, tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger.jsonl", epsilon=8.0, delta=1e-5, accountant="rdp")
    private = new_run(ledger=ledger, run="mine")
    train_until(private, 2)
    save(path, private)
    said = Checkpoint.read(path).ledger
    assert said is not None
    assert (said["path"], said["run"]) == (str(ledger.path.resolve()), "mine")
    train_until(private, 4)
    Ledger(ledger.path).check(said["head"])


def test_weights_that_are_not_finite_are_not_saved(path: Path) -> None:
    private = new_run()
    with torch.no_grad():
        private.model[0].weight[0, 0] = torch.nan
    with pytest.raises(Diverged):
        save(path, private)
    assert not path.exists()


def test_a_failed_save_leaves_the_checkpoint_before_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = new_run()
    train_until(private, 1)
    save(path, private)
    train_until(private, 2)

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path, "write_bytes", full)
        with pytest.raises((HoarfrostError, OSError)):
            save(path, private)
    assert Checkpoint.read(path).steps_taken == 1
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "pickle", "plain safetensors", "half"])
def test_what_is_no_checkpoint_is_refused(path: Path, kind: str) -> None:
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "pickle":
            torch.save({}, path)
        case "plain safetensors":
            save_file({"a": torch.ones(2)}, path)
        case "half":
            save(path, new_run())
            path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidValue, match="checkpoint"):
        Checkpoint.read(path)


STEPS_OF_ONE = {"kind": "gaussian", "noise_multiplier": 1.0, "sample_rate": 1.0, "steps": 9}
ACCOUNT = {"steps_taken": 1, "counters": {"a": STEPS_OF_ONE}, "releases": {}, "made": []}
HOSTILE: dict[str, dict[str, Any]] = {
    "negative step": {"account": ACCOUNT | {"steps_taken": -1}},
    "step as text": {"account": ACCOUNT | {"steps_taken": "3"}},
    "no account": {"account": None},
    "a release made by nobody": {"account": ACCOUNT | {"made": [3]}},
    "huge epoch": {"position": {"epoch": 10**400, "steps_drawn": 0, "iterations": 0}},
    "no epoch": {"position": {}},
    "position as list": {"position": []},
    "negative spending": {"account": ACCOUNT | {"counters": {"a": {**STEPS_OF_ONE, "steps": -5}}}},
    "too little spent": {"account": ACCOUNT | {"counters": {"a": {**STEPS_OF_ONE, "steps": 0}}}},
    "spent nothing known": {"account": ACCOUNT | {"counters": {"a": {"kind": "free"}}}},
    "nothing spent": {"account": ACCOUNT | {"counters": {}}},
    "spent as list": {"account": ACCOUNT | {"counters": [STEPS_OF_ONE]}},
    "released nothing known": {"account": ACCOUNT | {"releases": {"a": {"kind": "free"}}}},
    "optimizer as list": {"optimizer": []},
    "optimizer without groups": {"optimizer": {"groups": [], "numbers": {}}},
    "state of nobody": {"optimizer": {"groups": [{"params": [0]}], "numbers": {"x": {}}}},
    "an unknown format": {"format": 6},
    "a scheduler from nowhere": {"scheduler": {"last_epoch": 3}},
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_header_that_cannot_be_is_refused_in_one_line(path: Path, case: str) -> None:
    private = new_run()
    train_until(private, 1)
    save(path, private)
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["hoarfrost-checkpoint"])
    del header["checksum"]  # so that it is what the header says that is refused
    save_file(tensors, path, {"hoarfrost-checkpoint": json.dumps(header | HOSTILE[case])})
    with pytest.raises(HoarfrostError) as told:
        Checkpoint.read(path).restore(new_run())
    assert "\n" not in str(told.value)


# Damage.


def without_checksum(path: Path) -> None:
    """As earlier versions wrote it."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()["hoarfrost-checkpoint"])
    del header["checksum"]
    save_file(tensors, path, {"format": "pt", "hoarfrost-checkpoint": json.dumps(header)})


def test_a_flipped_bit_is_noticed_wherever_it_is(path: Path) -> None:
    private = new_run("Adam")
    train_until(private, 2)
    save(path, private)
    whole = path.read_bytes()
    Checkpoint.read(path)
    for place in [*range(0, len(whole), 7), *range(len(whole) - 8, len(whole))]:
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(InvalidValue, match=r"cannot read the checkpoint .*checkpoint\.safetensors") as told:
            Checkpoint.read(path)
        assert "\n" not in str(told.value), place
    path.write_bytes(whole)
    Checkpoint.read(path).restore(new_run("Adam"))


def test_a_flipped_bit_of_the_weights_is_named_for_what_it_is(path: Path) -> None:
    save(path, new_run())
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(InvalidValue, match="does not match its checksum"):
        new_run().load(path)


def test_a_checksum_cannot_be_left_out_unnoticed(path: Path) -> None:
    save(path, new_run())
    path.write_bytes(path.read_bytes().replace(b'"hoarfrost-checksum"', b'"hoarfrost-checksun"'))
    with pytest.raises(InvalidValue, match="its checksum is missing"):
        Checkpoint.read(path)


def test_a_checkpoint_of_an_earlier_version_has_no_checksum_and_is_read(path: Path) -> None:
    private = new_run("Adam")
    train_until(private, 2)
    save(path, private)
    without_checksum(path)
    later = new_run("Adam")
    Checkpoint.read(path).restore(later)
    assert equal_weights(weights(private), weights(later))


def test_another_network_s_checkpoint_is_refused(path: Path) -> None:
    save(path, seeded())
    with pytest.raises(InvalidValue, match="does not fit this run"):
        Checkpoint.read(path).restore(new_run())


def test_a_restore_that_fails_half_way_has_counted_what_the_weights_cost(path: Path) -> None:
    private = new_run()
    train_until(private, 5)
    save(path, private)
    torch.manual_seed(5)
    model = copy.deepcopy(private.model)
    groups = [{"params": [p]} for p in model.parameters()]
    other = hoarfrost.make_private(
        model, torch.optim.SGD(groups, lr=0.1), private.loader.dataset, sample_rate=private.sample_rate,
        noise_multiplier=private.noise_multiplier, delta=1e-5, accountant=private.accountant,
    )  # fmt: skip
    with pytest.raises(InvalidValue):
        Checkpoint.read(path).restore(other)
    assert other.epsilon() == private.epsilon()


def test_another_noise_under_the_same_name_does_not_replace_what_was_spent(path: Path) -> None:
    private = new_run(run="mine", noise_multiplier=0.5)
    train_until(private, 5)
    save(path, private)
    later = new_run(run="mine", noise_multiplier=5.0)
    Checkpoint.read(path).restore(later)
    assert later.epsilon() == private.epsilon()
    train_until(later, 7)
    assert later.epsilon() > private.epsilon()
    assert sorted(event.steps for event in later.events()) == [2, 5]


def test_another_freezer_begins_where_the_checkpoint_is(path: Path) -> None:
    """It does not take over what another one knew, nor does it let everything move."""
    freeze = hoarfrost.freeze
    before = {
        "nothing": {},
        "Random": {"freeze": freeze.Random(0.5, redraw="step")},
        "Ranked": {"freeze": freeze.Ranked(0.5)},
        "Largest": {"freeze": freeze.Largest(0.5)},
    }
    for name, options in before.items():
        private = new_run(**options)
        train_until(private, 4)
        save(path, private)
        steady = {
            "Largest": freeze.Largest(0.25),
            "Pruned": freeze.Pruned(0.25, copy.deepcopy(private.model), biases=True),
            "Random": freeze.Random(0.75, redraw="never"),
        }
        for freezer in steady.values():
            later = new_run(freeze=freezer)
            Checkpoint.read(path).restore(later)
            held = [p.clone() for p in weights(later)]
            train_until(later, 6)
            moved = sum(int((p != q).sum()) for p, q in zip(weights(later), held, strict=True))
            assert moved == round(0.25 * 51), (name, freezer)
            if isinstance(freezer, freeze.Pruned):
                assert sum(int((p == 0).sum()) for p in weights(later)) >= 51 - moved
        ranked = new_run(freeze=freeze.Ranked(0.5))
        Checkpoint.read(path).restore(ranked)
        train_until(ranked, 7)
        shares = ranked.optimizer.controller.live_shares
        assert 0 < shares <= 7


def test_a_ledger_that_was_cut_since_the_checkpoint_is_refused(path: Path, tmp_path: Path) -> None:
    """What was charged to it after the cut would be forgotten, and the run would go on as if it were not spent."""
    where = tmp_path / "ledger.jsonl"
    Ledger.create(where, epsilon=8.0, delta=1e-5, accountant="rdp")
    private = new_run(ledger=where, run="mine")
    train_until(private, 2)
    early = where.read_bytes()
    train_until(private, 5)
    save(path, private)
    train_until(private, 8)
    later = new_run(ledger=where, run="mine")
    Checkpoint.read(path).restore(later)
    assert later.charged == 8
    where.write_bytes(early)
    with pytest.raises(LedgerDamaged, match="does not contain the record"):
        Checkpoint.read(path).restore(new_run(ledger=where, run="mine"))


@pytest.mark.parametrize("kind", ["milestones", "in sequence"])
def test_a_scheduler_whose_state_has_numbers_for_keys_goes_on(path: Path, kind: str) -> None:
    def scheduled(private: Any) -> Any:
        steps = torch.optim.lr_scheduler.MultiStepLR(private.optimizer, [5, 8], gamma=0.1)
        if kind == "milestones":
            return steps
        constant = torch.optim.lr_scheduler.ConstantLR(private.optimizer, factor=1.0)
        return torch.optim.lr_scheduler.SequentialLR(private.optimizer, [constant, steps], milestones=[1])

    rates = []
    for stop in (None, 4):
        private = new_run()
        scheduler = scheduled(private)
        if stop is not None:
            train_until(private, stop, scheduler)
            save(path, private, scheduler=scheduler)
            private = new_run()
            scheduler = scheduled(private)
            Checkpoint.read(path).restore(private, scheduler)
        train_until(private, STEPS, scheduler)
        rates.append(private.optimizer.param_groups[0]["lr"])
    assert rates[0] == pytest.approx(rates[1])
    assert rates[0] < 0.01


def test_a_batch_that_could_not_be_read_before_a_restore_does_not_count_as_paid(path: Path) -> None:
    private = new_run()
    train_until(private, 2)
    save(path, private)
    collate = private.loader._loader.collate_fn
    private.loader._loader.collate_fn = lambda rows: 1 / 0
    with pytest.raises(ZeroDivisionError):
        train_until(private, 3)
    private.loader._loader.collate_fn = collate
    Checkpoint.read(path).restore(private)
    train_until(private, 4)
    assert (private.steps_taken, private.charged) == (4, 5)
