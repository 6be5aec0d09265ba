"""A calibration is kept as JSON, and what somebody else has written there is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Bin, Calibration
from tests.measure.settings import CASES, drawn


@pytest.mark.parametrize("bins_of", ["width", "mass"])
@pytest.mark.parametrize("case", CASES)
def test_it_survives_json(case: str, bins_of: Any) -> None:
    found = Calibration.of(*CASES[case](), bins_of=bins_of)
    text = json.dumps(found.as_dict(), allow_nan=False)
    assert Calibration.from_dict(json.loads(text)) == found


def test_the_dictionary_has_every_figure_and_every_bin() -> None:
    found = Calibration.of(torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]), bins=2)
    facts = found.as_dict()
    bins = facts.pop("bins")
    names = ["examples", "accuracy", "confidence", "nll", "brier", "ece", "mce", "bins_of"]
    assert facts == {name: getattr(found, name) for name in names}
    assert bins == [
        {"low": 0.0, "high": 0.5, "count": 0, "confidence": None, "accuracy": None},
        {"low": 0.5, "high": 1.0, "count": 2, "confidence": found.confidence, "accuracy": 0.5},
    ]


def test_it_is_frozen() -> None:
    found = Calibration.of(*drawn(10, 3))
    with pytest.raises(FrozenInstanceError):
        found.nll = 0.0  # type: ignore[misc]


def test_bins_must_follow_each_other_from_0_to_1() -> None:
    found = Calibration.of(*drawn(10, 3), bins=3)
    for bins in (found.bins[:2], found.bins[1:], found.bins[::-1], found.bins[::2]):
        with pytest.raises(InvalidValue, match="must go from 0 to 1, each from where the one before ends"):
            replace(found, bins=bins)


Facts = dict[str, Any]


def _last_bin(**changes: object) -> Callable[[Facts], object]:
    return lambda facts: facts["bins"][-1].update(changes)


def _empty(facts: Facts) -> None:
    for each in facts["bins"]:
        each.update(count=0, confidence=None, accuracy=None)


HOSTILE: dict[str, tuple[Callable[[Facts], object], str]] = {
    "a key is missing": (lambda facts: facts.pop("ece"), "a calibration must have the keys"),
    "a key too many": (lambda facts: facts.update(more=1), "a calibration must have the keys"),
    "a bin's key is missing": (lambda facts: facts["bins"][0].pop("low"), "a bin must have the keys low, high, count"),
    "a bin's key too many": (_last_bin(more=1), "a bin must have the keys low, high, count"),
    "a bin is a number": (lambda facts: facts["bins"].append(3), "a bin must have the keys .*, got 3"),
    "no bins": (lambda facts: facts.update(bins=[]), "a calibration has 1 to 1000 bins, got 0"),
    "bins are text": (lambda facts: facts.update(bins="bins"), "bins must be a list of at most 1000, got 'bins'"),
    "a million bins": (lambda facts: facts.update(bins=[0] * 10**6), "bins must be a list of at most 1000"),
    "no examples": (_empty, "a calibration must have examples"),
    "nll is NaN": (lambda facts: facts.update(nll=float("nan")), "nll must be a number from 0"),
    "nll is infinite": (lambda facts: facts.update(nll=float("inf")), "nll must be a number from 0"),
    "nll is negative": (lambda facts: facts.update(nll=-0.1), "nll must be a number from 0"),
    "nll is text": (lambda facts: facts.update(nll="0.1"), "nll must be a number from 0 .*, got '0.1'"),
    "nll is nothing": (lambda facts: facts.update(nll=None), "nll must be a number from 0 .*, got None"),
    "nll is enormous": (lambda facts: facts.update(nll=10**4000), "nll must be a number from 0"),
    "brier is above 2": (lambda facts: facts.update(brier=2.1), "brier must be a number from 0 to 2, got 2.1"),
    "brier is true": (lambda facts: facts.update(brier=True), "brier must be a number from 0 to 2, got True"),
    "bins of nothing": (lambda facts: facts.update(bins_of=["width"]), "bins_of must be 'width' or 'mass'"),
    "other ece": (lambda facts: facts.update(ece=0.0), "ece is stated as 0.0, but the bins give"),
    "ece is a list": (lambda facts: facts.update(ece=[0.0]), "ece must be a number"),
    "other mce": (lambda facts: facts.update(mce=0.99), "mce is stated as 0.99, but the bins give"),
    "other accuracy": (lambda facts: facts.update(accuracy=1), "accuracy is stated as 1, but the bins give"),
    "other confidence": (lambda facts: facts.update(confidence=1), "confidence is stated as 1, but the bins give"),
    "other examples": (lambda facts: facts.update(examples=99), "examples is stated as 99, but the bins give 40"),
    "enormous examples": (lambda facts: facts.update(examples=10**4000), "examples must be a number"),
    "many examples": (lambda facts: facts.update(examples=10**300), "examples is stated as"),
    "count is negative": (_last_bin(count=-1), "count must be a number from 0 to"),
    "count is enormous": (_last_bin(count=10**4000), "count must be a number from 0 to"),
    "count is a fraction": (_last_bin(count=1.5), "count must be a whole number"),
    "count is text": (_last_bin(count="1"), "count must be a number from 0 to .*, got '1'"),
    "edges the wrong way": (_last_bin(low=1.0, high=0.9), "a bin's low edge 1 must not be above its high edge 0.9"),
    "an edge beyond 1": (_last_bin(high=1.5), "high must be a number from 0 to 1, got 1.5"),
    "an edge is nothing": (_last_bin(low=None), "low must be a number from 0 to 1, got None"),
    "a gap between bins": (_last_bin(low=0.95), "each from where the one before ends"),
    "accuracy above 1": (_last_bin(accuracy=1.01), "accuracy must be a number from 0 to 1, got 1.01"),
    "accuracy is missing": (_last_bin(accuracy=None), "accuracy must be a number from 0 to 1, got None"),
    "confidence outside of its bin": (_last_bin(confidence=0.1), "mean confidence must lie between its edges"),
    "accuracy of nothing": (_last_bin(count=0, confidence=None), "of a bin without examples must be None"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_a_calibration_is_refused(case: str) -> None:
    change, message = HOSTILE[case]
    facts = Calibration.of(*drawn(40, 3)).as_dict()
    assert Calibration.from_dict(facts).bins[-1].count > 0
    change(facts)
    with pytest.raises(InvalidValue, match=message) as refusal:
        Calibration.from_dict(facts)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("facts", [None, 3, "text", [], [1], {}, {1: 2}])
def test_other_json_is_refused(facts: object) -> None:
    with pytest.raises(InvalidValue, match="a calibration must have the keys"):
        Calibration.from_dict(facts)


def test_a_gap_has_no_sign() -> None:
    place = {"low": 0.0, "high": 1.0, "count": 4}
    over, under = Bin(**place, confidence=0.9, accuracy=0.5), Bin(**place, confidence=0.1, accuracy=0.5)  # type: ignore[arg-type]
    assert (over.gap, under.gap) == (0.4, 0.4)
