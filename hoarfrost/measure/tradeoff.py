"""What (ε, δ) allows an attack on membership at most: a curve above every ROC curve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hoarfrost import validate
from hoarfrost.errors import InvalidValue

EPSILONS = (0.0, *np.geomspace(1e-3, 100, 120).tolist())
"""At which a privacy profile is asked for its deltas, so that the curve is as good as smooth."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Tradeoff:
    """The bound that one pair (ε, δ) implies, or many pairs that hold at once (a privacy profile).

    At a false positive rate α no attack has a true positive rate above min(e^ε α + δ, 1 − e^-ε (1 − δ − α)): the
    second is the first with members and non-members exchanged. Of several pairs the lowest bound counts.

    Args:
        pairs: each (ε, δ), with δ from 0 to 1. None at all bound nothing.

    Guarantees:
        If training is (ε, δ)-private for adding or removing one example, the bound holds on average over trainings for
        any attack on that training, also one that knows all other examples, where members and non-members are alike but
        for having been trained on.

    >>> bound = Tradeoff([(1.0, 1e-5)])
    >>> round(float(bound.tpr(0.01)), 4), round(bound.auc, 3)
    (0.0272, 0.731)
    """

    pairs: tuple[tuple[float, float], ...]

    def __init__(self, pairs: Iterable[tuple[float, float]] = ()) -> None:
        found = tuple((float(epsilon), float(delta)) for epsilon, delta in pairs)
        for epsilon, delta in found:
            validate.not_negative(epsilon=epsilon)
            if not 0 <= delta <= 1:
                raise InvalidValue(f"delta must lie from 0 to 1, got {delta}")
        object.__setattr__(self, "pairs", found)

    def tpr(self, fpr: ArrayLike) -> Floats:
        """The largest true positive rate at each of these false positive rates.

        >>> Tradeoff().tpr([0.0, 0.5]).tolist()
        [1.0, 1.0]
        """
        alpha = np.asarray(fpr, dtype=np.float64)
        if not ((alpha >= 0) & (alpha <= 1)).all():
            raise InvalidValue("a false positive rate must lie from 0 to 1")
        least = np.ones_like(alpha)
        for epsilon, delta in self.pairs:
            with np.errstate(over="ignore", invalid="ignore"):
                # Infinity times 0 is NaN, where nothing is bounded: fmin leaves it out.
                least = np.fmin(least, np.exp(epsilon) * alpha + delta)
            least = np.fmin(least, 1 - np.exp(-epsilon) * (1 - delta - alpha))
        return least

    @cached_property
    def auc(self) -> float:
        """The largest area under a ROC curve."""
        near = np.geomspace(1e-9, 0.5, 4000)
        edges = np.concatenate([[0], near, (1 - near)[-2::-1], [1]])
        # A concave curve lies above its mean at the middle of an interval: the sum is never too small.
        middles = self.tpr((edges[1:] + edges[:-1]) / 2)
        return min(1.0, float(np.diff(edges) @ middles))

    @property
    def bounds(self) -> bool:
        """Whether anything is excluded at all."""
        return self.auc < 1 - 1e-9
