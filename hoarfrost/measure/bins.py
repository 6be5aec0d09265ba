"""Examples in bins by confidence: how sure the model is in each bin, and how often it is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import shown

BinsOf = Literal["width", "mass"]
MOST_BINS = 1000
MOST_EXAMPLES = 2**53  # up to here every integer is a float, too
NO_MEANS: dict[str, float | None] = {"confidence": None, "accuracy": None}  # of no examples
ROUNDING = 1e-9  # of sums in float64; figures that differ by more were not computed from each other


@dataclass(frozen=True, kw_only=True)
class Bin:
    """The examples whose confidence lies in (low, high]; in the first bin, low = 0 is included.

    Args:
        low, high: the edges.
        count: how many examples there are.
        confidence: their mean confidence. None if there are none.
        accuracy: the share of them that is predicted right. None if there are none.

    >>> round(Bin(low=0.5, high=1.0, count=4, confidence=0.9, accuracy=0.75).gap, 2)
    0.15
    """

    low: float
    high: float
    count: int
    confidence: float | None
    accuracy: float | None

    def __post_init__(self) -> None:
        within(0, 1, low=self.low, high=self.high)
        if self.low > self.high:
            raise InvalidValue(f"a bin's low edge {self.low:g} must not be above its high edge {self.high:g}")
        within(0, MOST_EXAMPLES, count=self.count)
        validate.count(count=self.count)
        if self.count == 0:
            if self.confidence is not None or self.accuracy is not None:
                raise InvalidValue("confidence and accuracy of a bin without examples must be None")
            return
        within(0, 1, confidence=self.confidence, accuracy=self.accuracy)
        if not self.low - ROUNDING <= self.mean_confidence <= self.high + ROUNDING:
            raise InvalidValue(
                f"a bin's mean confidence must lie between its edges {self.low:g} and {self.high:g}, "
                f"got {self.mean_confidence:g}"
            )

    @property
    def mean_confidence(self) -> float:
        """The mean confidence; 0 if there are no examples, where it counts for nothing."""
        return self.confidence or 0.0

    @property
    def mean_accuracy(self) -> float:
        """The accuracy; 0 if there are no examples, where it counts for nothing."""
        return self.accuracy or 0.0

    @property
    def gap(self) -> float:
        """How far confidence and accuracy are apart: ECE is the mean over examples, MCE the maximum over bins."""
        return abs(self.mean_accuracy - self.mean_confidence)


def binned(confidence: Tensor, right: Tensor, bins: int, bins_of: BinsOf) -> tuple[Bin, ...]:
    """The bins of examples with these confidences [N], in float64. ``right`` [N] says which are predicted right."""
    edges = edges_of(confidence, bins, bins_of)
    # An example at an edge is in the bin below, as in the papers, whose bins are ((m - 1)/M, m/M].
    index = torch.bucketize(confidence.contiguous(), edges[1:-1])
    at = edges.tolist()
    found = []
    for number in range(bins):
        here = index == number
        count = int(here.sum())
        # Not index_add_: it adds one by one, and a million roundings can be seen. Sums of torch go by pairs.
        sure = torch.where(here, confidence, 0.0).sum().item()
        correct = int((here & right).sum())
        means = NO_MEANS if count == 0 else {"confidence": sure / count, "accuracy": correct / count}
        found.append(Bin(low=at[number], high=at[number + 1], count=count, **means))
    return tuple(found)


def edges_of(confidence: Tensor, bins: int, bins_of: BinsOf) -> Tensor:
    """The ``bins`` + 1 edges, from 0 to 1.

    >>> edges_of(torch.tensor([0.5, 0.9, 0.6, 0.8], dtype=torch.float64), 2, "mass").tolist()
    [0.0, 0.6, 1.0]
    """
    validate.whole(bins=bins)
    if bins > MOST_BINS:
        raise InvalidValue(f"bins must be at most {MOST_BINS}, got {shown(bins)}")
    check_bins_of(bins_of)
    numbers = torch.arange(bins + 1, device=confidence.device)
    if bins_of == "width":
        return numbers.double() / bins
    # At examples, so that equal confidences share a bin whatever their order. Bins may be empty for it.
    edges = confidence.sort().values[(len(confidence) - 1) * numbers // bins]
    edges[0], edges[-1] = 0.0, 1.0
    return edges


def check_bins_of(value: object) -> None:
    """Whether it is a known kind of bins."""
    if value not in get_args(BinsOf):
        raise InvalidValue(f"bins_of must be 'width' or 'mass', got {shown(value)}")


def within(low: float, high: float, /, **values: object) -> None:
    """Each value is a number from ``low`` to ``high``; from a file it may be anything, also an enormous integer."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidValue(f"{name} must be a number from {low:g} to {high:g}, got {shown(value)}")
