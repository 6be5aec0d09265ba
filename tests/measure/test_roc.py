"""ROC, its area and its intervals, against the slow versions: also ties, perfect separation and single examples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Interval, Roc, Tradeoff
from tests.measure import slow


def normal(count: int, mean: float, seed: int) -> Tensor:
    return mean + torch.randn(count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CASES: dict[str, tuple[Tensor, Tensor]] = {
    "overlapping": (normal(40, 0.7, 1), normal(31, 0.0, 2)),
    "alike": (normal(25, 0.0, 3), normal(25, 0.0, 4)),
    "against the attack": (normal(12, -2.0, 5), normal(17, 0.0, 6)),
    "many ties": (normal(50, 0.5, 7).round(), normal(45, 0.0, 8).round()),
    "two values": (torch.tensor([1.0, 1, 0, 1]), torch.tensor([0.0, 0, 1, 0, 0])),
    "separable": (torch.tensor([5.0, 6, 7]), torch.tensor([1.0, 2, 3, 4])),
    "separable, the wrong way": (torch.tensor([1.0, 2]), torch.tensor([3.0, 4, 5])),
    "identical": (torch.zeros(6), torch.zeros(5)),
    "one member": (torch.tensor([0.5]), normal(20, 0.0, 9)),
    "one non-member": (normal(20, 0.0, 10), torch.tensor([0.5])),
    "one of each": (torch.tensor([1.0]), torch.tensor([0.0])),
    "one of each, tied": (torch.tensor([1.0]), torch.tensor([1.0])),
    "infinite": (torch.tensor([math.inf, 1, 2]), torch.tensor([-math.inf, -math.inf, 1.5])),
    "huge": (torch.tensor([1e300, 2e300]).double(), torch.tensor([-1e300, 1.5e300]).double()),
    "nearly equal": (torch.tensor([1 + 1e-15, 1.0]).double(), torch.tensor([1.0, 1.0]).double()),
    "float32": (normal(9, 1.0, 11).float(), normal(8, 0.0, 12).float()),
    "with a gradient": (normal(5, 1.0, 13).requires_grad_(), normal(6, 0.0, 14)),
}


def lists(case: str) -> tuple[list[float], list[float]]:
    members, others = CASES[case]
    return members.tolist(), others.tolist()


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_slow_one(case: str) -> None:
    roc = Roc.of(*CASES[case])
    assert roc.auc.value == pytest.approx(slow.auc(*lists(case)), abs=1e-12)
    assert list(zip(*(each.tolist() for each in roc.curve), strict=True)) == slow.roc(*lists(case))
    for fpr in (0.0, 0.001, 0.01, 0.2, 0.5, 0.99):
        point = roc.at(fpr)
        assert point.tpr.value == pytest.approx(slow.tpr_at(*lists(case), fpr), abs=1e-12)
        assert point.fpr.value <= fpr


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_is_delongs_where_it_has_one(case: str, confidence: float) -> None:
    members, others = lists(case)
    found = Roc.of(*CASES[case], confidence=confidence).auc
    value, few = slow.auc(members, others), min(len(members), len(others))
    variance = slow.delong_variance(members, others) if few > 1 else 0.0
    if 0 < value < 1 and variance > 0:
        reach = norm.ppf(0.5 + confidence / 2) * math.sqrt(variance) / (value * (1 - value))
        odds = math.log(value / (1 - value))
        expected = [1 / (1 + math.exp(-odds - side * reach)) for side in (-1, 1)]
        assert [found.low, found.high] == pytest.approx(expected, abs=1e-9)
    else:
        assert found.low < found.high  # a few examples never make anything certain
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_perfect_separation_of_a_few_is_no_certainty() -> None:
    separated = Roc.of(torch.ones(3), torch.zeros(40)).auc
    assert (separated.value, separated.high) == (1, 1)
    assert separated.low == pytest.approx(0.025 ** (1 / 3))  # three pairs in a row
    assert Roc.of(torch.ones(1), torch.zeros(1)).auc.low == pytest.approx(0.025)
    one = Roc.of(torch.tensor([0.5]), torch.arange(10) / 9).auc  # one draw says nothing about others
    assert (one.value, one.low, one.high) == (0.5, 0, 1)
    same = Roc.of(torch.zeros(10), torch.zeros(10)).auc
    assert (same.low, same.high) == pytest.approx((0.187, 0.813), abs=1e-3)


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_the_intervals_hold_as_often_as_they_say(shift: float) -> None:
    """Of 600 draws some 95 % hold the true value. Taking the threshold from the non-members does no harm."""
    truth, rate, inside = norm.cdf(shift / math.sqrt(2)), 0.1, np.zeros(2)
    for seed in range(600):
        others = normal(60, 0.0, 20_000 + seed)
        roc = Roc.of(normal(60, shift, 10_000 + seed), others)
        inside[0] += roc.auc.low <= truth <= roc.auc.high
        point = roc.at(rate)
        assert point.fpr.value == rate  # six non-members, all that are above the seventh largest
        inside[1] += norm.sf(sorted(others.tolist())[-7]) <= point.fpr.high
    share = inside / 600
    assert 0.92 < share[0] < 0.98
    assert share[1] > 0.95  # one-sided at 97.5 %


def test_counts_have_exact_intervals() -> None:
    assert Interval.of_count(0, 10).low == 0
    assert Interval.of_count(10, 10).high == 1
    assert Interval.of_count(0, 1000).high == pytest.approx(1 - 0.025 ** (1 / 1000))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (torch.tensor([]), "there are no members"),
        (torch.tensor([1.0, math.nan]), "scores of members must not be NaN: the model has diverged"),
        (torch.ones(2, 2), r"got the shape \[2, 2\]"),
        ([1.0], "got list"),
        (torch.ones(2, dtype=torch.complex64), "must be a tensor of scores"),
    ],
)
def test_what_are_no_scores_is_refused(members: Tensor, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        Roc.of(members, torch.zeros(3))
    if isinstance(members, Tensor):
        with pytest.raises(InvalidValue, match=message.replace("members", "non_members")):
            Roc.of(torch.zeros(3), members)


PAIRS: dict[str, list[tuple[float, float]]] = {
    "pure": [(1.0, 0.0)],
    "with delta": [(2.0, 1e-5)],
    "large delta": [(0.5, 0.3)],
    "nothing leaks": [(0.0, 0.0)],
    "only delta": [(0.0, 0.2)],
    "several": [(0.0, 0.25), (0.5, 0.1), (1.0, 0.03), (2.0, 1e-3)],
    "nothing said": [(3.0, 1.0)],
    "huge": [(200.0, 1e-5)],
    "no pair": [],
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_bound_is_the_slow_one(name: str) -> None:
    bound = Tradeoff(PAIRS[name])
    at = [0.0, 1e-6, 0.001, 0.01, 0.1, 0.2689, 0.5, 0.8, 0.999, 1.0]
    assert bound.tpr(at).tolist() == pytest.approx([slow.most_tpr(PAIRS[name], fpr) for fpr in at], abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
def test_its_area_is_never_too_small(name: str) -> None:
    """A fine sum of the curve at the left ends is below the area, since the curve grows."""
    bound = Tradeoff(PAIRS[name])
    steps = 20_000
    below = sum(slow.most_tpr(PAIRS[name], i / steps) for i in range(steps)) / steps
    assert below <= bound.auc <= below + 2 / steps


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.5, 0.3), (1.0, 0.0), (2.0, 1e-5), (8.0, 1e-3)])
def test_the_area_of_one_pair_has_a_closed_form(epsilon: float, delta: float) -> None:
    found = Tradeoff([(epsilon, delta)]).auc
    assert found == pytest.approx(1 - (1 - delta) ** 2 / (1 + math.exp(epsilon)), abs=1e-5)


def test_an_infinite_epsilon_bounds_nothing() -> None:
    bound = Tradeoff([(math.inf, 0.0)])
    assert bound.tpr([0.0, 0.5]).tolist() == [1.0, 1.0]
    assert not bound.bounds
    assert not Tradeoff().bounds
    assert Tradeoff([(20.0, 1e-5)]).bounds


@pytest.mark.parametrize("pair", [(-1.0, 0.1), (1.0, -0.1), (1.0, 1.1), (math.nan, 0.1), (1.0, math.nan)])
def test_what_is_no_guarantee_is_refused(pair: tuple[float, float]) -> None:
    with pytest.raises(InvalidValue):
        Tradeoff([pair])
    with pytest.raises(InvalidValue, match="from 0 to 1"):
        Tradeoff().tpr([1.5])
