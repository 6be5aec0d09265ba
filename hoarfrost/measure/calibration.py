"""Calibration: whether a classifier that is sure to 80 % is right in 80 % of the cases."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.measure.bins import MOST_BINS, ROUNDING, Bin, BinsOf, binned, check_bins_of, within
from hoarfrost.measure.scores import brier_of, checked, checked_logits, nll_of
from hoarfrost.untrusted import shown

BINS = 15  # as in the papers


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a reliability diagram shows: examples in bins by confidence, and the scores beside it.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 1.0]])
    >>> found = Calibration.of(logits, torch.tensor([0, 1, 1, 1]))
    >>> found.examples, found.accuracy, round(found.confidence, 3), round(found.ece, 3), round(found.mce, 3)
    (4, 0.75, 0.843, 0.228, 0.269)
    >>> Calibration.from_dict(found.as_dict()) == found
    True

    Guarantees:
        None: figures on private data are released without noise. Compute them on data that are public, or held out
        with consent.
    """

    bins: tuple[Bin, ...]
    nll: float
    brier: float
    bins_of: BinsOf = "width"

    def __post_init__(self) -> None:
        within(0, sys.float_info.max, nll=self.nll)
        within(0, 2, brier=self.brier)
        check_bins_of(self.bins_of)
        if not 1 <= len(self.bins) <= MOST_BINS:
            raise InvalidValue(f"a calibration has 1 to {MOST_BINS} bins, got {len(self.bins)}")
        edges = [0, *(edge for each in self.bins for edge in (each.low, each.high)), 1]
        if edges[::2] != edges[1::2]:
            raise InvalidValue("the bins of a calibration must go from 0 to 1, each from where the one before ends")
        if self.examples == 0:
            raise InvalidValue("a calibration must have examples, got none in any bin")

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, bins: int = BINS, bins_of: BinsOf = "width") -> Calibration:
        """The calibration of the predicted class: the confidence is its probability, and it is right or not.

        Args:
            logits: [N, K]; for two classes also [N] or [N, 1], the second class's logit. On any device.
            labels: [N], integers from 0 to K - 1.
            bins: how many.
            bins_of: of the same ``"width"``, as in the papers, or of the same ``"mass"``: each with as many examples.
                Examples of the same confidence share a bin, so that some bins of the same mass may be empty.

        Of classes with the same logit the first is predicted. An example at the edge of two bins is in the lower one.
        """
        wide, target = checked(logits, labels)
        confidence, predicted = _confidence(wide)
        return cls(
            bins=binned(confidence, predicted == target, bins, bins_of),
            nll=nll_of(wide, target),
            brier=brier_of(wide, target),
            bins_of=bins_of,
        )

    @property
    def examples(self) -> int:
        """How many there are."""
        return sum(each.count for each in self.bins)

    @property
    def accuracy(self) -> float:
        """The share of examples that is predicted right."""
        return self._mean([each.mean_accuracy for each in self.bins])

    @property
    def confidence(self) -> float:
        """The mean confidence. Above the accuracy, the model is overconfident."""
        return self._mean([each.mean_confidence for each in self.bins])

    @property
    def ece(self) -> float:
        """The expected calibration error: the gaps of the bins, weighted by their shares of the examples."""
        return self._mean([each.gap for each in self.bins])

    @property
    def mce(self) -> float:
        """The maximum calibration error: the largest gap of a bin that is not empty."""
        return max(each.gap for each in self.bins)

    def as_dict(self) -> dict[str, Any]:
        """All figures and bins, as JSON can hold them."""
        return {
            "examples": self.examples,
            "accuracy": self.accuracy,
            "confidence": self.confidence,
            "nll": self.nll,
            "brier": self.brier,
            "ece": self.ece,
            "mce": self.mce,
            "bins_of": self.bins_of,
            "bins": [asdict(each) for each in self.bins],
        }

    @classmethod
    def from_dict(cls, facts: object) -> Calibration:
        """A calibration from what `as_dict` gave; anything else is refused, whoever wrote it.

        >>> Calibration.from_dict({"examples": 3})
        Traceback (most recent call last):
            ...
        hoarfrost.errors.InvalidValue: a calibration must have the keys examples, ..., got ['examples']
        """
        names = ("examples", "accuracy", "confidence", "nll", "brier", "ece", "mce", "bins_of", "bins")
        given = _with_keys("a calibration", facts, names)
        if not isinstance(given["bins"], list) or len(given["bins"]) > MOST_BINS:
            raise InvalidValue(f"bins must be a list of at most {MOST_BINS}, got {shown(given['bins'])}")
        bins = tuple(Bin(**_with_keys("a bin", each, tuple(f.name for f in fields(Bin)))) for each in given["bins"])
        found = cls(bins=bins, nll=given["nll"], brier=given["brier"], bins_of=given["bins_of"])
        for name in ("examples", "accuracy", "confidence", "ece", "mce"):
            computed = getattr(found, name)
            within(0, sys.float_info.max, **{name: given[name]})
            if abs(given[name] - computed) > ROUNDING:
                raise InvalidValue(f"{name} is stated as {shown(given[name])}, but the bins give {computed:g}")
        return found

    def _mean(self, of_bins: list[float]) -> float:
        counts = [each.count for each in self.bins]
        return math.fsum(count * value for count, value in zip(counts, of_bins, strict=True)) / sum(counts)


def ece(logits: Tensor, labels: Tensor, bins: int = BINS, bins_of: BinsOf = "width") -> float:
    """The expected calibration error: the sum over bins of share × |accuracy - confidence|. See `Calibration.of`.

    >>> round(ece(torch.tensor([[3.0, 0.0], [3.0, 0.0]]), torch.tensor([0, 1])), 4)
    0.4526
    """
    return Calibration.of(logits, labels, bins, bins_of).ece


def mce(logits: Tensor, labels: Tensor, bins: int = BINS, bins_of: BinsOf = "width") -> float:
    """The maximum calibration error: the largest |accuracy - confidence| of a bin with examples. See `Calibration.of`.

    >>> round(mce(torch.tensor([[3.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1])), 4)
    0.6225
    """
    return Calibration.of(logits, labels, bins, bins_of).mce


def confidence_histogram(logits: Tensor, bins: int = BINS, bins_of: BinsOf = "width") -> tuple[int, ...]:
    """How many examples there are in each bin of confidence; no labels are needed.

    >>> confidence_histogram(torch.tensor([[3.0, 0.0], [0.0, 5.0], [0.1, 0.0]]), bins=4)
    (0, 0, 1, 2)
    """
    confidence, _ = _confidence(checked_logits(logits))
    return tuple(each.count for each in binned(confidence, torch.ones_like(confidence).bool(), bins, bins_of))


def per_class_calibration(
    logits: Tensor, labels: Tensor, bins: int = BINS, bins_of: BinsOf = "width"
) -> tuple[Calibration, ...]:
    """For each class, its calibration against the rest: the confidence is the probability of that class.

    Every example counts for every class. In these figures "right" means that the label is the class: the accuracy of a
    bin is how often the class occurs there, and the mean confidence how often the model expects it. NLL and Brier score
    are those of a classifier with two classes, the rest and this one.

    >>> logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 2.0, 0.0]])
    >>> [round(each.ece, 3) for each in per_class_calibration(logits, torch.tensor([0, 1, 2]))]
    [0.142, 0.227, 0.227]
    """
    wide, target = checked(logits, labels)
    return tuple(_one_vs_rest(wide, target, number, bins, bins_of) for number in range(wide.shape[1]))


def _one_vs_rest(logits: Tensor, labels: Tensor, number: int, bins: int, bins_of: BinsOf) -> Calibration:
    rest = torch.cat([logits[:, :number], logits[:, number + 1 :]], dim=1).logsumexp(dim=1)
    two = torch.stack([rest, logits[:, number]], dim=1)
    right = labels == number
    return Calibration(
        bins=binned(logits.softmax(dim=1)[:, number], right, bins, bins_of),
        nll=nll_of(two, right.long()),
        brier=brier_of(two, right.long()),
        bins_of=bins_of,
    )


def _confidence(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Each example's confidence, and the class that it predicts. By logits: probabilities may be rounded to equal."""
    predicted = logits.argmax(dim=1)
    return logits.softmax(dim=1).gather(1, predicted[:, None]).squeeze(1), predicted


def _with_keys(what: str, facts: object, names: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(facts, Mapping) or set(facts) != set(names):
        got = shown([*facts] if isinstance(facts, Mapping) else facts)
        raise InvalidValue(f"{what} must have the keys {', '.join(names)}, got {got}")
    return facts
