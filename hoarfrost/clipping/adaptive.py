"""Adaptive clipping: the clipping norm follows a private quantile of the gradients' norms."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.flat import FlatStyle, Piece
from hoarfrost.clipping.keep_or_drop import Global
from hoarfrost.clipping.local import Local
from hoarfrost.errors import InvalidValue
from hoarfrost.info import RunInfo
from hoarfrost.registry import Positive, Probability, component

STYLES = {"local": Local, "global": Global}
# A norm within this share of the clipping norm counts in part: a count that jumped would leak (see `Clipping`). And it
# counts for a little less than the 1/2 that noise is made for: room for what rounding does to the other examples.
WIDTH, MOST = 0.05, 0.495
SMALLEST, LARGEST = 1e-10, 1e10  # what the norm stays between, also if there is nothing to follow but noise


@component(
    "clip", "adaptive",
    examples=lambda: [Adaptive(start=0.7, cost=0.1), Adaptive(quantile=0.8, start=0.7, style="global", cost=0.1)],
)  # fmt: skip
@dataclass(eq=False)
class Adaptive(FlatStyle):
    """The clipping norm follows a quantile of the norms, of which it learns from a noisy count in the same release.

    After Andrew et al., "Differentially Private Learning with Adaptive Clipping" (2021): with the noisy share b of
    gradients that are shorter than the norm C, C becomes C·exp(-rate·(b - quantile)) after every step.

    Args:
        quantile: the share of the gradients that shall be shorter than the norm. With "global", the share that is kept.
        start: the norm of the first step.
        rate: how fast the norm follows.
        style: how gradients are clipped to it: "local" shortens longer ones, "global" drops them.
        cost: the share of the step's privacy that the count takes. The gradient's noise grows by 1/√(1 - cost).

    Guarantees:
        The count is part of the step's own Gaussian release: an example adds from -1/2 to 1/2 to it (0.495 if its norm
        is below C, falling to -0.495 over the width from 0.95 C to 1.05 C), and the noise is such that gradient and
        count together have the stated noise multiplier. So the budget is exactly that of any other style, and the path
        of the norm, which follows from noisy counts, may be shown.

    >>> from hoarfrost.info import RunInfo
    >>> style, info = Adaptive(start=1.0), RunInfo({"weight": (3, 2)}, expected_batch=100)
    >>> style.follow(49.5, info)  # all of 100 are shorter
    >>> round(style.norm, 4)
    0.9048
    """

    quantile: Probability = 0.5
    start: Positive = 1.0
    rate: Positive = 0.2
    style: Literal["local", "global"] = "local"
    cost: Probability = 0.01

    def __post_init__(self) -> None:
        validate.probability(quantile=self.quantile, cost=self.cost)
        validate.positive(start=self.start, rate=self.rate)
        validate.finite(start=self.start, rate=self.rate)
        if self.style not in tuple(STYLES):
            raise InvalidValue(f"style must be one of {', '.join(STYLES)}, got {self.style!r}")
        if not SMALLEST <= self.start <= LARGEST:
            raise InvalidValue(f"start must lie from {SMALLEST:g} to {LARGEST:g}, got {self.start}")
        self._set(self.start)

    def _set(self, norm: float) -> None:
        self.norm = norm  # of the coming step
        factors = STYLES[self.style](norm).piece().factors
        self._piece = Piece(norm, factors, lambda norms: _below(norms, norm), self.cost, alike=(Adaptive, self.style))

    def piece(self) -> Piece:
        return self._piece

    def follow(self, count: float, info: RunInfo) -> None:
        share = 0.5 + count * 0.5 / MOST / info.expected_batch
        # Noise may carry it beyond what a share can be. Cut on both sides of the quantile alike: cut to [0, 1], pure
        # noise would have a mean of 1/2, and the norm would run away from any quantile that is farther out.
        beyond = min(1.0, max(-1.0, share - self.quantile))
        factor = math.exp(min(50.0, max(-50.0, -self.rate * beyond)))  # 50: from one end of its range to the other
        self._set(min(LARGEST, max(SMALLEST, self.norm * factor)))

    def state(self) -> dict[str, Tensor]:
        return {"norm": torch.tensor(self.norm, dtype=torch.float64)}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        norm = float(state["norm"])
        if not SMALLEST <= norm <= LARGEST:
            raise InvalidValue("the norm of an adaptive clipping style is out of range")
        self._set(norm)

    def fresh(self) -> Adaptive:
        new = copy.copy(self)
        new._set(new.start)
        return new


def _below(norms: Tensor, norm: float) -> Tensor:
    """1/2 for norms below, -1/2 for those above, and a straight line between; a hundredth less, that is."""
    return ((norm - norms) * (MOST / (WIDTH * norm))).clamp(-MOST, MOST)
