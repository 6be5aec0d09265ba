import dataclasses
import json

import dp_accounting
import pytest

from hoarfrost.budget import Event, Gaussian, epsilon
from hoarfrost.errors import InvalidValue


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise_multiplier": -1.0},
        {"noise_multiplier": float("inf")},
        {"noise_multiplier": float("nan")},
        {"noise_multiplier": "1"},
        {"sample_rate": 0.0},
        {"sample_rate": 1.1},
        {"sample_rate": float("nan")},
        {"steps": -1},
        {"steps": 2.5},
        {"steps": 0.0},
        {"steps": True},
        {"steps": False},
    ],
)
def test_a_release_that_makes_no_sense_is_refused_by_the_name_of_what_is_wrong(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        Gaussian(**{"noise_multiplier": 1.0, **wrong})


def test_a_release_cannot_be_changed_after_the_fact():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Gaussian(noise_multiplier=1.0).steps = 5


def test_a_release_is_described_to_dp_accounting_as_it_is():
    one = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(1.5))
    described = Gaussian(noise_multiplier=1.5, sample_rate=0.02, steps=7).dp_event()
    assert described == dp_accounting.SelfComposedDpEvent(one, 7)
    assert isinstance(Gaussian(noise_multiplier=1.5, steps=0).dp_event(), dp_accounting.NoOpDpEvent)


def test_a_release_survives_json():
    event = Gaussian(noise_multiplier=1, sample_rate=0.1, steps=3)
    facts = json.loads(json.dumps(event.as_dict()))
    assert facts.pop("kind") == "gaussian"
    assert Gaussian(**facts) == event


class Pair:
    """A release of another room's making: two kinds of noise at once."""

    def dp_event(self):
        steps = [Gaussian(noise_multiplier=2.0, steps=3), Gaussian(noise_multiplier=3.0, sample_rate=0.1, steps=5)]
        return dp_accounting.ComposedDpEvent([step.dp_event() for step in steps])

    def as_dict(self):
        return {"kind": "pair"}


class Laplace(Pair):
    def dp_event(self):
        return dp_accounting.LaplaceDpEvent(2.0)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_other_releases_are_accounted_by_what_they_are_made_of(accountant):
    parts = [Gaussian(noise_multiplier=2.0, steps=3), Gaussian(noise_multiplier=3.0, sample_rate=0.1, steps=5)]
    assert isinstance(Pair(), Event)
    assert epsilon(Pair(), 1e-5, accountant) == epsilon(parts, 1e-5, accountant)


def test_a_mechanism_that_cannot_be_analysed_is_named():
    with pytest.raises(InvalidValue, match="Laplace"):
        epsilon(Laplace(), 1e-5)
    assert 0 < epsilon(Laplace(), 1e-5, "rdp") <= 0.51


@pytest.mark.parametrize("wrong", [3.0, None, [1.0], "gaussian"])
def test_what_is_no_release_is_refused(wrong):
    with pytest.raises(InvalidValue, match="events"):
        epsilon(wrong, 1e-5)
