"""Linear mode connectivity: whether two models lie on the floor of one basin, with no barrier between them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.measure.loss_at import Batches, Loss, LossAt, Weights, alike, distance

POINTS = 30  # as in the papers


@dataclass(frozen=True, kw_only=True)
class Connectivity:
    """The losses ℰ_α at (1 - α)·θ₀ + α·θ₁ on the straight line between two models.

    Args:
        alphas: from 0, the first model, to 1, the second.
        losses: the mean loss at each.
        distance: ‖θ₁ - θ₀‖.
    """

    alphas: tuple[float, ...]
    losses: tuple[float, ...]
    distance: float

    @property
    def highest(self) -> float:
        """The largest loss on the way; infinite where the loss is no number."""
        return max(math.inf if math.isnan(loss) else loss for loss in self.losses)

    @property
    def instability(self) -> float:
        """The linear interpolation instability, the barrier: sup ℰ_α minus the mean of the losses at both ends.

        Around 0 the two are in one linearly connected basin. It is never below 0, since the supremum contains the ends.
        """
        ends = (self.losses[0] + self.losses[-1]) / 2
        return self.highest - ends if math.isfinite(ends) else math.nan


def connectivity(
    first: nn.Module,
    second: nn.Module | Weights,
    batches: Batches,
    *,
    loss: Loss = F.cross_entropy,
    points: int = POINTS,
) -> Connectivity:
    """The losses on the line between two models of one architecture (Frankle et al., 2020).

    Parameters alone are interpolated; buffers, such as the statistics of BatchNorm, are the first model's.

    Args:
        second: a model, or its state dict.
        batches: pairs of inputs and targets that can be gone through more than once.
        loss: of outputs and targets, a mean over examples.
        points: how many, both ends included.

    >>> model = nn.Linear(2, 2)
    >>> found = connectivity(model, model, [(torch.ones(3, 2), torch.tensor([0, 1, 1]))])
    >>> len(found.losses), found.distance, found.instability
    (30, 0.0, 0.0)

    Guarantees:
        None: on private examples this is not private. No model changes.
    """
    validate.whole(points=points)
    if points < 2:
        raise InvalidValue(f"a line has two ends: points must be 2 or more, got {points}")
    at = LossAt(first, batches, loss)
    start, end = at.weights, alike(at.weights, second)
    alphas = torch.linspace(0, 1, points, dtype=torch.float64).tolist()
    # lerp: at both ends, and where the two agree, the weights are the models' own to the last bit.
    losses = [at({name: torch.lerp(start[name], end[name], a) for name in start}) for a in alphas]
    return Connectivity(alphas=tuple(alphas), losses=tuple(losses), distance=distance(start, end))
