"""What an attack on membership found, beside what (ε, δ) allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.measure.roc import Interval, Roc
from hoarfrost.measure.tradeoff import Tradeoff

RATES = (0.001, 0.01)
"""The false positive rates at which the true positive rate is told."""


@dataclass(frozen=True, eq=False)
class Membership:
    """The result of an attack: its ROC over all examples and per class, and the bound of the training that it is about.

    A lower bound for the leak, and no more: another attack may find what this one does not.

    Args:
        roc: over all examples.
        classes: the ROC of each class that has members and non-members.
        bound: what the training's privacy allows at most; by default nothing is claimed.
        claim: the (ε, δ) that the training states.

    >>> members, others = torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.0, -1.0, 2.5])
    >>> found = Membership.of(members, others, bound=Tradeoff([(1.0, 1e-5)]))
    >>> round(found.auc.value, 3), found.red_flags
    (0.778, ())
    """

    roc: Roc
    classes: Mapping[int, Roc] = field(default_factory=dict)
    bound: Tradeoff = field(default_factory=Tradeoff)
    claim: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        members: Tensor,
        non_members: Tensor,
        labels: tuple[Tensor, Tensor] | None = None,
        *,
        bound: Tradeoff | None = None,
        claim: tuple[float, float] | None = None,
        confidence: float = 0.95,
    ) -> Membership:
        """From scores.

        Args:
            members, non_members: scores [m] and [n]; larger means more like a member.
            labels: the classes of members and of non-members, for the figures of each class.
            confidence: of every interval.
        """
        roc = Roc.of(members, non_members, confidence)
        classes = dict(_by_class(members, non_members, labels, confidence))
        return cls(roc, classes, bound or Tradeoff(), claim)

    @property
    def auc(self) -> Interval:
        """The area under the ROC curve, with its interval."""
        return self.roc.auc

    @property
    def red_flags(self) -> tuple[str, ...]:
        """In words, where the attack does better than the bound allows beyond its interval; () if nowhere.

        Each of the three figures is judged by its own interval. A training that leaks exactly what it claims would be
        flagged by mistake in about one of eight attacks at 95 %; real ones leak less than their bound.
        """
        found = []
        if self.auc.low > self.bound.auc:
            found.append(f"AUC {self.auc}, where at most {self.bound.auc:.3f} is possible")
        for rate in RATES:
            point = self.roc.at(rate)
            most = float(self.bound.tpr(point.fpr.high))
            if point.tpr.low > most:
                found.append(
                    f"TPR {point.tpr} at FPR {point.fpr.value:.4f}, where at most {most:.3f} is possible even if the "
                    f"FPR is really {point.fpr.high:.4f}"
                )
        return tuple(found)

    def row(self) -> dict[str, object]:
        """The figures over all examples, with the names that a table gives them."""
        return _row(self.roc) | {
            "auc_bound": self.bound.auc,
            **{f"tpr_bound_at_{rate:g}": float(self.bound.tpr(rate)) for rate in RATES},
        }

    def class_rows(self) -> dict[int, dict[str, object]]:
        """The same for each class; the bound is that of all examples."""
        return {number: _row(roc) for number, roc in self.classes.items()}


def _row(roc: Roc) -> dict[str, object]:
    found: dict[str, object] = {"members": len(roc.members), "non_members": len(roc.non_members)}
    found |= {"auc": roc.auc.value, "auc_low": roc.auc.low, "auc_high": roc.auc.high}
    for rate in RATES:
        point = roc.at(rate)
        name = f"at_{rate:g}"
        found |= {f"tpr_{name}": point.tpr.value, f"tpr_low_{name}": point.tpr.low, f"tpr_high_{name}": point.tpr.high}
        found |= {f"fpr_{name}": point.fpr.value}
    return found


def _by_class(
    members: Tensor, non_members: Tensor, labels: tuple[Tensor, Tensor] | None, confidence: float
) -> Iterator[tuple[int, Roc]]:
    if labels is None:
        return
    for name, scores, classes in zip(("members", "non_members"), (members, non_members), labels, strict=True):
        if classes.shape != scores.shape or classes.is_floating_point():
            raise InvalidValue(f"labels of {name} must be integers, one for each score")
    inside, outside = (each.to(torch.int64).cpu() for each in labels)
    for number in sorted(set(inside.tolist()) & set(outside.tolist())):
        ours, others = members.cpu()[inside == number], non_members.cpu()[outside == number]
        yield number, Roc.of(ours, others, confidence)
