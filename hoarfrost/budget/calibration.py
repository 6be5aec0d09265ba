"""The inverse questions: how much noise, or how many steps, a budget allows."""

import math
from collections.abc import Iterable

from dp_accounting import get_sigma_gaussian

from hoarfrost.budget._search import Search
from hoarfrost.budget.accountant import Accountant
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.events import LEAST_NOISE, MOST_NOISE, Event, Gaussian, gathered
from hoarfrost.errors import BudgetSpent
from hoarfrost.validate import finite, positive, rate, whole

TOLERANCE = 2e-4  # of the noise multiplier
MOST_STEPS = 10**9


def noise_multiplier(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: Accountant = "pld",
    after: Event | Iterable[Event] = (),
) -> float:
    """The smallest noise multiplier with which `steps` steps stay within `epsilon`.

    Args:
        epsilon, delta: the budget.
        sample_rate: the probability with which each example takes part in a step.
        steps: how many steps will be taken.
        accountant: "pld" or "rdp", as for `epsilon`.
        after: releases that share the budget: made before, or planned besides these steps.

    Guarantees:
        `epsilon` of the steps with the returned noise and of `after` together is at most the budget, not by a rounding
        error above it. Noise smaller by one part in a thousand exceeds it.

    >>> sigma = noise_multiplier(epsilon=3.0, delta=1e-5, sample_rate=0.02, steps=2000)
    >>> round(sigma, 2)
    1.45
    >>> epsilon_of(Gaussian(noise_multiplier=sigma, sample_rate=0.02, steps=2000), delta=1e-5) <= 3.0
    True
    """
    positive(epsilon=epsilon)
    finite(epsilon=epsilon)
    rate(sample_rate=sample_rate)
    whole(steps=steps)
    others = gathered(after)

    def cost(sigma: float) -> float:
        planned = Gaussian(noise_multiplier=sigma, sample_rate=sample_rate, steps=steps)
        return epsilon_of((planned, *others), delta, accountant)

    def between(sigma: float, enough: float, too_little: float) -> float | None:
        if enough <= (1 + TOLERANCE) * too_little:
            return None
        margin = 1 + TOLERANCE / 2  # so that a good guess closes the gap from the other side
        return min(max(sigma, too_little * margin), enough / margin)

    spent = epsilon_of(others, delta, accountant)
    if spent < epsilon:
        # The central limit theorem's answer: good for much noise, near enough to start from for little.
        per_step = 1 / (get_sigma_gaussian(epsilon - spent, delta) * math.sqrt(steps))
        guess = 1 / per_step if sample_rate == 1 else math.log1p((per_step / sample_rate) ** 2) ** -0.5
        search = Search(cost, epsilon, cheapest=MOST_NOISE, dearest=LEAST_NOISE)
        if (found := search.from_guess(guess, between)) is not None:
            return found
    raise BudgetSpent(
        f"no noise keeps {steps} more steps within epsilon {epsilon}: the other releases cost {spent:.4g} at delta "
        f"{delta:g}; allow a larger epsilon, or start from weights that have spent less"
    )


def steps(
    epsilon: float,
    delta: float,
    sample_rate: float,
    noise_multiplier: float,
    accountant: Accountant = "pld",
    after: Event | Iterable[Event] = (),
) -> int:
    """The largest number of steps that stays within `epsilon`; 0 if not even one does.

    Args:
        epsilon, delta: the budget.
        sample_rate: the probability with which each example takes part in a step.
        noise_multiplier: standard deviation of the noise over the sensitivity.
        accountant: "pld" or "rdp", as for `epsilon`.
        after: releases that share the budget: made before, or planned besides these steps.

    Guarantees:
        `epsilon` of so many steps and of `after` together is at most the budget, and one step more exceeds it. More
        than a billion steps are never promised.

    >>> steps(epsilon=3.0, delta=1e-5, sample_rate=0.02, noise_multiplier=1.54)
    2340
    """
    positive(epsilon=epsilon)
    finite(epsilon=epsilon)
    one = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate)
    others = gathered(after)

    def cost(count: float) -> float:
        planned = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=int(count))
        return epsilon_of((planned, *others), delta, accountant)

    def between(count: float, few: float, many: float) -> float | None:
        return None if many - few <= 1 else min(max(round(count), few + 1), many - 1)

    spent = epsilon_of(others, delta, accountant)
    if spent >= epsilon or epsilon_of((one, *others), delta, accountant) > epsilon:
        return 0
    inverse = noise_multiplier**-2
    per_step = inverse if sample_rate == 1 else sample_rate**2 * math.expm1(min(inverse, 700))
    guess = round(get_sigma_gaussian(epsilon - spent, delta) ** -2 / per_step)
    found = Search(cost, epsilon, cheapest=1, dearest=MOST_STEPS, whole=True).from_guess(guess, between)
    return int(found or 0)
