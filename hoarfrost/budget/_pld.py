"""Accounting by privacy loss distributions: dp-accounting's, on a grid that suits the mechanisms at hand."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from hoarfrost.budget import _rdp
from hoarfrost.errors import InvalidValue

# The Fourier transform of a step is raised to the power of the steps, and its rounding error with it: up to 1.3e-17 of
# delta for every step was seen. So delta is asked for with this much taken off.
NOISE, NOISE_PER_STEP = 1e-14, 5e-17

# The interval of the grid of losses. A loss between two grid points is split between them, which adds variance to
# every step; a total variance that is too large by a share e makes epsilon too large by about e/2. So the interval is
# halved until that is small: ERROR, or a little more where each further point takes time. Two things forbid a finer
# one: the time itself, 7 µs a point (POINTS), and rounding in the library's second differences, which adds a mass of
# about ROUNDING · range / interval² to every step; a total mass m makes epsilon too large by about a share m/10.
# Measured at delta 1e-5 against exact values; seconds at first and again, when the step's distribution is cached:
#
#     σ      rate   steps   exact ε   interval   too large   seconds        at a fixed 1e-4
#     1.54   2e-2   2e3     2.7530    2^-11      0.01%       0.05   0.03      0.0004%
#     0.8    1e-3   1e4     0.7824    2^-14      0.01%       0.33   0.14      0.02%
#     0.7    1e-4   1e5     0.2936    2^-15      0.10%       0.42   0.19      1%
#     2      1e-4   1e6     0.1718    2^-18      0.05%       0.23   0.18     30%
#     10     1e-3   1e6     0.3417    2^-18      0.02%       0.39   0.32      9%
#     1      1e-5   1e5     0.0102    2^-19      0.20%       0.09   0.05    133%
#     0.6    1e-5   1e5     0.0418    2^-17      0.18%       0.93   0.38     15%
#     0.5    1e-6   1e6     0.0266    2^-17      2.3%        1.49   0.79     48%
#
# Powers of two, so that nearby questions share a grid: on one grid epsilon is monotone, and steps are cached.
ERROR = 1e-4
ERROR_PER_POINT = 1e-8
POINTS = 1e5
ROUNDING = 3e-17

# Losses that all steps together meet with probability TAIL · delta count as infinite. At small rates most of the range
# is such losses: without them the grid is up to ten times finer in the same time.
TAIL = 1e-3

# The delta that a whole profile is made for: TAIL of it is added to every other one.
SMALLEST = 1e-6


@dataclass(frozen=True)
class Sampled:
    """A Poisson-sampled Gaussian mechanism, run `steps` times; one run may cut off losses of probability `tail`."""

    sigma: float
    rate: float
    steps: int
    tail: float

    @cached_property
    def reach(self) -> float:
        """How many standard deviations above its mean the noise is cut off: at 1 + reach · σ, if the example took part.

        The mixture's tail there, not the larger one of the component that carries the example: at small rates that
        leaves out most of the range.
        """

        def beyond(z: float) -> float:
            return float((1 - self.rate) * ndtr(-z - 1 / self.sigma) + self.rate * ndtr(-z)) - self.tail

        return brentq(beyond, 2, 40) if beyond(2) > 0 else 2.0

    @cached_property
    def span(self) -> float:
        """The largest loss of a step less the smallest."""
        return float(np.ptp(self._loss(np.array([-self.reach * self.sigma, 1 + self.reach * self.sigma]))))

    @cached_property
    def variance(self) -> float:
        """Variance of the privacy loss of all steps."""
        loss, weight = self._quadrature
        return self.steps * float(weight @ (loss - weight @ loss) ** 2)

    def added_variance(self, interval: float) -> float:
        """What a grid adds to the variance of all steps."""
        loss, weight = self._quadrature
        part = loss / interval % 1
        return self.steps * float(weight @ (part * (1 - part))) * interval**2

    @cached_property
    def _quadrature(self) -> tuple[Any, Any]:
        """The loss of removing an example at some outcomes, and the probability of each."""
        z = np.linspace(-8, 8, 801)
        bell = np.exp(-(z**2) / 2)
        bell /= bell.sum()
        x = np.concatenate([self.sigma * z, 1 + self.sigma * z])
        weight = np.concatenate([(1 - self.rate) * bell, self.rate * bell])
        return self._loss(x), np.where(x <= 1 + self.reach * self.sigma, weight, 0)

    def _loss(self, x: Any) -> Any:
        loss = (2 * x - 1) / (2 * self.sigma**2)
        return loss if self.rate == 1 else np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + loss)


def epsilon(mechanisms: Mapping[DpEvent, int], delta: float, points: float = POINTS) -> float:
    """The epsilon of mechanisms, each run so many times, on a grid of about so many points at most.

    Where no grid can hold them (a delta near the rounding errors, losses in the hundreds), by Rényi divergences.
    """
    sampled = _sampled(mechanisms, delta)
    interval = _interval(sampled, points)
    noise = NOISE + NOISE_PER_STEP * sum(each.steps for each in sampled)
    if delta < 4 * noise or interval > 500:  # exp() of a larger interval does not fit a number
        return _rdp.epsilon(mechanisms, delta)
    together = _together(tuple(sampled), interval)
    with np.errstate(over="ignore"):  # an epsilon above 700 may come out infinite
        result = float(together.get_epsilon_for_delta(delta - noise))
    return result if math.isfinite(result) else _rdp.epsilon(mechanisms, delta)


def deltas(mechanisms: Mapping[DpEvent, int], epsilons: Sequence[float]) -> tuple[float, ...]:
    """The delta of each epsilon; 1 where no grid can hold the mechanisms."""
    sampled = _sampled(mechanisms, SMALLEST)
    interval = _interval(sampled)
    if interval > 500:
        return (1.0,) * len(epsilons)
    noise = NOISE + NOISE_PER_STEP * sum(each.steps for each in sampled)
    with np.errstate(over="ignore", invalid="ignore"):  # beyond an epsilon of 700, e^ε is infinite
        found = _together(tuple(sampled), interval).get_delta_for_epsilon(np.array(epsilons, dtype=float))
    return tuple(float(each) for each in np.clip(np.nan_to_num(found, nan=1.0) + noise, 0, 1))


def _sampled(mechanisms: Mapping[DpEvent, int], delta: float) -> list[Sampled]:
    # In powers of 16, so that a few more steps find the same one-step distribution in the cache.
    tail = 16.0 ** math.floor(math.log(TAIL * delta / sum(mechanisms.values()), 16))
    sampled, precision = [], 0.0
    for mechanism, steps in mechanisms.items():
        match mechanism:
            case PoissonSampledDpEvent(event=GaussianDpEvent(noise_multiplier=sigma), sampling_probability=rate):
                # Below 1e-9 the library's differences of logarithms cancel; a larger rate costs more, so this is safe.
                sampled.append(Sampled(sigma, max(rate, 1e-9), steps, tail))
            case GaussianDpEvent(noise_multiplier=sigma):
                precision += steps / sigma**2  # Gaussian mechanisms on all examples are together exactly one
            case _:
                raise InvalidValue(f'the pld accountant cannot analyse {mechanism}; try accountant="rdp"')
    if precision > 0:
        together = Sampled(precision**-0.5, 1.0, 1, tail)
        sampled.insert(len(sampled) if isinstance(mechanism, GaussianDpEvent) else 0, together)
    return sampled


def _interval(sampled: list[Sampled], most_points: float = POINTS) -> float:
    variance = sum(each.variance for each in sampled) + 1e-8  # an epsilon off by 1e-5 is near enough
    widest = max(math.sqrt(variance), *(each.span for each in sampled))
    rounding = ROUNDING * sum(each.steps * each.span for each in sampled)

    def spread(interval: float) -> float:
        return sum(each.added_variance(interval) for each in sampled) / variance / 2

    def error(interval: float) -> float:
        return spread(interval) + rounding / interval**2 / 10

    def accurate(interval: float) -> bool:
        return spread(interval) <= max(ERROR, ERROR_PER_POINT * widest / interval)

    interval = 2.0 ** math.ceil(math.log2(variance) / 2)
    while not accurate(interval) and 2 * widest < most_points * interval and error(interval / 2) < error(interval):
        interval /= 2
    return interval


def _together(sampled: tuple[Sampled, ...], interval: float) -> PrivacyLossDistribution:
    last = _composed(sampled[-1], interval)
    return last if len(sampled) == 1 else _others(sampled[:-1], interval).compose(last)


@lru_cache(maxsize=4)  # searches and refusals ask about one kind of steps again and again, after all others
def _others(sampled: tuple[Sampled, ...], interval: float) -> PrivacyLossDistribution:
    return reduce(PrivacyLossDistribution.compose, (_composed(each, interval) for each in sampled))


def _composed(mechanism: Sampled, interval: float) -> PrivacyLossDistribution:
    step = _one_step(mechanism.sigma, mechanism.rate, mechanism.reach, interval)
    steps = mechanism.steps
    if steps == 1:
        return step
    if steps * interval < 100 * mechanism.span:
        return step.self_compose(steps)
    # With so many steps on so few grid points the library would bound the result's range far too generously, and its
    # time and memory would grow with the steps. By way of their square root both grow with that root.
    root = math.isqrt(steps)
    blocks, rest = divmod(steps, root)
    whole = step.self_compose(root).self_compose(blocks)
    return whole.compose(step.self_compose(rest)) if rest else whole


@lru_cache(maxsize=32)
def _one_step(sigma: float, rate: float, reach: float, interval: float) -> PrivacyLossDistribution:
    return from_gaussian_mechanism(
        sigma,
        value_discretization_interval=interval,
        log_mass_truncation_bound=float(log_ndtr(-reach)) + math.log(2),
        sampling_prob=rate,
    )
