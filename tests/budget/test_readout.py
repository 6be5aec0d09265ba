import math
import time

import pytest

from hoarfrost.budget import Gaussian, Readout, epsilon
from hoarfrost.errors import InvalidValue

RUN = {"noise_multiplier": 1.54, "sample_rate": 0.02, "delta": 1e-5}


def taken(count):
    return Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=count)


def test_without_a_plan_it_reads_what_the_rdp_accountant_says():
    so_far = Readout(**RUN)
    assert so_far(0) == 0.0
    for count in (1, 10, 500, 2000, 10**6):
        assert so_far(count) == pytest.approx(epsilon(taken(count), 1e-5, "rdp"), rel=1e-12)


def test_it_bounds_the_true_cost_at_every_step_and_ends_on_the_exact_cost_of_the_plan():
    so_far = Readout(**RUN, planned=2000)
    readings = [so_far(count) for count in range(0, 2001, 10)]
    assert readings == sorted(readings)
    for count in (1, 100, 1900):
        assert so_far(count) >= epsilon(taken(count), 1e-5) * (1 - 1e-9)
    assert so_far(2000) == so_far.total == epsilon(taken(2000), 1e-5)


def test_beyond_the_plan_its_total_no_longer_counts():
    so_far = Readout(**RUN, planned=2000)
    assert so_far(2001) == pytest.approx(epsilon(taken(2001), 1e-5, "rdp"), rel=1e-12)


def test_what_was_released_before_is_on_the_display_from_the_start():
    before = [Gaussian(noise_multiplier=3.0), taken(50)]
    so_far = Readout(**RUN, planned=500, before=before)
    assert so_far(0) == pytest.approx(epsilon(before, 1e-5, "rdp"))
    assert so_far(100) == pytest.approx(epsilon([*before, taken(100)], 1e-5, "rdp"))
    assert so_far(500) == epsilon([*before, taken(500)], 1e-5)


def test_without_noise_it_shows_infinity_after_the_first_step():
    so_far = Readout(noise_multiplier=0.0, sample_rate=0.02, delta=1e-5, planned=10)
    assert (so_far(0), so_far(1), so_far(10), so_far(11)) == (0.0, math.inf, math.inf, math.inf)
    assert Readout(**RUN, before=Gaussian(noise_multiplier=0.0))(0) == math.inf


def test_a_reading_takes_microseconds():
    so_far = Readout(**RUN, planned=2000)
    fastest = math.inf
    for _ in range(20):
        started = time.process_time()  # others may be using the machine
        for count in range(100):
            so_far(count)
        fastest = min(fastest, (time.process_time() - started) / 100)
    assert fastest < 40e-6


@pytest.mark.parametrize("wrong", [{"delta": 1.0}, {"noise_multiplier": -1.0}, {"sample_rate": 2.0}, {"planned": 0}])
def test_wrong_inputs_are_refused_by_name(wrong):
    with pytest.raises(InvalidValue, match=next(iter(wrong))):
        Readout(**{**RUN, **wrong})
