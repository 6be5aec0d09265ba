"""The training loop: plain PyTorch around what `make_private` returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import TensorDataset

from hoarfrost.data import Texts
from hoarfrost.models import outputs_of
from hoarfrost.nested import map_tensors
from hoarfrost.recipes.losses import CROSS_ENTROPY, Loss
from hoarfrost.run import Private
from hoarfrost.train.evaluation import Average, Evaluation, evaluate


@dataclass(frozen=True)
class Epoch:
    """Where training is at the end of an epoch, or where it was broken off.

    ``train`` figures are computed on private data without noise, and are not covered by any epsilon; there is no
    accuracy without classes. ``test`` is there where the test set was evaluated. ``live`` is the share of the
    coordinates that were live, on average over the epoch's steps; None where nothing is frozen.
    """

    number: int
    step: int
    seconds: float
    steps_per_second: float
    train_loss: float | None
    train_accuracy: float | None
    test: Evaluation | None = None
    live: float | None = None

    @property
    def test_loss(self) -> float | None:
        """The loss on the test set, where it was evaluated."""
        return None if self.test is None else self.test.figures["loss"]

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy on the test set, where it was evaluated and has classes."""
        return None if self.test is None else self.test.figures.get("accuracy")


def train(
    private: Private,
    test: TensorDataset | Texts,
    *,
    device: torch.device,
    loss: Loss = CROSS_ENTROPY,
    scheduler: LRScheduler | None = None,
    evaluate_every: int = 1,
    on_step: Callable[[int, Average], None] = lambda step, average: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Epoch]:
    """Takes all the steps that ``private`` was planned for, and yields at the end of every epoch.

    Args:
        loss: what is minimized.
        on_step: called after every optimizer step with the number of steps taken and this epoch's training average.
        stop: asked after every optimizer step; if it says so, the epoch ends there and is the last one.
    """
    model, optimizer, loader = private
    controller = private.optimizer.controller
    begin, paused, first = time.perf_counter(), 0.0, private.steps_taken
    stopped = stop()
    while not stopped and not done(private):
        average = Average.on(device)
        first_of_epoch, shares = private.steps_taken, 0.0 if controller is None else controller.live_shares
        model.train()
        for batch in loader:
            x, y = map_tensors(lambda t: t.to(device), batch)
            taken = private.steps_taken
            optimizer.zero_grad()
            outputs = outputs_of(model, x)
            losses = loss.of_each(outputs, y)
            optimizer.backward(losses)
            optimizer.step()
            average.add(losses.detach().mean(), loss.logits(outputs), y)
            if private.steps_taken == taken:
                continue  # a chunk of a batch whose rest is still to come
            if scheduler is not None:
                scheduler.step()
            on_step(private.steps_taken, average)
            if stopped := stop():
                break
        training = time.perf_counter() - begin - paused
        tested = None
        if stopped or done(private) or loader.epoch % evaluate_every == 0:
            pause = time.perf_counter()
            tested = evaluate(model, test, device, loss)
            paused += time.perf_counter() - pause
        yield Epoch(
            number=loader.epoch,
            step=private.steps_taken,
            seconds=time.perf_counter() - begin,
            steps_per_second=(private.steps_taken - first) / training,
            train_loss=average.loss,
            train_accuracy=average.accuracy,
            test=tested,
            live=None
            if controller is None
            else (controller.live_shares - shares) / (private.steps_taken - first_of_epoch),
        )


def done(private: Private) -> bool:
    """Whether all the steps that were planned, or that can be paid for, are taken."""
    return private.steps is not None and private.steps_taken >= private.steps
