"""Every figure equals its slow version, and what torchmetrics and scikit-learn make of the same logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor
from torchmetrics import CalibrationError
from torchmetrics.classification import BinaryCalibrationError, MulticlassCalibrationError

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import (
    BinsOf,
    Calibration,
    brier,
    confidence_histogram,
    ece,
    mce,
    nll,
    per_class_calibration,
)
from tests.measure import slow
from tests.measure.settings import CASES, drawn

BINS = (1, 2, 10, 15, 100)


def plain(logits: Tensor, labels: Tensor) -> tuple[list[list[float]], list[int]]:
    return logits.double().tolist(), labels.tolist()


def edges(pairs: list[tuple[float, bool]], bins: int, bins_of: BinsOf) -> list[float]:
    return slow.equal_width(bins) if bins_of == "width" else slow.equal_mass(pairs, bins)


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-12, abs=1e-14)


def agrees(found: Calibration, pairs: list[tuple[float, bool]], bins: int, bins_of: BinsOf) -> None:
    at = edges(pairs, bins, bins_of)
    assert [each.low for each in found.bins] == pytest.approx(at[:-1], rel=1e-14)
    assert [each.high for each in found.bins] == pytest.approx(at[1:], rel=1e-14)
    for each, members in zip(found.bins, slow.binned(pairs, at), strict=True):
        assert each.count == len(members)
        if not members:
            assert (each.confidence, each.accuracy) == (None, None)
            continue
        assert each.confidence == near(sum(confidence for confidence, _ in members) / len(members))
        assert each.accuracy == near(sum(right for _, right in members) / len(members))
    assert found.examples == len(pairs)
    assert found.confidence == near(sum(confidence for confidence, _ in pairs) / len(pairs))
    assert found.accuracy == near(sum(right for _, right in pairs) / len(pairs))
    assert found.ece == near(slow.ece(pairs, at))
    assert found.mce == near(slow.mce(pairs, at))


@pytest.mark.parametrize("bins_of", ["width", "mass"])
@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("case", CASES)
def test_the_figures_are_those_of_the_slow_version(case: str, bins: int, bins_of: BinsOf) -> None:
    logits, labels = CASES[case]()
    rows, targets = plain(logits, labels)
    found = Calibration.of(logits, labels, bins, bins_of)
    agrees(found, slow.confident(rows, targets), bins, bins_of)
    assert found.nll == nll(logits, labels) == near(slow.nll(rows, targets))
    assert found.brier == brier(logits, labels) == near(slow.brier(rows, targets))
    assert found.ece == ece(logits, labels, bins, bins_of)
    assert found.mce == mce(logits, labels, bins, bins_of)
    assert tuple(each.count for each in found.bins) == confidence_histogram(logits, bins, bins_of)


@pytest.mark.parametrize("bins_of", ["width", "mass"])
@pytest.mark.parametrize("case", CASES)
def test_each_class_is_calibrated_against_the_rest(case: str, bins_of: BinsOf) -> None:
    logits, labels = CASES[case]()
    rows, targets = plain(logits, labels)
    for number, found in enumerate(per_class_calibration(logits, labels, 10, bins_of)):
        pairs = slow.one_vs_rest(rows, targets, number)
        agrees(found, pairs, 10, bins_of)
        rest = [[p for other, p in enumerate(row) if other != number] for row in rows]
        two = [
            [max(r) + math.log(sum(math.exp(x - max(r)) for x in r)), row[number]]
            for r, row in zip(rest, rows, strict=True)
        ]
        label = [int(target == number) for target in targets]
        assert found.nll == near(slow.nll(two, label))
        assert found.brier == near(slow.brier(two, label))


def test_two_classes_need_one_logit() -> None:
    logits, labels = drawn(200, 2)
    logit = logits[:, 1] - logits[:, 0]
    whole = Calibration.of(torch.stack([torch.zeros_like(logit), logit], dim=1), labels)
    assert Calibration.of(logit, labels) == Calibration.of(logit[:, None], labels) == whole
    assert nll(logit, labels) == pytest.approx(nll(logits, labels), rel=1e-5)
    assert brier(logit, labels.bool()) == pytest.approx(brier(logits, labels), rel=1e-5)
    assert len(per_class_calibration(logit, labels)) == 2


# At edges.


@pytest.mark.parametrize(
    ("logits", "bins", "expected"),
    [
        ([[0.0, 0.0]], 2, (1, 0)),  # 1/2 is in (0, 1/2]
        ([[0.0, 0.0]], 10, (0, 0, 0, 0, 1, 0, 0, 0, 0, 0)),
        ([[0.0] * 5], 15, (0, 0, 1, *[0] * 12)),  # 1/5 = 3/15 is in (2/15, 3/15]
        ([[0.0] * 3], 15, (0, 0, 0, 0, 1, *[0] * 10)),
        ([[1000.0, 0.0]], 15, (*[0] * 14, 1)),  # exactly 1 is in the last bin
        ([[1000.0, 0.0], [3.0, 0.0]], 15, (*[0] * 14, 2)),  # together with what is below 1
    ],
)
def test_an_example_at_an_edge_is_in_the_bin_below(
    logits: list[list[float]], bins: int, expected: tuple[int, ...]
) -> None:
    assert confidence_histogram(torch.tensor(logits), bins) == expected


def test_a_probability_of_exactly_zero_is_in_the_first_bin() -> None:
    found = per_class_calibration(torch.tensor([[0.0, -2000.0], [0.0, 0.0]]), torch.tensor([0, 1]), 4)[1]
    assert [each.count for each in found.bins] == [1, 1, 0, 0]


def test_bins_of_the_same_mass_hold_as_many_examples_whatever_their_order() -> None:
    logits, labels = drawn(107, 3)
    found = Calibration.of(logits, labels, 10, "mass")
    assert {each.count for each in found.bins} == {10, 11}
    order = torch.randperm(107, generator=torch.Generator().manual_seed(1))
    shuffled = Calibration.of(logits[order], labels[order], 10, "mass")
    assert shuffled.ece == pytest.approx(found.ece, rel=1e-12)
    tied = torch.tensor([[1.0, 0.0]] * 30 + [[2.0, 0.0]])
    assert sorted(confidence_histogram(tied, 5, "mass"), reverse=True) == [30, 1, 0, 0, 0]


def test_the_first_of_equal_classes_is_predicted() -> None:
    assert Calibration.of(torch.zeros(1, 3), torch.tensor([0])).accuracy == 1
    assert Calibration.of(torch.zeros(1, 3), torch.tensor([1])).accuracy == 0


def test_sums_do_not_lose_small_numbers() -> None:
    """In float32 the sum of a million confidences is wrong in the sixth digit."""
    logits = torch.full((1_000_000,), 0.1)
    expected = 1 / (1 + math.exp(-float(logits[0])))
    assert Calibration.of(logits, torch.ones(1_000_000, dtype=torch.long)).confidence == pytest.approx(
        expected, rel=1e-12
    )


def test_nothing_is_moved_off_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("moved")

    for name in ("cpu", "numpy"):
        monkeypatch.setattr(Tensor, name, refuse)
    logits, labels = drawn(50, 3)
    Calibration.of(logits, labels, bins_of="mass")
    per_class_calibration(logits, labels)


# What others compute.


@pytest.mark.parametrize(("norm", "measure"), [("l1", ece), ("max", mce)])
@pytest.mark.parametrize("bins", [5, 15, 40])
@pytest.mark.parametrize("case", ["three classes", "five classes", "seven classes", "float64", "wrong, less sure"])
def test_torchmetrics_finds_the_same(
    case: str, bins: int, norm: str, measure: Callable[[Tensor, Tensor, int], float]
) -> None:
    logits, labels = CASES[case]()
    p, classes = logits.double().softmax(dim=1), logits.shape[1]
    theirs = MulticlassCalibrationError(num_classes=classes, n_bins=bins, norm=norm).set_dtype(torch.float64)
    again = CalibrationError(task="multiclass", num_classes=classes, n_bins=bins, norm=norm).set_dtype(torch.float64)
    keep = p.max(dim=1).values < 1  # see below
    expected = measure(logits[keep], labels[keep], bins)
    assert theirs(p[keep], labels[keep]).item() == pytest.approx(expected, abs=1e-6)
    assert again(p[keep], labels[keep]).item() == pytest.approx(expected, abs=1e-6)


def test_torchmetrics_puts_edges_elsewhere() -> None:
    """Its bins are [low, high), with one more for exactly 1. The papers' are (low, high]."""
    p = torch.tensor([[1.0, 0.0], [0.95, 0.05]], dtype=torch.float64)
    logits, labels = p.clamp_min(1e-300).log(), torch.tensor([1, 0])
    theirs = MulticlassCalibrationError(num_classes=2, n_bins=10, norm="l1").set_dtype(torch.float64)
    assert theirs(p, labels).item() == pytest.approx((1 + 0.05) / 2)
    assert ece(logits, labels, 10) == pytest.approx(abs(0.5 - 0.975))


@pytest.mark.parametrize("bins", [5, 15])
def test_torchmetrics_and_scikit_learn_find_the_same_for_the_second_of_two_classes(bins: int) -> None:
    # 1234 and the bins have no common divisor: otherwise scikit-learn's edges are examples, give or take a rounding.
    logits, labels = drawn(1235, 2, dtype=torch.float64)
    p = logits.softmax(dim=1)[:, 1]
    found = per_class_calibration(logits, labels, bins)[1]
    theirs = BinaryCalibrationError(n_bins=bins, norm="l1").set_dtype(torch.float64)
    assert theirs(p, labels).item() == pytest.approx(found.ece, abs=1e-6)
    assert found.nll == pytest.approx(log_loss(labels.numpy(), p.numpy()), rel=1e-9)
    assert found.brier == pytest.approx(2 * brier_score_loss(labels.numpy(), p.numpy()), rel=1e-12)
    for bins_of, strategy in (("width", "uniform"), ("mass", "quantile")):
        found = per_class_calibration(logits, labels, bins, bins_of)[1]  # type: ignore[arg-type]
        right, sure = calibration_curve(labels.numpy(), p.numpy(), n_bins=bins, strategy=strategy)
        full = [each for each in found.bins if each.count]
        assert np.array([each.accuracy for each in full]) == pytest.approx(right, rel=1e-12)
        assert np.array([each.confidence for each in full]) == pytest.approx(sure, rel=1e-12)


@pytest.mark.parametrize("case", ["three classes", "five classes", "seven classes", "float64"])
def test_scikit_learn_finds_the_same_nll(case: str) -> None:
    logits, labels = CASES[case]()
    p = logits.double().softmax(dim=1).numpy()
    expected = log_loss(labels.numpy(), p, labels=list(range(logits.shape[1])))
    assert nll(logits, labels) == pytest.approx(expected, rel=1e-9)


# What is refused.

TWO = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
REFUSED: dict[str, tuple[object, object, str]] = {
    "no examples": (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "logits have no examples"),
    "none of two classes": (torch.zeros(0), torch.zeros(0, dtype=torch.long), "logits have no examples"),
    "no classes": (torch.zeros(2, 0), torch.tensor([0, 0]), r"shape \[N, K\], or \[N\] for two classes, got \[2, 0\]"),
    "a number": (torch.tensor(1.0), torch.tensor([0]), r"got \[\]"),
    "three dimensions": (torch.zeros(2, 2, 2), torch.tensor([0, 1]), r"got \[2, 2, 2\]"),
    "NaN": (TWO * math.nan, torch.tensor([0, 1]), "logits must be finite, got NaN or infinity"),
    "one NaN": (torch.tensor([[1.0, 0.0], [math.nan, 0.0]]), torch.tensor([0, 1]), "logits must be finite"),
    "infinity": (torch.tensor([[1.0, -math.inf], [0.0, 1.0]]), torch.tensor([0, 1]), "logits must be finite"),
    "integer logits": (torch.tensor([[1, 0]]), torch.tensor([0]), "floating point numbers, got torch.int64"),
    "an array": (np.zeros((2, 2)), torch.tensor([0, 1]), "logits must be a tensor .*, got ndarray"),
    "a list of labels": (TWO, [0, 1], "labels must be a tensor of integers .*, got list"),
    "float labels": (TWO, torch.tensor([0.0, 1.0]), "labels must be a tensor of integers .*, got torch.float32"),
    "label too large": (TWO, torch.tensor([0, 2]), "labels must lie from 0 to 1, got 0 to 2"),
    "label negative": (TWO, torch.tensor([-100, 1]), "labels must lie from 0 to 1, got -100 to 1"),
    "label of two classes": (TWO[:, 0], torch.tensor([0, 2]), "labels must lie from 0 to 1, got 0 to 2"),
    "too few labels": (TWO, torch.tensor([0]), r"labels must have the shape \[2\], .* got \[1\]"),
    "one-hot labels": (TWO, torch.tensor([[1, 0], [0, 1]]), r"labels must have the shape \[2\], .* got \[2, 2\]"),
}  # fmt: skip


@pytest.mark.parametrize("measure", [nll, brier, ece, mce, Calibration.of, per_class_calibration])
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_refused_by_name(case: str, measure: Callable[..., object]) -> None:
    logits, labels, message = REFUSED[case]
    with pytest.raises(InvalidValue, match=message):
        measure(logits, labels)


@pytest.mark.parametrize("case", ["no examples", "NaN", "infinity", "three dimensions"])
def test_a_histogram_refuses_the_same_logits(case: str) -> None:
    logits, _, message = REFUSED[case]
    with pytest.raises(InvalidValue, match=message):
        confidence_histogram(logits)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 0}, "bins must be a whole number, 1 or above, got 0"),
        ({"bins": 1.5}, "bins must be a whole number"),
        ({"bins": True}, "bins must be a whole number"),
        ({"bins": 10**9}, "bins must be at most 1000, got 1000000000"),
        ({"bins_of": "depth"}, "bins_of must be 'width' or 'mass', got 'depth'"),
    ],
)
def test_bins_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    for measure in (ece, mce, Calibration.of, per_class_calibration):
        with pytest.raises(InvalidValue, match=message):
            measure(TWO, torch.tensor([0, 1]), **options)  # type: ignore[operator]
    with pytest.raises(InvalidValue, match=message):
        confidence_histogram(TWO, **options)  # type: ignore[arg-type]


def test_an_nll_beyond_all_numbers_is_refused_where_it_would_be_kept() -> None:
    logits = torch.tensor([[1e308, -1e308]], dtype=torch.float64)
    assert nll(logits, torch.tensor([1])) == math.inf
    with pytest.raises(InvalidValue, match=r"nll must be a number from 0 to .*, got inf"):
        Calibration.of(logits, torch.tensor([1]))
