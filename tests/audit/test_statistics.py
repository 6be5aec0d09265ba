"""Bounds against known values, and against the accountant."""

from __future__ import annotations

import pytest
from scipy.stats import binom, norm

from hoarfrost import budget
from hoarfrost.audit import statistics
from hoarfrost.errors import InvalidValue


def test_the_upper_bound_is_the_rate_at_which_so_few_hits_become_improbable() -> None:
    """Clopper and Pearson's definition."""
    for hits, trials, alpha in ((0, 10, 0.05), (3, 50, 1e-6), (15_000, 51_200, 5e-7), (49, 50, 0.01)):
        bound = statistics.rate_upper(hits, trials, alpha)
        assert binom.cdf(hits, trials, bound) == pytest.approx(alpha, rel=1e-6)


def test_nothing_is_known_above_when_everything_hits() -> None:
    assert statistics.rate_upper(7, 7, 0.05) == 1.0


@pytest.mark.parametrize("bad", [{"hits": 11}, {"hits": -1}, {"alpha": 0.0}, {"trials": 0}])
def test_impossible_counts_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(InvalidValue):
        statistics.rate_upper(**({"hits": 1, "trials": 10, "alpha": 0.05} | bad))  # type: ignore[arg-type]


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("threshold", [-1.0, 0.0, 0.5, 2.0])
def test_any_threshold_on_two_gaussians_gives_back_their_distance(mu: float, threshold: float) -> None:
    fpr, fnr = norm.sf(threshold), norm.cdf(threshold - mu)
    assert statistics.mu_lower(fpr, fnr) == pytest.approx(mu)


def test_an_attack_that_knows_nothing_proves_nothing() -> None:
    assert statistics.mu_lower(0.3, 0.7) == pytest.approx(0.0, abs=1e-12)
    assert statistics.mu_lower(1.0, 0.0) == statistics.mu_lower(0.9, 0.9) == 0.0


@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_of_a_gaussian_step_is_the_accountants(sigma: float, delta: float) -> None:
    ours = statistics.gaussian_epsilon(1 / sigma, delta)
    accountants = budget.epsilon(budget.Gaussian(noise_multiplier=sigma), delta)
    assert ours <= accountants * (1 + 1e-6)
    assert ours == pytest.approx(accountants, rel=2e-3, abs=2e-3)


@pytest.mark.parametrize("mu", [0.003, 0.3, 1.0, 10.0, 100.0])
def test_epsilon_is_where_the_gaussian_delta_is_the_one_asked_for(mu: float) -> None:
    assert statistics.gaussian_delta(mu, statistics.gaussian_epsilon(mu, 1e-5)) == pytest.approx(1e-5, rel=1e-6)


def test_no_distance_costs_nothing() -> None:
    assert statistics.gaussian_epsilon(0.0, 1e-5) == statistics.gaussian_epsilon(1e-9, 1e-5) == 0.0
