"""δ(ε): against the closed formula, against `epsilon`, and at its ends."""

import math

import pytest
from scipy.stats import norm

from hoarfrost.budget import Gaussian, Unprotected, epsilon, profile
from hoarfrost.errors import InvalidValue
from tests.support.exact_epsilon import gaussian_epsilon, sampled_epsilon

EPSILONS = [0.0, 0.1, 0.5, 1.0, 2.0, 4.0]


def gaussian_delta(sigma: float, at: float) -> float:
    """The Gaussian mechanism's exact delta: Φ(1/(2σ) - εσ) - e^ε Φ(-1/(2σ) - εσ)."""
    a, b = 1 / (2 * sigma), at * sigma
    return float(norm.cdf(a - b) - math.exp(at + norm.logcdf(-a - b)))


@pytest.mark.parametrize(("sigma", "steps"), [(1.0, 1), (0.7, 1), (3.0, 4), (20.0, 100)])
def test_on_all_examples_it_is_the_closed_formula(sigma: float, steps: int) -> None:
    found = profile(Gaussian(noise_multiplier=sigma, steps=steps), EPSILONS)
    for at, delta in zip(EPSILONS, found, strict=True):
        exact = gaussian_delta(sigma / math.sqrt(steps), at)
        assert exact <= delta <= 1.001 * exact + 1e-8


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.54, 0.02, 2000), (1.3, 0.005, 12000), (0.8, 0.1, 50)])
def test_of_sampled_steps_it_is_the_integral(sigma: float, rate: float, steps: int) -> None:
    found = profile(Gaussian(noise_multiplier=sigma, sample_rate=rate, steps=steps), EPSILONS[2:])
    for at, delta in zip(EPSILONS[2:], found, strict=True):
        if delta > 1e-7:
            assert sampled_epsilon(sigma, rate, steps, delta) == pytest.approx(at, rel=2e-3)
            assert sampled_epsilon(sigma, rate, steps, delta) <= at


def test_several_releases_are_composed() -> None:
    together = [Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.0)]
    (delta,) = profile(together, [1.0])
    assert gaussian_epsilon((1 / 4 + 1) ** -0.5, delta) == pytest.approx(1.0, rel=1e-3)
    assert epsilon(together, delta) == pytest.approx(1.0, rel=1e-4)


def test_nothing_released_and_nothing_hidden() -> None:
    assert profile([], [0.0, 3.0]) == (0.0, 0.0)
    for bare in (Gaussian(noise_multiplier=0.0), Unprotected("the mask")):
        assert profile([Gaussian(noise_multiplier=1.0), bare], [0.0, 3.0]) == (1.0, 1.0)
    assert profile(Gaussian(noise_multiplier=1e-5), [0.0]) == (1.0,)  # no grid holds it
    assert profile(Gaussian(noise_multiplier=0.3, sample_rate=0.5, steps=500), [0.0, 3000.0]) == (1.0, 1.0)
    assert profile(Gaussian(noise_multiplier=1.0), []) == ()


@pytest.mark.parametrize("wrong", [-1.0, math.inf, math.nan])
def test_an_epsilon_is_a_number(wrong: float) -> None:
    with pytest.raises(InvalidValue, match="epsilon must"):
        profile(Gaussian(noise_multiplier=1.0), [wrong])
