"""The training loop: plain PyTorch around what `make_private` returns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from hoarfrost.run import Private

TEST_BATCH = 1024


@dataclass
class Average:
    """Loss and accuracy over examples, kept on the device: reading them is what would make a GPU wait."""

    loss_sum: Tensor
    correct: Tensor
    examples: int = 0

    @classmethod
    def on(cls, device: torch.device) -> Average:
        """Over nothing yet."""
        return cls(torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device))

    def add(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Counts a batch with its mean loss. An empty one has no mean (NaN), and nothing to count."""
        if len(labels):
            self.loss_sum += loss.detach() * len(labels)
            self.correct += (logits.detach().argmax(1) == labels).sum()
            self.examples += len(labels)

    @property
    def loss(self) -> float | None:
        """The mean loss; None over nothing."""
        return self.loss_sum.item() / self.examples if self.examples else None

    @property
    def accuracy(self) -> float | None:
        """The share that was classified rightly; None over nothing."""
        return self.correct.item() / self.examples if self.examples else None


@dataclass(frozen=True)
class Epoch:
    """Where training is at the end of an epoch, or where it was broken off.

    ``train`` figures are computed on private data without noise, and are not covered by any epsilon. ``test`` figures
    are there where the test set was evaluated. ``live`` is the share of the coordinates that were live, on average over
    the epoch's steps; None where nothing is frozen.
    """

    number: int
    step: int
    seconds: float
    steps_per_second: float
    train_loss: float | None
    train_accuracy: float | None
    test_loss: float | None = None
    test_accuracy: float | None = None
    live: float | None = None


def train(
    private: Private,
    test: TensorDataset,
    *,
    device: torch.device,
    scheduler: LRScheduler | None = None,
    evaluate_every: int = 1,
    on_step: Callable[[int, Average], None] = lambda step, average: None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Epoch]:
    """Takes all the steps that ``private`` was planned for, and yields at the end of every epoch.

    Args:
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
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            taken = private.steps_taken
            optimizer.zero_grad()
            logits = model(x)
            loss = F.cross_entropy(logits, y)
            loss.backward()
            optimizer.step()
            average.add(loss, logits, y)
            if private.steps_taken == taken:
                continue  # a chunk of a batch whose rest is still to come
            if scheduler is not None:
                scheduler.step()
            on_step(private.steps_taken, average)
            if stopped := stop():
                break
        training = time.perf_counter() - begin - paused
        tested: tuple[float | None, float | None] = (None, None)
        if stopped or done(private) or loader.epoch % evaluate_every == 0:
            pause = time.perf_counter()
            tested = evaluate(model, test, device)
            paused += time.perf_counter() - pause
        yield Epoch(
            number=loader.epoch,
            step=private.steps_taken,
            seconds=time.perf_counter() - begin,
            steps_per_second=(private.steps_taken - first) / training,
            train_loss=average.loss,
            train_accuracy=average.accuracy,
            test_loss=tested[0],
            test_accuracy=tested[1],
            live=None
            if controller is None
            else (controller.live_shares - shares) / (private.steps_taken - first_of_epoch),
        )


@torch.no_grad()
def evaluate(model: nn.Module, test: TensorDataset, device: torch.device) -> tuple[float | None, float | None]:
    """Mean loss and accuracy on the test set."""
    training, average = model.training, Average.on(device)
    model.eval()
    for x, y in DataLoader(test, batch_size=TEST_BATCH):
        x, y = x.to(device), y.to(device)
        logits = model(x)
        average.add(F.cross_entropy(logits, y), logits, y)
    model.train(training)
    return average.loss, average.accuracy


def done(private: Private) -> bool:
    """Whether all the steps that were planned, or that can be paid for, are taken."""
    return private.steps is not None and private.steps_taken >= private.steps
