"""The loop: every planned step, no more; averages over what was there; stops where it is asked to."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hoarfrost.private import Private, make_private
from hoarfrost.train.evaluation import Average, evaluate
from hoarfrost.train.loop import Epoch, train

CPU = torch.device("cpu")
TEST = TensorDataset(torch.randn(20, 3), torch.randint(2, (20,)))


def private(size: int = 60, **settings: Any) -> Private:
    data = TensorDataset(torch.randn(size, 3), torch.randint(2, (size,)))
    model = nn.Linear(3, 2)
    given: dict[str, Any] = {"batch_size": 20, "steps": 8, "noise_multiplier": 1.0, "delta": 1e-3, "seed": 0} | settings
    return make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, **given)


def trained(run: Private, **settings: Any) -> list[Epoch]:
    return list(train(run, TEST, device=CPU, **settings))


def test_it_takes_the_planned_steps_in_epochs() -> None:
    run = private()
    epochs = trained(run)
    assert run.steps_taken == 8
    assert [(epoch.number, epoch.step) for epoch in epochs] == [(1, 3), (2, 6), (3, 8)]


def test_a_batch_in_chunks_is_one_step() -> None:
    seen: list[int] = []
    run = private(max_physical_batch=4)
    trained(run, on_step=lambda step, average: seen.append(step))
    assert seen == list(range(1, 9))


def test_the_learning_rate_changes_once_a_step_not_once_a_chunk() -> None:
    run = private(max_physical_batch=4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(run.optimizer, 0.5)
    trained(run, scheduler=scheduler)
    assert run.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**8)


def test_empty_batches_are_steps_that_leave_the_averages_alone() -> None:
    run = private(size=5, batch_size=0.5, steps=60)
    epochs = trained(run)
    assert run.steps_taken == 60
    losses = [epoch.train_loss for epoch in epochs if epoch.train_loss is not None]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)


def test_an_average_over_nothing_is_none() -> None:
    average = Average.on(CPU)
    average.add(torch.tensor(math.nan), torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    assert (average.loss, average.accuracy) == (None, None)


def test_an_average_weighs_batches_by_their_size() -> None:
    average = Average.on(CPU)
    right, wrong = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]] * 3)
    average.add(torch.tensor(1.0), right, torch.zeros(1, dtype=torch.long))
    average.add(torch.tensor(5.0), wrong, torch.zeros(3, dtype=torch.long))
    assert (average.loss, average.accuracy) == (4.0, 0.25)


def after(steps: int, run: Private) -> Callable[[], bool]:
    return lambda: run.steps_taken >= steps


@pytest.mark.parametrize("chunk", [None, 3])
def test_asked_to_stop_it_finishes_the_step_and_the_epoch_ends_there(chunk: int | None) -> None:
    run = private(max_physical_batch=chunk)
    epochs = trained(run, stop=after(5, run))
    assert run.steps_taken == 5
    assert epochs[-1].step == 5
    assert epochs[-1].test_accuracy is not None


def test_asked_to_stop_before_the_first_step_it_takes_none() -> None:
    run = private()
    assert trained(run, stop=lambda: True) == []
    assert run.steps_taken == 0


def test_the_test_set_is_evaluated_as_often_as_asked_and_at_the_end() -> None:
    epochs = trained(private(steps=14), evaluate_every=3)
    assert [epoch.test_accuracy is not None for epoch in epochs] == [False, False, True, False, True]


def test_evaluation_counts_every_example_and_leaves_the_mode_alone() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 2)).train()
    x, y = TEST.tensors
    found = evaluate(model, TEST, CPU).figures
    expected = model[1](x)
    assert found["loss"] == pytest.approx(nn.functional.cross_entropy(expected, y).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((expected.argmax(1) == y).float().mean().item())
    assert model.training
