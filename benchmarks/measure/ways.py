"""SGD, clipping only, noise only, and DP-SGD: one training, of which parts are left out.

None of the trainings here is private as a whole, whatever its second phase spends: no epsilon is shown for any.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import hoarfrost
from hoarfrost import data
from hoarfrost.freezing import Freezer
from hoarfrost.measure.loss_at import LossAt

NO_CLIPPING = 1e6  # a bound that no gradient reaches
DELTA = 1e-5


@dataclass(frozen=True)
class Way:
    """How to train.

    Args:
        clip: the clipping norm C; None clips nothing.
        noise: the deviation of the noise on the sum of a batch, in clipping norms (of C = 1, if nothing is clipped).
    """

    name: str
    lr: float
    batch: int
    clip: float | None = None
    noise: float = 0.0

    def epochs(
        self, model: nn.Module, train: TensorDataset, count: int, seed: int, freeze: Freezer | None = None
    ) -> Iterator[int]:
        """Trains the model in place, and yields the number of each epoch when it ends."""
        bound = self.clip or NO_CLIPPING
        with warnings.catch_warnings():  # of what earlier phases spent: no epsilon is shown for any of this
            warnings.filterwarnings("ignore", "this model is a copy of one that was trained privately")
            private = hoarfrost.make_private(
                model, torch.optim.SGD(model.parameters(), lr=self.lr), train, batch_size=self.batch, epochs=count,
                noise_multiplier=self.noise * (self.clip or 1.0) / bound, clip=bound, delta=DELTA, seed=seed,
                freeze=freeze,
            )  # fmt: skip
        for number in range(1, count + 1):
            model.train()
            for x, y in private.loader:
                private.optimizer.zero_grad()
                private.optimizer.backward(F.cross_entropy(model(x), y, reduction="none"))
                private.optimizer.step()
            yield number

    def train(self, model: nn.Module, train: TensorDataset, count: int, seed: int) -> nn.Module:
        """All epochs at once."""
        for _ in self.epochs(model, train, count, seed) if count else ():
            pass
        return plain(model)


def plain(model: nn.Module) -> nn.Module:
    """A copy that is private no more and can be made so again, by another phase."""
    return copy.deepcopy(model)


def part(examples: Any, most: int) -> TensorDataset:
    """The first examples: the data sets here are not sorted."""
    x, y = examples.tensors
    return TensorDataset(x[:most], y[:most])


def tests(model: nn.Module, examples: TensorDataset) -> dict[str, float]:
    """Loss and accuracy."""
    batches = list(data.batches(examples, 1000))
    right = lambda outputs, y: (outputs.argmax(1) == y).double().mean()  # noqa: E731
    found = {}
    for name, loss in (("loss", F.cross_entropy), ("accuracy", right)):
        at = LossAt(model, batches, loss)
        value = at(at.weights)
        found[name] = value if math.isfinite(value) else None
    return found  # type: ignore[return-value]


def seeded(build: Any, seed: int) -> nn.Module:
    """A model with the initial weights of that seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = build()
    return model


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """The mean loss of a batch, and the norm of its gradient."""
    loss = F.cross_entropy(model(x), y)
    parts = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), math.sqrt(sum(float(part.square().sum()) for part in parts))
