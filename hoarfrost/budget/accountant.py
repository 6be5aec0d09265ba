"""epsilon(): what releases cost together."""

import math
from collections.abc import Iterable
from typing import Literal, get_args

from hoarfrost.budget import _pld, _rdp
from hoarfrost.budget.events import Event, gathered, mechanisms, noiseless
from hoarfrost.errors import InvalidValue
from hoarfrost.validate import probability

Accountant = Literal["pld", "rdp"]


def epsilon(events: Event | Iterable[Event], delta: float, accountant: Accountant = "pld") -> float:
    """The epsilon at which the releases together are (epsilon, delta)-differentially private.

    Args:
        events: one release, or any number of them, in any order.
        delta: the probability with which epsilon may fail to hold.
        accountant: "pld" composes privacy loss distributions: nearly exact. "rdp" composes Rényi divergences: some
            ten percent above, in hundredths of a second; many older papers report it. The former falls back to the
            latter where its numbers run out: for a delta below 1e-13 or so, or an epsilon of many hundreds.

    Guarantees:
        An upper bound on the privacy loss of all the releases together, even if each was chosen after seeing the
        earlier ones' outputs, for data sets of which one has one example that the other has not. Exactly 0 if
        nothing was released, infinite if something was released without noise, never negative.

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
    return max(0.0, _pld.epsilon(counted, delta, points) if accountant == "pld" else _rdp.epsilon(counted, delta))


def check_accountant(accountant: str) -> None:
    """The accountant is one that exists."""
    if accountant not in get_args(Accountant):
        raise InvalidValue(f'accountant must be "pld" or "rdp", got {accountant!r}')
