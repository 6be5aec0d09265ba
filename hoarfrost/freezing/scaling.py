"""Private scaling: numeric columns are standardised by one noisy release, which is charged like a freezer's."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hoarfrost import budget, validate
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.models import Standardize

if TYPE_CHECKING:
    from hoarfrost.query import Query


class PrivateScaling(Freezer):
    """Freezes nothing: before the first step it releases noisy sums of values and squares, and sets mean and spread.

    It is a freezer for the sake of a freezer's contract: the release is planned, is charged before anything is read,
    reaches the data through a `Query` alone, and is not made again when a run goes on from a checkpoint. What it finds
    is in the model's own state, so that the weights are saved with it.

    Args:
        layer: the model's first layer.
        noise_multiplier: of the release, over all training examples at once.
        beside: the freezer that it is combined with. Whatever that one means by frozen holds, since this one freezes
            nothing.

    Guarantees:
        With d numbers x in [-1, 1] at the layer's places, the release is the sum of (x, x²) over all examples,
        each shortened to length √(2d) if it is longer, plus Gaussian noise: one example changes the sum by at most
        √(2d). The number of examples, by which it is divided, is public, as it is everywhere.

    >>> layer = Standardize([0, 1], width=3)
    >>> scaling = PrivateScaling(layer, noise_multiplier=20.0)
    >>> print(scaling.releases(RunInfo({}))[0])
    means and spreads of 2 columns: 1 step on all examples with noise multiplier 20
    """

    def __init__(self, layer: nn.Module, noise_multiplier: float, *, beside: Freezer | None = None) -> None:
        validate.positive(noise_multiplier=noise_multiplier)
        validate.finite(noise_multiplier=noise_multiplier)
        if not isinstance(layer, Standardize):
            raise InvalidValue(f"private scaling sets a Standardize layer, not {layer!r}")
        self.layer, self.noise_multiplier = layer, noise_multiplier
        if beside is not None:
            self.velocity_flows, self.clips_everything = beside.velocity_flows, beside.clips_everything

    def __repr__(self) -> str:
        return f"PrivateScaling({len(self.layer.places)} columns, noise_multiplier={self.noise_multiplier})"

    def live(self, step: int, info: RunInfo) -> Live:
        return dict.fromkeys(info.shapes, True)

    def key(self, step: int, info: RunInfo) -> Hashable:
        return None

    def releases(self, info: RunInfo) -> tuple[budget.PlannedRelease, ...]:
        event = budget.Gaussian(noise_multiplier=self.noise_multiplier)
        return (budget.PlannedRelease(event=event, what=f"means and spreads of {len(self.layer.places)} columns"),)

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        columns = len(self.layer.places)
        longest = math.sqrt(2 * columns)

        def values_and_squares(model: nn.Module, batch: Any) -> Tensor:
            x: Tensor = batch[0][0, self.layer.places].double()
            return torch.cat([x, x.square()])

        sums = query.sum(values_and_squares, size=2 * columns, bound=longest).double() / query.expected_batch
        mean, square = sums[:columns].clamp(-1, 1), sums[columns:]
        # A variance below the noise in it cannot be told from none: dividing by less would blow up the noise.
        noise = self.noise_multiplier * longest / query.expected_batch
        variance = (square - mean.square()).clamp(min(1.0, noise), 1.0)
        self.layer.set(mean, variance.sqrt())
