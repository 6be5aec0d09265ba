"""Accounting by Rényi differential privacy: dp-accounting's divergences and its conversion to epsilon, as vectors."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant
from scipy.special import gammaln

from hoarfrost.errors import InvalidValue

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

ORDERS: Vector = RdpAccountant().orders
WHOLE = [int(order) for order in ORDERS.tolist() if order.is_integer()]
AT_ONCE = 256  # mechanisms: more in one go are slower, for they leave the cache

# dp-accounting computes a divergence as the logarithm of a sum near 1, so it is off by some 1e-16 either way, and what
# comes out negative it converts to an epsilon of 0. Far more than that error, and far less than anyone can spend:
ROUNDING = 1e-14


def epsilon(mechanisms: Mapping[DpEvent, int], delta: float, order: float | None = None) -> float:
    """The epsilon of mechanisms, each run so many times: by the best order, or by the one given."""
    return _converted(divergence(mechanisms), delta, order)


def quick_epsilon(mechanisms: Mapping[DpEvent, int], delta: float, order: float | None = None) -> float:
    """A little more than `epsilon`, in the time of a few multiplications for each mechanism."""
    return _converted(quick_divergence(mechanisms), delta, order)


def _converted(total: Vector, delta: float, order: float | None) -> float:
    convert = Conversion(delta)
    return convert(total) if order is None else convert.at(order, total)


def order_for(epsilon: float, delta: float) -> float:
    """The order that, chosen beforehand, allows Gaussian noise to be smallest for a budget."""
    # The Rényi divergence of Gaussian mechanisms is proportional to the order.
    allowed = (epsilon - Conversion(delta).offset) / ORDERS
    return float(ORDERS[allowed.argmax()])


def divergence(mechanisms: Mapping[DpEvent, int]) -> Vector:
    """The Rényi divergences of mechanisms run together, one per order."""
    total = np.zeros_like(ORDERS)
    for mechanism, times in mechanisms.items():
        total += times * one_step(mechanism)
    return total


def quick_divergence(mechanisms: Mapping[DpEvent, int]) -> Vector:
    """A little more than `divergence`, for any number of sampled Gaussian mechanisms in one go; infinite for others.

    At whole orders α the moment of a sampled Gaussian is a finite sum (Mironov, Talwar and Zhang, 2019):
    log Σ_k C(α,k) (1-q)^(α-k) q^k exp(k(k-1)/2σ²). Between them it is convex in α, and 0 at α = 1, so that straight
    lines lie above it.
    """
    precision, sampled = 0.0, []
    for mechanism, times in mechanisms.items():
        match mechanism:
            case PoissonSampledDpEvent(event=GaussianDpEvent(noise_multiplier=sigma), sampling_probability=rate):
                sampled.append((sigma, rate, times))
            case GaussianDpEvent(noise_multiplier=sigma):
                precision += times / sigma**2
            case _:
                return np.full_like(ORDERS, math.inf)
    moments = np.zeros(len(WHOLE))
    for start in range(0, len(sampled), AT_ONCE):
        sigma, rate, times = np.array(sampled[start : start + AT_ONCE]).T
        moments += times @ _moments(sigma, rate)
    between: Vector = np.interp(ORDERS, [1, *WHOLE], [0, *moments]) / (ORDERS - 1)
    # More than rounding can take away here, or add where dp-accounting computes the same.
    return (between + precision * ORDERS / 2) * (1 + 1e-9) + 2 * ROUNDING * sum(mechanisms.values())


def _moments(sigma: Vector, rate: Vector) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """The logarithms of the moments of sampled Gaussians, ``[mechanism, whole order]``.

    The binomial probabilities add up to 1, so that a moment is 1 and a sum of positive terms: nothing cancels.
    """
    k = np.arange(2, WHOLE[-1] + 1)
    exponent = k * (k - 1) / (2 * sigma[:, None] ** 2)
    stay = np.log1p(-rate)[:, None]
    term = k * (np.log(rate)[:, None] - stay) + exponent + np.log(-np.expm1(-exponent))  # log(exp(exponent) - 1)
    logs = gammaln(np.arange(WHOLE[-1] + 2))  # of factorials, one place further on
    found = np.empty((len(sigma), len(WHOLE)))
    for column, order in enumerate(WHOLE):
        chosen = logs[order + 1] - logs[3 : order + 2] - logs[order - 1 : 0 : -1]
        terms = term[:, : order - 1] + chosen
        largest = terms.max(axis=1, keepdims=True)
        terms -= largest
        total = np.log(np.exp(terms, out=terms).sum(axis=1, keepdims=True)) + largest
        found[:, column] = np.logaddexp(0, order * stay + total)[:, 0]
    return found


@lru_cache(maxsize=256)
def one_step(mechanism: DpEvent) -> Vector:
    """The Rényi divergences of one run of a mechanism, one per order; never understated by rounding."""
    accountant = RdpAccountant()
    try:
        with _without_warnings_about_single_orders():
            accountant.compose(mechanism)
    except UnsupportedEventError as error:
        raise InvalidValue(f"the rdp accountant cannot analyse {mechanism}") from error
    result: Vector = np.maximum(accountant.rdp, 0) + ROUNDING
    result.flags.writeable = False  # it is shared by all who ask
    return result


class Conversion:
    """Divergences to epsilon at one delta: the best over all orders, as dp-accounting converts them, but in one go."""

    def __init__(self, delta: float) -> None:
        self.offset = np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
        self._none = -math.log1p(-(delta**2))  # δ <= sqrt(1 - exp(-divergence)): below this, epsilon 0 holds

    def __call__(self, divergence: Vector) -> float:
        if divergence.min() < self._none:
            return 0.0
        return max(0.0, float((divergence + self.offset).min()))

    def at(self, order: float, divergence: Vector) -> float:
        """By one order alone."""
        return max(0.0, float((divergence + self.offset)[order == ORDERS].item()))


@contextmanager
def _without_warnings_about_single_orders() -> Iterator[None]:
    """dp-accounting warns once per order whose series does not converge; the other orders give a valid bound."""

    def converged(record: logging.LogRecord) -> bool:
        return "failed to converge" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(converged)
    try:
        yield
    finally:
        logger.removeFilter(converged)
