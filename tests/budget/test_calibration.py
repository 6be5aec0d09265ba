import time

import pytest

from hoarfrost.budget import Gaussian, epsilon, noise_multiplier, steps
from hoarfrost.errors import BudgetSpent, InvalidValue
from tests.support.exact_epsilon import gaussian_epsilon

BUDGETS = [
    # epsilon, delta, sample rate, steps
    (3.0, 1e-5, 0.02, 2000),
    (0.05, 1e-5, 0.02, 2000),
    (50.0, 1e-5, 0.02, 2000),
    (0.05, 1e-5, 1.0, 1),
    (1.0, 1e-6, 1.0, 1),
    (50.0, 1e-5, 1.0, 1),
    (2.0, 1e-5, 1.0, 1000),
    (1.0, 1e-9, 0.2, 100),
    (0.5, 1e-5, 0.1, 1),
    (0.05, 1e-6, 1e-4, 10**4),
]


def cost(sigma, delta, rate, count, accountant="pld", after=()):
    return epsilon([Gaussian(noise_multiplier=sigma, sample_rate=rate, steps=count), *after], delta, accountant)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("budget", "delta", "rate", "count"), BUDGETS)
def test_calibrated_noise_never_overshoots_and_is_not_wasteful(budget, delta, rate, count, accountant):
    sigma = noise_multiplier(budget, delta, rate, count, accountant)
    assert cost(sigma, delta, rate, count, accountant) <= budget
    assert cost(0.999 * sigma, delta, rate, count, accountant) > budget


@pytest.mark.parametrize("budget", [0.05, 0.3, 1.0, 10.0, 50.0, 500.0])
def test_for_one_step_on_all_examples_the_noise_is_the_gaussian_mechanisms(budget):
    sigma = noise_multiplier(budget, 1e-5, 1.0, 1)
    assert gaussian_epsilon(sigma, 1e-5) <= budget < gaussian_epsilon(0.998 * sigma, 1e-5)


def test_calibration_is_quick():
    noise_multiplier(2.9, 1e-5, 0.021, 1900)
    started = time.process_time()
    noise_multiplier(3.1, 1e-5, 0.02, 2000)
    assert time.process_time() - started < 3


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_what_was_released_before_is_paid_from_the_same_budget(accountant):
    before = (Gaussian(noise_multiplier=2.0), Gaussian(noise_multiplier=1.5, sample_rate=0.02, steps=100))
    sigma = noise_multiplier(3.0, 1e-5, 0.02, 1000, accountant, after=before)
    assert sigma > noise_multiplier(3.0, 1e-5, 0.02, 1000, accountant)
    assert cost(sigma, 1e-5, 0.02, 1000, accountant, before) <= 3.0
    assert cost(0.995 * sigma, 1e-5, 0.02, 1000, accountant, before) > 3.0


def test_steps_like_those_already_taken_need_no_more_noise_than_planned_at_once():
    whole = noise_multiplier(3.0, 1e-5, 0.1, 100)
    half = Gaussian(noise_multiplier=whole, sample_rate=0.1, steps=50)
    assert noise_multiplier(3.0, 1e-5, 0.1, 50, after=half) == pytest.approx(whole, rel=1e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.0])
def test_a_spent_budget_is_refused_with_what_was_spent(sigma, accountant):
    before = Gaussian(noise_multiplier=sigma)
    with pytest.raises(BudgetSpent, match="other releases cost"):
        noise_multiplier(1.0, 1e-5, 0.02, 1000, accountant, after=before)
    assert steps(1.0, 1e-5, 0.02, 5.0, accountant, after=before) == 0


def test_a_budget_spent_to_the_last_bit_is_refused():
    before = Gaussian(noise_multiplier=1.0)
    with pytest.raises(BudgetSpent):
        noise_multiplier(epsilon(before, 1e-5), 1e-5, 0.02, 1000, after=before)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    ("budget", "rate", "sigma"), [(3.0, 0.02, 1.54), (0.5, 0.01, 2.0), (8.0, 1.0, 30.0), (2.0, 0.3, 1.0)]
)
def test_one_step_more_than_the_most_exceeds_the_budget(budget, rate, sigma, accountant):
    most = steps(budget, 1e-5, rate, sigma, accountant)
    assert most == 0 or cost(sigma, 1e-5, rate, most, accountant) <= budget
    assert cost(sigma, 1e-5, rate, most + 1, accountant) > budget


def test_steps_and_noise_answer_each_other():
    before = [Gaussian(noise_multiplier=3.0)]
    sigma = noise_multiplier(4.0, 1e-5, 0.05, 700, after=before)
    assert 700 <= steps(4.0, 1e-5, 0.05, sigma, after=before) <= 702


def test_no_step_at_all_may_be_affordable_or_as_many_as_anyone_could_take():
    assert steps(1.0, 1e-5, 0.1, 0.0) == 0
    assert steps(0.5, 1e-5, 1.0, 1.0) == 0
    assert steps(5.0, 1e-5, 0.02, 1e6) == 10**9


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"sample_rate": 0.0}, "sample_rate"),
        ({"accountant": "moments"}, "accountant"),
        ({"after": 3}, "events"),
    ],
)
def test_wrong_inputs_are_refused_by_name(wrong, named):
    budget = {"epsilon": 1.0, "delta": 1e-5, "sample_rate": 0.1, **wrong}
    with pytest.raises(InvalidValue, match=named):
        noise_multiplier(**budget, steps=10)
    with pytest.raises(InvalidValue, match=named):
        steps(**budget, noise_multiplier=1.0)


def test_noise_for_no_steps_or_steps_of_negative_noise_are_refused():
    with pytest.raises(InvalidValue, match="steps"):
        noise_multiplier(1.0, 1e-5, 0.1, 0)
    with pytest.raises(InvalidValue, match="noise_multiplier"):
        steps(1.0, 1e-5, 0.1, -1.0)
