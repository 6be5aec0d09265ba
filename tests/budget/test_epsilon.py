import logging
import math
import time
import tracemalloc

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from hoarfrost.budget import Gaussian, _pld, _rdp, epsilon, noise_multiplier, privacy_filter
from hoarfrost.budget.accountant import within
from hoarfrost.budget.events import mechanisms
from hoarfrost.errors import InvalidValue
from tests.support.exact_epsilon import gaussian_epsilon, sampled_epsilon

BOTH = pytest.mark.parametrize("accountant", ["pld", "rdp"])


def steps(sigma, rate, count):
    return Gaussian(noise_multiplier=sigma, sample_rate=rate, steps=count)


@pytest.mark.parametrize(
    ("sigma", "rate", "count", "rdp", "pld"),
    [
        (1.54, 0.02, 2000, 3.003, 2.753),
        (1.10, 0.02, 4000, 7.504, 6.914),
        (1.923, 2048 / 60000, 1163, 2.999, 2.751),
    ],
)
def test_published_settings_cost_what_is_known(sigma, rate, count, rdp, pld):
    event = steps(sigma, rate, count)
    assert epsilon(event, 1e-5, "rdp") == pytest.approx(rdp, abs=6e-4)
    assert epsilon(event, 1e-5) == pytest.approx(pld, abs=1.1e-3)


@pytest.mark.parametrize("delta", [0.1, 1e-3, 1e-5, 1e-8, 1e-11])
@pytest.mark.parametrize("sigma", [0.05, 0.15, 0.5, 1.0, 3.0, 20.0, 100.0])
def test_without_sampling_epsilon_is_the_gaussian_mechanisms(sigma, delta):
    exact = gaussian_epsilon(sigma, delta)
    assert exact <= epsilon(steps(sigma, 1.0, 1), delta) <= 1.001 * exact + 1e-5


def test_without_sampling_many_steps_are_one_of_less_noise():
    exact = gaussian_epsilon(1.0, 1e-6)  # 1 / 1² = 300 / 20² + 1 / 2²
    assert exact <= epsilon([steps(20.0, 1.0, 300), steps(2.0, 1.0, 1)], 1e-6) <= 1.001 * exact


@pytest.mark.parametrize(
    ("sigma", "rate", "count", "slack"),
    [
        (1.54, 0.02, 2000, 2e-4),
        (0.8, 1e-3, 10**4, 2e-4),
        (10.0, 1e-3, 10**6, 3e-4),
        (1.0, 1e-5, 10**5, 3e-3),
        (0.7, 1e-5, 10**5, 3e-3),  # at an interval of 1e-4: 45% too large
        (0.5, 1e-6, 10**6, 4e-2),
    ],
)
def test_epsilon_is_never_too_small_and_hardly_too_large_at_any_rate(sigma, rate, count, slack):
    exact = sampled_epsilon(sigma, rate, count, 1e-5)
    assert exact <= epsilon(steps(sigma, rate, count), 1e-5) <= (1 + slack) * exact


@pytest.mark.parametrize("delta", [1e-8, 1e-10, 1e-12, 1e-15, 1e-30])
def test_a_delta_near_rounding_errors_is_not_understated(delta):
    # Sampling almost everyone costs as much as sampling everyone, to nine digits, but takes the transforms.
    exact = gaussian_epsilon(1.0, delta)
    assert (1 - 1e-6) * exact <= epsilon(steps(100.0, 1 - 1e-9, 10**4), delta) <= 1.06 * exact


@BOTH
def test_before_the_first_step_epsilon_is_zero(accountant):
    for nothing in ([], (), steps(1.0, 0.1, 0), [steps(0.0, 0.1, 0), steps(2.0, 1.0, 0)]):
        assert epsilon(nothing, 1e-5, accountant) == 0.0


@BOTH
def test_a_step_without_noise_is_not_private(accountant):
    assert epsilon(steps(0.0, 0.01, 1), 1e-5, accountant) == math.inf
    assert epsilon([steps(1.0, 0.01, 1), steps(0.0, 1.0, 1)], 1e-5, accountant) == math.inf


@BOTH
def test_asking_changes_nothing(accountant):
    events = [steps(1.5, 0.02, 300), steps(3.0, 1.0, 2)]
    first = epsilon(events, 1e-5, accountant)
    epsilon(steps(1.5, 0.02, 900), 1e-5, accountant)
    assert epsilon(events, 1e-5, accountant) == first
    assert epsilon(iter(events), 1e-5, accountant) == first


@BOTH
def test_a_run_told_in_pieces_costs_what_it_costs_whole(accountant):
    whole = epsilon(steps(1.5, 0.02, 500), 1e-5, accountant)
    assert epsilon([steps(1.5, 0.02, 1)] * 200 + [steps(1.5, 0.02, 300)], 1e-5, accountant) == whole
    mixed = [steps(1.5, 0.02, 500), steps(4.0, 0.5, 3), steps(7.0, 1.0, 2)]
    total = epsilon(mixed, 1e-5, accountant)
    assert whole < total
    assert epsilon(mixed[::-1], 1e-5, accountant) == pytest.approx(total, rel=1e-9)


def test_releases_of_very_different_size_share_one_grid_at_little_cost():
    tiny, large = steps(1.0, 1e-5, 10**5), steps(1.0, 1.0, 1)
    exact = gaussian_epsilon(1.0, 1e-5)
    started = time.process_time()
    assert exact <= epsilon([tiny, large], 1e-5) <= 1.001 * exact
    assert time.process_time() - started < 2


rates = st.one_of(st.just(1.0), st.floats(-6, 0).map(lambda power: 10.0**power))


@settings(max_examples=20, deadline=None)
@given(st.floats(0.3, 300), rates, st.integers(1, 5000), st.sampled_from([0.3, 1e-3, 1e-5, 1e-9]))
def test_epsilon_is_never_negative_and_the_two_accountants_agree(sigma, rate, count, delta):
    event = steps(sigma, rate, count)
    pld, rdp = epsilon(event, delta), epsilon(event, delta, "rdp")
    assert 0 <= pld <= 1.001 * rdp + 1e-5


@settings(max_examples=8, deadline=None)
@given(st.floats(0.5, 30), st.floats(1e-3, 1), st.integers(1, 3000))
def test_less_noise_and_more_steps_cost_more(sigma, rate, count):
    cost = epsilon(steps(sigma, rate, count), 1e-5)
    slack = 1 - 1e-3  # the grid may change
    assert epsilon(steps(0.9 * sigma, rate, count), 1e-5) >= slack * cost
    assert epsilon(steps(sigma, rate, 2 * count), 1e-5) >= slack * cost


@pytest.mark.parametrize(
    ("sigma", "rate", "count"),
    [
        (1e-7, 0.5, 10),
        (1e-3, 0.5, 10**6),
        (0.02, 1.0, 10**5),
        (1e300, 0.1, 10**6),
        (1e9, 1e-12, 10**9),
        (1.0, 1e-15, 1),
    ],
)
def test_no_release_is_too_extreme_to_account_for(sigma, rate, count):
    for accountant in ("pld", "rdp"):
        cost = epsilon(steps(sigma, rate, count), 1e-5, accountant)
        assert cost > 1e4 if sigma < 1 else 0 <= cost < 0.5


@pytest.mark.parametrize(("sigma", "rate"), [(10.0, 1e-3), (100.0, 1e-2), (2.0, 1e-4)])
def test_a_million_steps_do_not_take_long(sigma, rate):
    started = time.process_time()
    epsilon(steps(sigma, rate, 10**6), 1e-5)
    assert time.process_time() - started < 3


def test_ten_million_steps_do_not_take_much_memory():
    tracemalloc.start()
    epsilon(steps(100.0, 1e-3, 10**7), 1e-5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300e6


def test_another_number_of_steps_is_answered_from_the_same_one_step_distribution():
    epsilon(steps(1.37, 0.02, 1900), 1e-5)
    before = _pld._one_step.cache_info().misses
    started = time.process_time()
    for count in (1901, 1950, 2000):
        epsilon(steps(1.37, 0.02, count), 1e-5)
    assert _pld._one_step.cache_info().misses == before
    assert (time.process_time() - started) / 3 < 0.3


@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.1, 1.0])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 5.0, 1000.0])
@pytest.mark.parametrize("count", [1, 10**4, 10**6])
def test_the_grid_is_fine_enough_but_never_too_large(sigma, rate, count):
    (one,) = _pld._sampled(mechanisms([steps(sigma, rate, count)]), 1e-5)
    interval = _pld._interval([one])
    assert math.log2(interval) == round(math.log2(interval))
    assert one.span / interval <= _pld.POINTS
    assert math.sqrt(one.variance) / interval <= _pld.POINTS
    at_its_limit = 4 * max(one.span, math.sqrt(one.variance)) / interval > _pld.POINTS
    assert one.added_variance(interval) < 3e-2 * (one.variance + 1e-8) or at_its_limit


def test_divergences_are_converted_as_dp_accounting_converts_them():
    for sigma, rate, count in [(1.5, 0.02, 2000), (0.5, 0.3, 4), (50.0, 1e-3, 3), (2.0, 1.0, 10)]:
        event = steps(sigma, rate, count)
        reference = RdpAccountant().compose(event.dp_event())
        for delta in (0.1, 1e-5, 1e-10):
            assert epsilon(event, delta, "rdp") == pytest.approx(reference.get_epsilon(delta), rel=1e-9, abs=1e-9)


def test_a_divergence_lost_in_rounding_is_not_taken_for_none():
    # Of order 2 it is log(1 + q²(exp(1/σ²) - 1)), here 1e-22: what the library computes is 0 or noise of either sign.
    tiny = dp_accounting.PoissonSampledDpEvent(1e-9, dp_accounting.GaussianDpEvent(100.0))
    assert _rdp.one_step(tiny).min() > 1e-22
    for sigma, rate in [(1e4, 0.01), (1e6, 0.5), (1.0, 1e-7)]:
        divergence = _rdp.one_step(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
        second = divergence[np.flatnonzero(_rdp.ORDERS == 2)[0]]
        assert second >= math.log1p(rate**2 * math.expm1(sigma**-2))


def renyi_divergence(order, sigma, rate):
    """By its definition: the integral of (p/q)^α q, for the mixture p against the noise alone q."""
    x, width = np.linspace(-14 * sigma, 14 * sigma + order, 200_001, retstep=True)
    ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + (2 * x - 1) / (2 * sigma**2))
    logs = order * ratio - x**2 / (2 * sigma**2) - math.log(sigma * math.sqrt(2 * math.pi))
    return (logs.max() + math.log(np.exp(logs - logs.max()).sum() * width)) / (order - 1)


@pytest.mark.parametrize(("sigma", "rate"), [(0.6, 1e-3), (1.0, 0.01), (1.5, 0.3), (4.0, 0.02), (5.0, 0.9)])
def test_the_quick_divergence_is_above_the_true_one_at_every_order_and_near_it_at_whole_ones(sigma, rate):
    quick = _rdp.quick_divergence(mechanisms([steps(sigma, rate, 10)]))
    for order in (1.1, 1.5, 2.0, 2.5, 3.0, 4.4, 10.9, 16.0, 63.0):
        true = 10 * renyi_divergence(order, sigma, rate)
        found = quick[order == _rdp.ORDERS].item()
        assert true < found + 1e-13
        assert not order.is_integer() or found < true * (1 + 1e-8) + 1e-11


@given(sigma=st.floats(-3, 7), rate=st.floats(-12, -1e-9), count=st.integers(1, 10**8))
@settings(max_examples=60, deadline=None)
def test_the_quick_divergence_is_never_below_dp_accounting_s_at_whole_orders(sigma, rate, count):
    released = mechanisms([steps(10**sigma, 10**rate, count), steps(10**sigma, 1.0, count)])
    whole = np.isin(_rdp.ORDERS, _rdp.WHOLE)
    slow, quick = _rdp.divergence(released)[whole], _rdp.quick_divergence(released)[whole]
    assert (quick >= slow).all()


def test_the_quick_divergence_of_many_kinds_is_their_sum():
    kinds = [steps(1 + i / 100, 0.01, i) for i in range(1, 600)]  # in several goes
    one_by_one = sum(_rdp.quick_divergence(mechanisms([kind])) for kind in kinds)
    assert _rdp.quick_divergence(mechanisms(kinds)) == pytest.approx(one_by_one, rel=1e-12)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp@4.4"])
@pytest.mark.parametrize("share", [0.5, 0.999, 1.0, 1.001, 1.05, 1.2, 2.0])
def test_what_is_within_a_budget_is_what_epsilon_says(accountant, share):
    events = [steps(1.0, 0.01, 500), steps(2.0, 0.05, 100), steps(9.0, 1.0, 1)]
    budget = share * epsilon(events, 1e-5, accountant)
    assert within(events, budget, 1e-5, accountant) == (share >= 1)


def test_nothing_without_noise_is_within_a_budget_and_nothing_released_always_is():
    assert not within([steps(1.0, 0.01, 1), steps(0.0, 1.0, 1)], 1e9, 1e-5)
    assert within([], 1e-9, 1e-5)


def test_the_same_question_is_answered_at_once_the_second_time(monkeypatch):
    event = steps(1.234567, 0.0123, 77)
    first = epsilon(event, 1e-5)
    monkeypatch.setattr(_pld, "epsilon", lambda *_: pytest.fail("worked out again"))
    assert epsilon([event], 1e-5) == first


def test_orders_that_do_not_converge_are_left_out_without_noise_on_the_screen(caplog):
    with caplog.at_level(logging.WARNING):
        assert 0 < epsilon(steps(2.0, 0.5, 10), 1e-5, "rdp") < 10
    assert not caplog.records


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan"), None])
def test_delta_is_a_probability(delta):
    with pytest.raises(InvalidValue, match="delta"):
        epsilon(steps(1.0, 0.1, 1), delta)


@pytest.mark.parametrize("events", [[], steps(1.0, 0.1, 1)])
def test_an_unknown_accountant_is_refused_and_the_known_ones_are_named(events):
    for unknown in ("prv", "rdp@", "rdp@0.5", "rdp@1e9", "rdp@nan"):
        with pytest.raises(InvalidValue, match='"pld", "rdp"'):
            epsilon(events, 1e-5, unknown)


@pytest.mark.parametrize("budget", [0.5, 3.0, 8.0])
def test_a_privacy_filter_bounds_what_rdp_does_and_is_chosen_well_for_its_budget(budget):
    accountant = privacy_filter(budget, 1e-5)
    sigma = noise_multiplier(budget, 1e-5, 0.02, 1000, accountant)
    run = Gaussian(noise_multiplier=sigma, sample_rate=0.02, steps=1000)
    assert epsilon(run, 1e-5, "rdp") <= epsilon(run, 1e-5, accountant) <= 1.08 * epsilon(run, 1e-5, "rdp")


def test_under_a_filter_releases_add_up_whatever_their_order_and_noise():
    """One order's divergences add: two halves cost what the whole does, and mixing in other noise changes nothing."""
    whole, half, other = steps(1.0, 0.1, 20), steps(1.0, 0.1, 10), steps(3.0, 0.5, 4)
    assert epsilon([whole, other], 1e-5, "rdp@8") == pytest.approx(epsilon([half, other, half], 1e-5, "rdp@8"))
    offset = epsilon(steps(1e9, 1.0, 1), 1e-5, "rdp@8")
    alone = [epsilon(each, 1e-5, "rdp@8") - offset for each in (whole, other)]
    assert epsilon([whole, other], 1e-5, "rdp@8") - offset == pytest.approx(sum(alone))
