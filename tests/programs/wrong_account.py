"""Wrong programs: what was spent is told too low, or not at all."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import hoarfrost
from hoarfrost.errors import HoarfrostError, InvalidValue
from tests.programs.corpus import Holds, Rows, refused, told, wrong
from tests.programs.examples import vectors
from tests.programs.loops import two_layers
from tests.programs.running import MakePrivate

NOISY: dict[str, Any] = {"noise_multiplier": 2.0, "delta": 1e-5, "accountant": "rdp"}


def noisy(model: nn.Module, rows: Rows, **options: Any) -> Any:
    """A run with noise, whose epsilon can be asked for."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hoarfrost.make_private(model, optimizer, rows, **{"sample_rate": 0.5, **NOISY, **options})


def train(private: Any, epochs: int) -> None:
    model, optimizer, loader = private
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


# Batches that the loop leaves out.

CHARGED = Holds("every batch that was handed over is charged")


@wrong(vectors, CHARGED)
def empty_batches_are_left_out(rows: Rows, make_private: MakePrivate) -> bool:
    private = noisy(two_layers(), rows, sample_rate=0.1, seed=3)
    drawn = left_out = 0
    for _ in range(4):
        for x, y in private.loader:
            drawn += 1
            if len(y) == 0:
                left_out += 1
                continue
            private.optimizer.zero_grad()
            F.cross_entropy(private.model(x), y).backward()
            private.optimizer.step()
    assert 0 < left_out < drawn == 40
    return private.charged == drawn


@wrong(vectors, CHARGED)
def batches_without_a_finite_loss_are_left_out(rows: Rows, make_private: MakePrivate) -> bool:
    broken = [(torch.full_like(x, torch.nan) if k == 0 else x, y) for k, (x, y) in enumerate(rows)]
    private = noisy(two_layers(), broken, sample_rate=0.3, seed=3)
    drawn = 0
    for _ in range(6):
        for x, y in private.loader:
            drawn += 1
            private.optimizer.zero_grad()
            loss = F.cross_entropy(private.model(x), y)
            if torch.isnan(loss):
                continue
            loss.backward()
            private.optimizer.step()
    assert private.steps_taken < drawn
    return private.charged == drawn


@wrong(vectors, CHARGED)
def batches_with_a_large_loss_are_left_out(rows: Rows, make_private: MakePrivate) -> bool:
    private = noisy(two_layers(), rows, sample_rate=0.3, seed=3)
    drawn = 0
    for _ in range(6):
        for x, y in private.loader:
            drawn += 1
            private.optimizer.zero_grad()
            loss = F.cross_entropy(private.model(x), y)
            if loss > 1.1:
                continue
            loss.backward()
            private.optimizer.step()
    assert private.steps_taken < drawn
    return private.charged == drawn


@wrong(vectors, told("charged"))
def left_out_batches_are_told_of(rows: Rows, make_private: MakePrivate) -> None:
    private = noisy(two_layers(), rows)
    for number, (x, y) in enumerate(private.loader):
        private.optimizer.zero_grad()
        F.cross_entropy(private.model(x), y).backward()
        if number:
            private.optimizer.step()


# Weights that go on elsewhere.


@wrong(vectors, Holds("the optimizer's state brings what was spent"))
def model_and_optimizer_loaded_into_a_new_run(rows: Rows, make_private: MakePrivate) -> bool:
    """The way everybody resumes."""
    first = noisy(two_layers(), rows)
    train(first, 2)
    file = io.BytesIO()
    torch.save({"model": first.model.state_dict(), "optimizer": first.optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = noisy(two_layers(), rows)
    second.model.load_state_dict(saved["model"])
    second.optimizer.load_state_dict(saved["optimizer"])
    before = second.epsilon()
    train(second, 2)
    return bool(before >= first.epsilon() > 0 and second.epsilon() > 1.2 * first.epsilon())


@wrong(vectors, told("account"))
def a_copy_of_the_model_trained_further(rows: Rows, make_private: MakePrivate) -> None:
    """A second stage that knows nothing of the first."""
    first = noisy(two_layers(), rows)
    train(first, 2)
    train(noisy(copy.deepcopy(first.model), rows), 2)


@wrong(vectors, Holds("a second stage has its own steps and learning rate, and the joint epsilon"))
def a_second_stage_after_the_first(rows: Rows, make_private: MakePrivate) -> bool:
    first = noisy(two_layers(), rows, steps=4)
    train(first, 2)
    model = copy.deepcopy(first.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    second = hoarfrost.make_private(model, optimizer, rows, sample_rate=0.5, steps=2, after=first, **NOISY)
    train(second, 1)
    return bool(second.epsilon() > first.epsilon() and second.optimizer.param_groups[0]["lr"] == 0.01)


@wrong(vectors, Holds("the statement says that runs add up unless one ledger holds them"))
def three_runs_on_one_data_set(rows: Rows, make_private: MakePrivate) -> bool:
    said = []
    for _ in range(3):
        private = noisy(two_layers(), rows)
        train(private, 1)
        said.append(str(private.statement()))
    return all("ledger" in each and "add up" in each for each in said)


# Numbers that promise nothing.


@wrong(vectors, told("delta"))
def a_delta_of_one_half(rows: Rows, make_private: MakePrivate) -> None:
    noisy(two_layers(), rows, delta=0.5)


@wrong(vectors, refused("5e-324", error=InvalidValue))
def a_sampling_rate_of_almost_nothing(rows: Rows, make_private: MakePrivate) -> None:
    noisy(two_layers(), rows, sample_rate=5e-324)


@wrong(vectors, refused("epsilon", "noise_multiplier", error=InvalidValue))
def both_epsilon_and_noise(rows: Rows, make_private: MakePrivate) -> None:
    noisy(two_layers(), rows, epsilon=1.0, steps=3)


@wrong(vectors, refused("epochs", "steps", error=InvalidValue))
def an_epsilon_for_nobody_knows_how_long(rows: Rows, make_private: MakePrivate) -> None:
    noisy(two_layers(), rows, epsilon=1.0, noise_multiplier=None)


@wrong(vectors, refused("steps of this run", "plan", error=HoarfrostError))
def more_epochs_than_were_planned(rows: Rows, make_private: MakePrivate) -> None:
    private = noisy(two_layers(), rows, epsilon=3.0, noise_multiplier=None, steps=2)
    train(private, 2)


@wrong(vectors, Holds("a seed is told of wherever an epsilon stands"))
def a_seed_for_the_noise(rows: Rows, make_private: MakePrivate) -> bool:
    private = noisy(two_layers(), rows, seed=1)
    train(private, 1)
    return "must not be released" in str(private.statement())


@wrong(vectors, Holds("OneCycleLR fits the planned epochs exactly"))
def one_cycle_over_the_length_of_the_loader(rows: Rows, make_private: MakePrivate) -> bool:
    """epochs × len(loader) steps were planned for; one step more is an error in torch."""
    private = noisy(two_layers(), rows, sample_rate=0.3, epochs=4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        private.optimizer, 0.1, epochs=4, steps_per_epoch=len(private.loader)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            for x, y in private.loader:
                private.optimizer.zero_grad()
                F.cross_entropy(private.model(x), y).backward()
                private.optimizer.step()
                scheduler.step()
    return True
