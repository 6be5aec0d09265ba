"""Resuming the way everybody does: state_dicts of model and optimizer, and the account comes along."""

from __future__ import annotations

import copy
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hoarfrost
from hoarfrost.budget import Ledger
from hoarfrost.errors import BudgetSpent, InvalidValue, LedgerDamaged
from hoarfrost.freezing import Layers, Random
from tests.support.freezing import Selecting
from tests.support.small_runs import OPTIMIZERS, STEPS, equal_weights, new_run, train_until, weights


def saved(private: Any) -> Any:
    """Through a file, as `torch.load` reads it by default."""
    file = io.BytesIO()
    torch.save({"model": private.model.state_dict(), "optimizer": private.optimizer.state_dict()}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resumed(state: Any, private: Any) -> Any:
    private.model.load_state_dict(state["model"])
    private.optimizer.load_state_dict(state["optimizer"])
    return private


def counts(private: Any) -> dict[str, int]:
    return {id: event.steps for id, event in private.account.counters.items() if event.steps}


def ledger(folder: Path, budget: float | None = None) -> Path:
    return Ledger.create(folder / "ledger.jsonl", epsilon=budget, delta=1e-5, accountant="rdp").path


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("calibrated", [True, False])
def test_state_dicts_bring_the_same_account_as_a_checkpoint(kind: str, calibrated: bool, tmp_path: Path) -> None:
    given: dict[str, Any] = {"epsilon": 2.0} if calibrated else {}
    first = new_run(kind, **given)
    train_until(first, 5)
    for _ in first.loader:  # charged, and lost
        break
    first.save(tmp_path / "checkpoint.safetensors")
    plainly, otherwise = resumed(saved(first), new_run(kind, seed=7, **given)), new_run(kind, **given)
    otherwise.load(tmp_path / "checkpoint.safetensors")
    assert equal_weights(weights(plainly), weights(first))
    for later in (plainly, otherwise):
        assert counts(later) == counts(first) == {first.account.id: 6}
        assert (later.steps_taken, later.loader.steps_drawn, later.epsilon()) == (5, 5, first.epsilon())
    assert plainly.steps == otherwise.steps == (STEPS - 1 if calibrated else STEPS)
    train_until(plainly, plainly.steps)
    assert plainly.account.charged_in_all == plainly.steps + 1
    if calibrated:
        assert plainly.epsilon() <= 2.0
        with pytest.raises(BudgetSpent):
            next(iter(plainly.loader))


def test_the_same_steps_are_not_counted_twice_and_nothing_is_refunded() -> None:
    first = new_run()
    train_until(first, 3)
    early = saved(first)
    train_until(first, 7)
    late = saved(first)
    later = resumed(late, resumed(early, resumed(late, new_run())))
    assert (counts(later), later.steps_taken) == ({first.account.id: 7}, 7)
    resumed(early, first)
    assert (counts(first), first.steps_taken) == ({first.account.id: 7}, 3)


def test_a_plain_optimizer_and_a_private_one_take_each_other_s_state() -> None:
    first = new_run("Adam")
    train_until(first, 2)
    plain = torch.optim.Adam(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).parameters())
    plain.load_state_dict(saved(first)["optimizer"])
    assert set(plain.state_dict()) == {"state", "param_groups"}
    assert plain.param_groups[0]["lr"] == 0.01
    public = new_run("Adam")
    public.optimizer.load_state_dict(plain.state_dict())
    assert (public.steps_taken, public.epsilon()) == (0, 0.0)
    assert public.optimizer.state_dict()["state"][0]["step"] == 2


def test_what_was_spent_is_known_even_if_the_rest_does_not_fit() -> None:
    first = new_run("Adam")
    train_until(first, 4)
    model = nn.Linear(4, 3)
    data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randint(3, (20,)))
    other = hoarfrost.make_private(
        model, torch.optim.Adam(model.parameters()), data, sample_rate=1.0, noise_multiplier=8.0, delta=1e-5
    )
    with pytest.raises(ValueError, match="parameter group"):
        other.optimizer.load_state_dict(saved(first)["optimizer"])
    assert other.account.charged_in_all == 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda facts: facts.pop("account"),
        lambda facts: facts.pop("tensors"),
        lambda facts: facts["account"]["counters"].clear(),
        lambda facts: facts["account"].update(earlier=["nobody"]),
        lambda facts: facts["account"].update(steps_taken=-1),
    ],
)
def test_what_cannot_be_read_is_refused(wrong: Any) -> None:
    first = new_run()
    train_until(first, 2)
    state = saved(first)
    wrong(state["optimizer"]["hoarfrost"])
    later = new_run()
    with pytest.raises(InvalidValue):
        later.optimizer.load_state_dict(state["optimizer"])
    assert later.steps_taken == 0


@pytest.mark.parametrize("name", ["mine", "another"])
def test_the_ledger_tells_of_steps_after_the_state_was_saved(name: str, tmp_path: Path) -> None:
    path = ledger(tmp_path)
    first = new_run(epsilon=2.0, ledger=path, run="mine")
    train_until(first, 3)
    state = saved(first)
    train_until(first, 7)  # four of them are lost
    later = resumed(state, new_run(epsilon=2.0, ledger=path, run=name))
    assert (later.steps_taken, later.steps, later.account.charged_in_all) == (3, STEPS - 4, 7)
    train_until(later, later.steps)
    assert later.account.charged_in_all == STEPS
    assert later.epsilon() <= 2.0


def test_a_ledger_that_was_cut_since_is_refused(tmp_path: Path) -> None:
    path = ledger(tmp_path)
    first = new_run(ledger=path, run="mine")
    train_until(first, 2)
    older = shutil.copy(path, tmp_path / "older")
    train_until(first, 5)
    state = saved(first)
    shutil.copy(older, path)
    later = new_run(ledger=path, run="mine")
    with pytest.raises(LedgerDamaged):
        later.optimizer.load_state_dict(state["optimizer"])


def test_what_clipping_style_and_freezer_keep_comes_along() -> None:
    def new() -> Any:
        return new_run(clip=hoarfrost.clip.Adaptive(), freeze=Selecting())

    first = new()
    train_until(first, 4)
    later = resumed(saved(first), new())
    assert later.optimizer.engine.clipper.norm == first.optimizer.engine.clipper.norm
    train_until(later, 5)
    assert len(later.account.releases) == 1  # it did not look again
    assert later.optimizer.controller.live_shares > first.optimizer.controller.live_shares > 0


def test_a_scheduler_s_rate_comes_along() -> None:
    first = new_run()
    scheduler = torch.optim.lr_scheduler.StepLR(first.optimizer, step_size=2, gamma=0.5)
    train_until(first, 4, scheduler)
    later = resumed(saved(first), new_run())
    again = torch.optim.lr_scheduler.StepLR(later.optimizer, step_size=2, gamma=0.5)
    again.load_state_dict(scheduler.state_dict())
    train_until(later, 6, again)
    assert later.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**3)


def test_a_loop_may_go_back_to_an_earlier_state_and_pays_for_what_it_repeats() -> None:
    """As loops do that keep the best weights."""
    private = new_run(sample_rate=0.1)
    best, back = copy.deepcopy(saved(private)), False
    while private.steps_taken < STEPS:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            nn.functional.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
            if private.steps_taken == 5 and not back:
                back = True
                resumed(best, private)
                assert private.steps_taken == 0
            if private.steps_taken == STEPS:
                break
    assert (private.steps_taken, private.charged) == (STEPS, STEPS + 5)


def test_a_calibrated_loop_that_goes_back_ends_earlier() -> None:
    private = new_run(sample_rate=0.1, epsilon=2.0)
    start = copy.deepcopy(saved(private))
    train_until(private, 5)
    resumed(start, private)
    assert private.steps == STEPS - 5
    train_until(private, private.steps)
    assert private.epsilon() <= 2.0
    with pytest.raises(BudgetSpent):
        next(iter(private.loader))


@pytest.mark.parametrize("freeze", [None, Layers(1), Random(0.5)])
def test_accelerate_saves_and_loads_the_account(tmp_path: Path, freeze: Any) -> None:
    accelerate = pytest.importorskip("accelerate")

    def prepared() -> tuple[Any, Any, Any]:
        private = new_run("Adam", epsilon=2.0, freeze=freeze)
        accelerator = accelerate.Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(private.model, private.optimizer)
        return private, accelerator, (model, optimizer)

    first, accelerator, _ = prepared()
    train_until(first, 5)
    accelerator.save_state(str(tmp_path / "state"))
    later, accelerator, _ = prepared()
    accelerator.load_state(str(tmp_path / "state"))
    assert counts(later) == counts(first)
    assert (later.steps_taken, later.epsilon()) == (5, first.epsilon())
    train_until(later, later.steps)
    assert (later.steps_taken, later.account.charged_in_all) == (STEPS, STEPS)
    assert later.epsilon() <= 2.0
