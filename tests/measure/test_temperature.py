"""One temperature for all logits: found where it is known, and never for the worse."""

from __future__ import annotations

import math

import pytest
import torch

from hoarfrost.errors import InvalidValue
from hoarfrost.measure import Temperature, ece, nll
from tests.measure.settings import CASES, drawn


@pytest.mark.parametrize("known", [0.2, 0.8, 1.0, 2.5, 30.0])
@pytest.mark.parametrize("classes", [2, 10])
def test_a_known_temperature_is_recovered(known: float, classes: int) -> None:
    logits, labels = drawn(20_000, classes)  # calibrated as they are: the labels are drawn from them
    found = Temperature.fit(logits * known, labels)
    assert found.value == pytest.approx(known, rel=0.03)
    assert ece(found(logits * known), labels) < 0.01


def test_it_is_the_minimum() -> None:
    logits, labels = drawn(500, 4, scale=4.0, seed=3)
    found = Temperature.fit(logits * 1.7, labels)
    least = nll(found(logits.double() * 1.7), labels)
    for factor in (0.99, 1.01):
        assert nll(Temperature(found.value * factor)(logits.double() * 1.7), labels) > least


def test_one_logit_for_two_classes() -> None:
    logits, labels = drawn(5000, 2)
    logit = 3 * (logits[:, 1] - logits[:, 0])
    two = torch.stack([torch.zeros_like(logit), logit], dim=1)
    assert Temperature.fit(logit, labels) == Temperature.fit(logit[:, None], labels) == Temperature.fit(two, labels)


@pytest.mark.parametrize("case", CASES)
def test_the_nll_on_its_own_data_never_gets_worse(case: str) -> None:
    logits, labels = CASES[case]()
    found = Temperature.fit(logits, labels)
    assert 1e-3 * 0.999 < found.value < 1e3 * 1.001
    assert nll(found(logits.double()), labels) <= nll(logits, labels)


def test_where_the_data_do_not_determine_it_it_ends_at_an_end() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert nll(Temperature.fit(logits, torch.tensor([0, 1]))(logits), torch.tensor([0, 1])) == 0
    assert Temperature.fit(logits, torch.tensor([1, 0])).value == pytest.approx(1000)
    assert Temperature.fit(torch.zeros(3, 2), torch.tensor([0, 1, 1])).value > 0


def test_logits_that_overflow_when_divided_do_no_harm() -> None:
    logits = torch.tensor([[1e306, 0.0], [0.0, 1e306], [0.0, 1e306]], dtype=torch.float64)
    found = Temperature.fit(logits, torch.tensor([0, 1, 0]))
    assert found.value == pytest.approx(1000)


def test_scaling_keeps_type_and_predictions() -> None:
    logits, _ = drawn(100, 5, dtype=torch.float16)
    scaled = Temperature(2.0)(logits)
    assert scaled.dtype == torch.float16
    assert torch.equal(scaled.argmax(dim=1), logits.argmax(dim=1))
    assert torch.equal(scaled, logits / 2)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan, True])
def test_a_temperature_is_a_positive_number(value: float) -> None:
    with pytest.raises(InvalidValue, match="value must be"):
        Temperature(value)


def test_it_is_fitted_to_what_can_be_measured_only() -> None:
    with pytest.raises(InvalidValue, match="logits have no examples"):
        Temperature.fit(torch.zeros(0, 2), torch.zeros(0, dtype=torch.long))
    with pytest.raises(InvalidValue, match="labels must lie from 0 to 1"):
        Temperature.fit(torch.zeros(1, 2), torch.tensor([2]))
