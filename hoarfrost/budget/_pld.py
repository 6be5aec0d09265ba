"""Accounting by privacy loss distributions: dp-accounting's, on a grid that suits the mechanisms at hand."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from scipy.special import ndtri

from hoarfrost.errors import InvalidValue

SMALLEST_DELTA = 1e-12  # rounding in the Fourier transforms is some 1e-15: below this it would drown delta

# The interval of the grid of losses. A loss between two grid points is split between them, which adds variance to
# every step; a total variance that is overstated by a share e overstates epsilon by about e/2. So the interval is
# halved until the share is small (ERROR). Two things forbid a finer one: time, 7 µs a grid point (POINTS), and
# rounding in the library's second differences, which adds mass ROUNDING · range / interval² to every step; mass m
# overstates epsilon by about a share m/10. Overstatement against exact values, and seconds cold / with a cached step:
#
#     σ     q      steps   true ε  interval  overstated           time         with a fixed 1e-4
#     1.54  2e-2   2e3     2.7530
#
# Powers of two, so that near-equal questions share a grid: then epsilon is monotone and steps are found in the cache.
ERROR = 1e-4
POINTS = 1e5
ROUNDING = 3e-17

# Losses so rare that all steps together meet one with probability TAIL · delta count as infinite. At small rates most
# of the range is such losses: dropping them makes the grid up to ten times finer for the same time.
TAIL = 1e-3


@dataclass(frozen=True)
class Sampled:
    """A Poisson-sampled Gaussian mechanism, run `steps` times; losses beyond the tail's quantile are cut off."""

    sigma: float
    rate: float
    steps: int
    log_tail: float

    @cached_property
    def _losses(self) -> tuple[Any, Any]:
        """Quadrature nodes: the loss of removing an example at each, and the probability of each."""
        reach = -ndtri(0.5 * math.exp(self.log_tail))
        z = np.linspace(-reach, reach, 1001)
        bell = np.exp(-(z**2) / 2)
        bell /= bell.sum()
        x = np.concatenate([self.sigma * z, 1 + self.sigma * z])
        loss = (2 * x - 1) / (2 * self.sigma**2)
        if self.rate < 1:
            loss = np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + loss)
        return loss, np.concatenate([(1 - self.rate) * bell, self.rate * bell])

    @cached_property
    def variance(self) -> float:
        """Variance of the privacy loss of all steps."""
        loss, weight = self._losses
        return self.steps * float(weight @ (loss - weight @ loss) ** 2)

    @cached_property
    def span(self) -> float:
        """The largest loss of a step less the smallest."""
        loss, _ = self._losses
        return float(loss.max() - loss.min())

    def added_variance(self, interval: float) -> float:
        """What a grid adds to the variance of all steps."""
        loss, weight = self._losses
        part = loss / interval % 1
        return self.steps * float(weight @ (part * (1 - part))) * interval**2


def epsilon(mechanisms: Mapping[DpEvent, int], delta: float) -> float:
    """The epsilon of mechanisms, each run so many times."""
    if delta < SMALLEST_DELTA:
        raise InvalidValue(f'the pld accountant resolves delta down to {SMALLEST_DELTA}, got {delta}; use "rdp"')
    sampled = _sampled(mechanisms, delta)
    interval = _interval(sampled)
    together = reduce(PrivacyLossDistribution.compose, (_composed(each, interval) for each in sampled))
    return float(together.get_epsilon_for_delta(delta))


def _sampled(mechanisms: Mapping[DpEvent, int], delta: float) -> list[Sampled]:
    # In powers of e³, so that a few more steps find the same one-step distribution in the cache.
    log_tail = 3.0 * math.floor(math.log(TAIL * delta / sum(mechanisms.values())) / 3)
    sampled, precision = [], 0.0
    for mechanism, steps in mechanisms.items():
        match mechanism:
            case PoissonSampledDpEvent(event=GaussianDpEvent(noise_multiplier=sigma), sampling_probability=rate) if rate < 1:
                # Below 1e-9 the library's differences of logarithms cancel; a larger rate costs more, so this is safe.
                sampled.append(Sampled(sigma, max(rate, 1e-9), steps, log_tail))
            case GaussianDpEvent(noise_multiplier=sigma):
                precision += steps / sigma**2  # Gaussian mechanisms on all examples are together exactly one
            case _:
                raise InvalidValue(f'the pld accountant cannot analyse {mechanism}; try accountant="rdp"')
    if precision > 0:
        sampled.append(Sampled(precision**-0.5, 1.0, 1, log_tail))
    return sampled


def _interval(sampled: list[Sampled]) -> float:
    variance = sum(each.variance for each in sampled) + 1e-8  # an epsilon off by 1e-5 is near enough
    widest = max(math.sqrt(variance), *(each.span for each in sampled))
    rounding = ROUNDING * sum(each.steps * each.span for each in sampled)

    def spread(interval: float) -> float:
        return sum(each.added_variance(interval) for each in sampled) / variance / 2

    def error(interval: float) -> float:
        return spread(interval) + rounding / interval**2 / 10

    interval = 2.0 ** math.ceil(math.log2(variance) / 2)
    while spread(interval) > ERROR and 2 * widest < POINTS * interval and error(interval / 2) < error(interval):
        interval /= 2
    return interval


def _composed(mechanism: Sampled, interval: float) -> PrivacyLossDistribution:
    step = _one_step(mechanism.sigma, mechanism.rate, interval, mechanism.log_tail)
    steps = mechanism.steps
    if steps == 1:
        return step
    if steps * interval < 100 * mechanism.span:
        return step.self_compose(steps)
    # With so many steps on so few grid points the library would bound the result's range far too generously, and its
    # time and memory would grow with the steps. By way of their square root both grow with that root.
    blocks, rest = divmod(steps, math.isqrt(steps))
    whole = step.self_compose(math.isqrt(steps)).self_compose(blocks)
    return whole.compose(step.self_compose(rest)) if rest else whole


@lru_cache(maxsize=32)
def _one_step(sigma: float, rate: float, interval: float, log_tail: float) -> PrivacyLossDistribution:
    return from_gaussian_mechanism(
        sigma, value_discretization_interval=interval, log_mass_truncation_bound=log_tail, sampling_prob=rate
    )
