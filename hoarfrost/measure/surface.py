"""Loss surfaces: the loss over a plane through a model, in two random directions that are filter-normalised."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.measure.directions import unflattened, unit
from hoarfrost.measure.loss_at import Batches, Loss, LossAt, Weights

POINTS = 21


@dataclass(frozen=True, kw_only=True)
class Surface:
    """The losses at θ + a·δ + b·η.

    Args:
        steps: the values of a and of b. The model is in the middle, where both are 0.
        losses: for each value of b, from the first, the mean loss at each value of a.
    """

    steps: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]


def loss_surface(
    model: nn.Module,
    batches: Batches,
    *,
    reach: float = 1.0,
    points: int = POINTS,
    loss: Loss = F.cross_entropy,
    seed: int = 0,
) -> Surface:
    """The loss over a plane in two filter-normalised random directions δ and η (Li et al., 2018).

    Each filter of a direction, a convolution's output channel or a linear layer's row, has the length of the model's
    own filter: so that surfaces of models whose weights differ in scale can be compared. Biases, and the scales of
    normalizations, stay.

    Args:
        reach: how far it goes each way; at 1 the filters' directions are as long as the filters.
        points: along each side: odd, so that the model itself is in the middle.
        seed: of the two directions.

    >>> batch = (torch.ones(3, 2), torch.tensor([0, 1, 1]))
    >>> found = loss_surface(nn.Linear(2, 2), [batch], points=3)
    >>> found.steps, [len(row) for row in found.losses]
    ((-1.0, 0.0, 1.0), [3, 3, 3])

    Guarantees:
        None: on private examples this is not private. The model does not change.
    """
    validate.whole(points=points)
    validate.count(seed=seed)
    validate.positive(reach=reach)
    validate.finite(reach=reach)
    if points % 2 == 0:
        raise InvalidValue(f"points must be odd, so that the model is in the middle of the surface; got {points}")
    at = LossAt(model, batches, loss)
    one, other = (filter_normalised(unflattened(unit(at.weights, seed, n), at.weights), at.weights) for n in (0, 1))
    # A scale that is symmetric to the last bit, with exactly 0 in its middle.
    steps = [reach * number / max(1, points // 2) for number in range(-(points // 2), points // 2 + 1)]
    rows = [tuple(at({n: w + a * one[n] + b * other[n] for n, w in at.weights.items()}) for a in steps) for b in steps]
    return Surface(steps=tuple(steps), losses=tuple(rows))


def filter_normalised(direction: Weights, weights: Weights) -> dict[str, Tensor]:
    """Every filter with the length of the weights' own; of parameters with less than two dimensions, nothing.

    >>> filter_normalised({"w": torch.ones(2, 4)}, {"w": torch.eye(2, 4)})["w"][0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    found = {}
    for name, drawn in direction.items():
        if drawn.dim() < 2:
            found[name] = torch.zeros_like(drawn)
            continue
        own, lengths = (t.flatten(1).norm(dim=1).view(-1, *[1] * (t.dim() - 1)) for t in (weights[name], drawn))
        found[name] = drawn * torch.where(lengths > 0, own / lengths, 0.0)
    return found
