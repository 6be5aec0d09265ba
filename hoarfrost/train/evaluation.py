"""How well a model does: averages while it trains, and the figures of the test set."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hoarfrost.data import Texts, batches
from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Calibration
from hoarfrost.models import outputs_of
from hoarfrost.nested import map_tensors
from hoarfrost.recipes.losses import CROSS_ENTROPY, Loss

TEST_BATCH = 1024
TEST_TEXTS = 64  # of a batch: what a layer computes for texts of a length takes far more memory than for images
OF_CALIBRATION = ("nll", "brier", "ece", "mce")


@dataclass
class Average:
    """Loss and accuracy over examples, kept on the device: reading them is what would make a GPU wait."""

    loss_sum: Tensor
    correct: Tensor | None = None  # None until something was classified
    examples: int = 0

    @classmethod
    def on(cls, device: torch.device) -> Average:
        """Over nothing yet."""
        return cls(torch.zeros((), device=device))

    def add(self, loss: Tensor, logits: Tensor | None, targets: Tensor) -> None:
        """Counts a batch with its mean loss; without classes there are no logits. An empty batch has no mean (NaN),
        and nothing to count.
        """
        if len(targets):
            self.loss_sum += loss.detach() * len(targets)
            self.examples += len(targets)
            if logits is not None:
                right = (logits.detach().argmax(1) == targets).sum()
                self.correct = right if self.correct is None else self.correct + right

    @property
    def loss(self) -> float | None:
        """The mean loss; None over nothing."""
        return self.loss_sum.item() / self.examples if self.examples else None

    @property
    def accuracy(self) -> float | None:
        """The share that was classified rightly; None over nothing, and where there are no classes."""
        return None if self.correct is None else self.correct.item() / self.examples


@dataclass(frozen=True)
class Evaluation:
    """The figures of a test set by name: "loss", and the metrics of the loss. NaN is one that cannot be computed.

    ``calibration`` is a classifier's, if its outputs are finite.
    """

    figures: Mapping[str, float]
    calibration: Calibration | None = None


@torch.no_grad()
def evaluate(
    model: nn.Module, test: TensorDataset | Texts, device: torch.device, loss: Loss = CROSS_ENTROPY
) -> Evaluation:
    """The figures of the model on a test set, in evaluation mode.

    >>> test = TensorDataset(torch.eye(2), torch.tensor([0, 1]))
    >>> evaluate(nn.Identity(), test, torch.device("cpu")).figures["accuracy"]
    1.0
    """
    training, average = model.training, Average.on(device)
    model.eval()
    found, seen = [], []
    for batch in batches(test, TEST_TEXTS if isinstance(test, Texts) else TEST_BATCH):
        x, y = map_tensors(lambda t: t.to(device), batch)
        outputs = outputs_of(model, x)
        average.add(loss(outputs, y), loss.logits(outputs), y)
        found.append(outputs)
        seen.append(y)
    model.train(training)
    outputs, targets = torch.cat(found).double().cpu(), torch.cat(seen).cpu()
    logits = loss.logits(outputs)
    calibration = None if logits is None else calibration_of(logits, targets)
    mean = average.loss
    assert mean is not None  # a test set is never empty
    figures = {"loss": mean}
    for name in loss.metrics:
        if name == "accuracy" and average.accuracy is not None:
            figures[name] = average.accuracy
        elif name in OF_CALIBRATION:
            figures[name] = math.nan if calibration is None else getattr(calibration, name)
        elif name in OF_ONE_OUTPUT:
            figures[name] = OF_ONE_OUTPUT[name](outputs.squeeze(1) * loss.unit, targets * loss.unit)
        else:
            raise InvalidValue(f"{type(loss).__name__} names a metric that there is not: {name}")
    return Evaluation(figures, calibration)


def auroc(scores: Tensor, labels: Tensor) -> float:
    """The area under the ROC curve: how often a positive has a larger score than a negative; ties count half.

    >>> auroc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.875
    """
    positive = labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    if not ones or not zeros or not bool(scores.isfinite().all()):
        return math.nan
    # The sum of the positives' ranks; scores that are equal share the mean of their ranks.
    _, place, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[place].double()
    return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def mse(predicted: Tensor, targets: Tensor) -> float:
    """The mean squared error.

    >>> mse(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0]))
    5.0
    """
    return float(((predicted.double() - targets.double()) ** 2).mean())


def r2(predicted: Tensor, targets: Tensor) -> float:
    """R², the coefficient of determination: 1 is perfect, 0 is as good as the mean of the targets.

    >>> r2(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 6.0])), r2(torch.ones(2), torch.ones(2))
    (0.357..., nan)
    """
    targets = targets.double()
    spread = float(((targets - targets.mean()) ** 2).mean())
    return 1 - mse(predicted, targets) / spread if spread > 0 else math.nan


OF_ONE_OUTPUT = {"auroc": auroc, "mse": mse, "r2": r2}


def calibration_of(logits: Tensor, labels: Tensor) -> Calibration | None:
    """The calibration of a classifier; None if there is none: its logits are not finite, or there is one class."""
    if logits.shape[1] < 2:  # to `Calibration` one logit is that of the second of two classes
        return None
    try:
        return Calibration.of(logits, labels)
    except InvalidValue:
        return None
