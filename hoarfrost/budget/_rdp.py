"""Accounting by Rényi differential privacy: dp-accounting's divergences and its conversion to epsilon, as vectors."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
from dp_accounting import DpEvent, UnsupportedEventError
from dp_accounting.rdp import RdpAccountant

from hoarfrost.errors import InvalidValue

Vector = np.ndarray[tuple[int], np.dtype[np.float64]]

ORDERS: Vector = RdpAccountant().orders

# dp-accounting computes a divergence as the logarithm of a sum near 1, so it is off by some 1e-16 either way, and what
# comes out negative it converts to an epsilon of 0. Far more than that error, and far less than anyone can spend:
ROUNDING = 1e-14


def epsilon(mechanisms: Mapping[DpEvent, int], delta: float, order: float | None = None) -> float:
    """The epsilon of mechanisms, each run so many times: by the best order, or by the one given."""
    convert = Conversion(delta)
    total = divergence(mechanisms)
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
