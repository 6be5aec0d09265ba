"""How well scores tell members of the training set from others: ROC, its area, and intervals for both."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import binomtest, norm, rankdata
from torch import Tensor

from hoarfrost import validate
from hoarfrost.errors import InvalidValue, MissingExtra

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A share, and the limits between which it lies with the confidence that was asked for."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @classmethod
    def of_count(cls, count: int, total: int, confidence: float = 0.95) -> Interval:
        """So many of a total, with the interval of Clopper and Pearson.

        >>> print(Interval.of_count(5, 10))
        0.500 [0.187, 0.813]
        """
        limits = binomtest(count, total).proportion_ci(confidence, method="exact")
        return cls(count / total, float(limits.low), float(limits.high))


@dataclass(frozen=True)
class RocPoint:
    """One threshold: of the non-members at most a share is above it, and of the members a share that is measured.

    ``fpr`` and ``tpr`` are what was found, with exact intervals. That of the false positive rate holds although the
    threshold was taken from the non-members themselves, whose order statistics have this distribution.
    """

    fpr: Interval
    tpr: Interval


@dataclass(frozen=True, eq=False)
class Roc:
    """Scores of members and of non-members: larger means that an attack takes the example for a member.

    Args:
        members: the scores of examples that were trained on [m]; infinite ones are allowed, NaN is not.
        non_members: of examples that were not [n].
        confidence: of the intervals.

    >>> import torch
    >>> roc = Roc.of(torch.tensor([0.9, 0.8, 0.4]), torch.tensor([0.5, 0.3, 0.1]))
    >>> round(roc.auc.value, 3)
    0.889
    """

    members: Floats
    non_members: Floats
    confidence: float = 0.95

    @classmethod
    def of(cls, members: Tensor, non_members: Tensor, confidence: float = 0.95) -> Roc:
        """Checks the scores."""
        validate.probability(confidence=confidence)
        found = _scores("members", members), _scores("non_members", non_members)
        return cls(*found, confidence)

    @cached_property
    def auc(self) -> Interval:
        """The area under the ROC curve: how often a member has a larger score than a non-member; ties count half.

        The interval is DeLong's, on the logit scale. Where it has none (scores that separate perfectly, or are all
        equal, or a single one) the interval is that of as many pairs of a member and a non-member as can be made
        without using an example twice: wide, but valid.
        """
        m, n = len(self.members), len(self.non_members)
        above, not_below = _placements(self.members, self.non_members)
        value = float(above.mean())
        if 0 < value < 1 and m > 1 and n > 1:
            deviation = math.sqrt(above.var(ddof=1) / m + not_below.var(ddof=1) / n)
            if deviation > 0:
                reach = norm.isf((1 - self.confidence) / 2) * deviation / (value * (1 - value))
                return Interval(value, *(float(expit(logit(value) + side * reach)) for side in (-1, 1)))
        pairs = min(m, n)
        low = Interval.of_count(math.floor(value * pairs), pairs, self.confidence).low
        high = Interval.of_count(math.ceil(value * pairs), pairs, self.confidence).high
        return Interval(value, low, high)

    def at(self, fpr: float) -> RocPoint:
        """The threshold with the largest true positive rate at which the false positive rate is at most this.

        >>> import torch
        >>> print(Roc.of(torch.tensor([3.0, 2.0, 0.0]), torch.tensor([1.0, 0.0])).at(0.001).tpr)
        0.667 [0.094, 0.992]
        """
        validate.share(fpr=fpr)
        m, n = len(self.members), len(self.non_members)
        false, true = self.curve
        place = int(np.nonzero(false <= fpr)[0].max())
        return RocPoint(
            Interval.of_count(round(false[place] * n), n, self.confidence),
            Interval.of_count(round(true[place] * m), m, self.confidence),
        )

    @cached_property
    def curve(self) -> tuple[Floats, Floats]:
        """False and true positive rates at all thresholds, from (0, 0) to (1, 1)."""
        try:
            from sklearn.metrics import roc_curve
        except ImportError as error:
            raise MissingExtra(
                "attacks on membership need scikit-learn, which is not installed: pip install 'hoarfrost[data]'"
            ) from error
        # Ranks in the place of scores: the same curve, also where scores are infinite.
        ranks = rankdata(np.concatenate([self.members, self.non_members]))
        member = np.repeat([1, 0], [len(self.members), len(self.non_members)])
        false, true, _ = roc_curve(member, ranks, drop_intermediate=False)
        return false, true


def _placements(members: Floats, non_members: Floats) -> tuple[Floats, Floats]:
    """For each member the share of non-members below it, for each non-member that of members above it."""
    m, n = len(members), len(non_members)
    together = rankdata(np.concatenate([members, non_members]))  # ties share the mean of their ranks
    above = (together[:m] - rankdata(members)) / n
    return above, 1 - (together[m:] - rankdata(non_members)) / m


def _scores(name: str, scores: Tensor) -> Floats:
    if not isinstance(scores, Tensor) or scores.ndim != 1 or scores.is_complex():
        got = f"the shape {list(scores.shape)}" if isinstance(scores, Tensor) else type(scores).__name__
        raise InvalidValue(f"{name} must be a tensor of scores, one for each example, got {got}")
    if len(scores) == 0:
        raise InvalidValue(f"there are no {name}: an attack is measured on at least one member and one non-member")
    if scores.isnan().any():
        raise InvalidValue(f"scores of {name} must not be NaN: the model has diverged, or overflowed")
    return scores.detach().double().cpu().numpy()
