"""epsilon(): what releases cost together."""

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from dp_accounting import DpEvent

from hoarfrost.budget import _pld, _rdp
from hoarfrost.budget.events import Event, gathered, mechanisms, noiseless
from hoarfrost.errors import InvalidValue
from hoarfrost.validate import finite, positive, probability

Accountant = str
"""``"pld"``, ``"rdp"``, or ``"rdp@32"``: Rényi divergences of one order, fixed beforehand."""


def epsilon(events: Event | Iterable[Event], delta: float, accountant: Accountant = "pld") -> float:
    """The epsilon at which the releases together are (epsilon, delta)-differentially private.

    Args:
        events: one release, or any number of them, in any order.
        delta: the probability with which epsilon may fail to hold.
        accountant: "pld" composes privacy loss distributions: nearly exact. "rdp" composes Rényi divergences: some
            ten percent above, in hundredths of a second; many older papers report it. The former falls back to the
            latter where its numbers run out: for a delta below 1e-13 or so, or an epsilon of many hundreds.
            "rdp@32" uses one order alone, fixed beforehand: a privacy filter (see `privacy_filter`).

    Guarantees:
        An upper bound on the privacy loss of all the releases together, even if what each releases was chosen after
        seeing the earlier ones' outputs, for data sets of which one has one example that the other has not. Where even
        how noisy or how many the releases are was chosen so, only a fixed order bounds it. Exactly 0 if nothing was
        released, infinite if something was released without noise, never negative.

    >>> from hoarfrost.budget import Gaussian
    >>> training = Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=2000)
    >>> round(epsilon(training, delta=1e-5), 2), round(epsilon(training, delta=1e-5, accountant="rdp"), 2)
    (2.75, 3.0)
    >>> round(epsilon([training, Gaussian(noise_multiplier=5.0)], delta=1e-5), 2)
    2.89
    >>> epsilon([], delta=1e-5)
    0.0
    """
    return bound(events, delta, accountant)


def bound(events: Event | Iterable[Event], delta: float, accountant: Accountant, points: float = _pld.POINTS) -> float:
    """`epsilon`, on a grid of at most so many points: fewer are faster and overstate it more."""
    probability(delta=delta)
    check_accountant(accountant)
    counted = mechanisms(gathered(events))
    if not counted:
        return 0.0
    if any(map(noiseless, counted)):
        return math.inf
    return _composed(tuple(counted.items()), delta, accountant, points)


@lru_cache(maxsize=64)  # loops ask for epsilon after every step or statement, and most often nothing has changed
def _composed(counted: tuple[tuple[DpEvent, int], ...], delta: float, accountant: Accountant, points: float) -> float:
    if accountant == "pld":
        return max(0.0, _pld.epsilon(Counter(dict(counted)), delta, points))
    return max(0.0, _rdp.epsilon(Counter(dict(counted)), delta, _order(accountant)))


def privacy_filter(epsilon: float, delta: float) -> Accountant:
    """The accountant for a budget that is shared by people who look at results before they ask for more.

    Composition theorems for the best order, or for privacy loss distributions, want the noise and the number of the
    releases to be fixed beforehand. Divergences of one order add up however they are chosen (Feldman and Zrnic, 2021).

    >>> privacy_filter(epsilon=8.0, delta=1e-6)
    'rdp@4.4'
    """
    positive(epsilon=epsilon)
    finite(epsilon=epsilon)
    probability(delta=delta)
    return f"rdp@{_rdp.order_for(epsilon, delta):g}"


def check_accountant(accountant: str) -> None:
    """The accountant is one that exists."""
    if accountant != "pld":
        _order(accountant)


def _order(accountant: str) -> float | None:
    if accountant == "rdp":
        return None
    for order in _rdp.ORDERS.tolist():
        if accountant == f"rdp@{order:g}":
            return float(order)
    raise InvalidValue(f'accountant must be "pld", "rdp", or "rdp@" and an order such as 32, got {accountant!r}')
