"""The loss along random directions: how steep a basin is where nobody has chosen the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.measure.connectivity import POINTS
from hoarfrost.measure.loss_at import Batches, Loss, LossAt, Weights

COUNT = 100  # as in the paper
HELD = 1 << 27  # numbers of directions that are held at once: half a gigabyte


@dataclass(frozen=True, kw_only=True)
class Directions:
    """The losses on the way from a model along random directions.

    Args:
        distances: from the model, beginning with 0.
        losses: for each direction, the mean loss at each distance.
        largest_cosine: the largest |cos| of the angle between two of the directions; None of one alone. Around 0 they
            are orthogonal, as random vectors in high dimension are.
    """

    distances: tuple[float, ...]
    losses: tuple[tuple[float, ...], ...]
    largest_cosine: float | None

    @property
    def mean(self) -> tuple[float, ...]:
        """The mean over directions of the loss at each distance."""
        return tuple(sum(column) / len(column) for column in zip(*self.losses, strict=True))

    @property
    def rises(self) -> int:
        """How many of the directions end at a higher loss than they begin with."""
        return sum(losses[-1] > losses[0] for losses in self.losses)


def random_directions(
    model: nn.Module,
    batches: Batches,
    *,
    distance: float,
    count: int = COUNT,
    points: int = POINTS,
    loss: Loss = F.cross_entropy,
    seed: int = 0,
) -> Directions:
    """The loss along straight lines that leave the model in directions drawn uniformly from the sphere.

    Args:
        distance: how far, in Euclidean norm over all parameters: take that of another model, to compare with the line
            there (`connectivity`).
        count: how many directions.
        points: on each, both ends included.
        seed: of the directions. The same one gives the same directions on the same kind of device.

    >>> model = nn.Linear(2, 2)
    >>> found = random_directions(
    ...     model, [(torch.ones(3, 2), torch.tensor([0, 1, 1]))], distance=1.0, count=4, points=3
    ... )
    >>> found.distances, len(found.losses), 0 <= found.largest_cosine <= 1
    ((0.0, 0.5, 1.0), 4, True)

    Guarantees:
        None: on private examples this is not private. The model does not change.
    """
    validate.whole(count=count, points=points)
    validate.count(seed=seed)
    validate.positive(distance=distance)
    validate.finite(distance=distance)
    if points < 2:
        raise InvalidValue(f"a line has two ends: points must be 2 or more, got {points}")
    at = LossAt(model, batches, loss)
    distances = torch.linspace(0, distance, points, dtype=torch.float64).tolist()
    begin = at(at.weights)
    losses = []
    for number in range(count):
        way = unflattened(unit(at.weights, seed, number), at.weights)
        losses.append((begin, *(at({n: w + d * way[n] for n, w in at.weights.items()}) for d in distances[1:])))
    cosine = largest_cosine(at.weights, seed, count) if count > 1 else None
    return Directions(distances=tuple(distances), losses=tuple(losses), largest_cosine=cosine)


def unit(like: Weights, seed: int, number: int) -> Tensor:
    """The direction of that number: one vector over all parameters, of length 1. Drawn anew, it is the same one."""
    device = next(iter(like.values())).device
    # One number from two: torch's generator on a processor has a seed of 32 bits, and leaves out what is above.
    mixed = int(np.random.SeedSequence((seed, number)).generate_state(1)[0])
    generator = torch.Generator(device=device).manual_seed(mixed)
    return F.normalize(torch.randn(sum(w.numel() for w in like.values()), generator=generator, device=device), dim=0)


def unflattened(vector: Tensor, like: Weights) -> dict[str, Tensor]:
    """The parts of one vector over all parameters, by name and in their shapes."""
    parts = vector.split([w.numel() for w in like.values()])
    return {name: part.view(w.shape).to(w) for (name, w), part in zip(like.items(), parts, strict=True)}


def largest_cosine(like: Weights, seed: int, count: int) -> float:
    """The largest |cos| between two of the directions. Those of a large model are drawn anew, some at a time."""
    at_once = max(1, HELD // sum(w.numel() for w in like.values()))

    def rows() -> Iterator[tuple[int, Tensor]]:
        for first in range(0, count, at_once):
            yield first, torch.stack([unit(like, seed, n) for n in range(first, min(first + at_once, count))])

    largest = 0.0
    for first, some in rows():
        for other, others in rows() if at_once < count else [(first, some)]:
            if other > first:
                break  # each pair once
            cosines = (some @ others.T).abs()
            if other == first:
                cosines.fill_diagonal_(0)
            largest = max(largest, cosines.max().item())
    return largest
