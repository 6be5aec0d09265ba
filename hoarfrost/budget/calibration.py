"""The inverse questions: how much noise, or how many steps, a budget allows."""

import math
from collections.abc import Callable, Iterable
from functools import partial

from dp_accounting import get_sigma_gaussian

from hoarfrost.budget._pld import POINTS
from hoarfrost.budget._search import Search
from hoarfrost.budget.accountant import Accountant, bound
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.events import LEAST_NOISE, MOST_NOISE, Event, Gaussian, gathered
from hoarfrost.epochs import MOST_STEPS
from hoarfrost.errors import BudgetSpent
from hoarfrost.validate import finite, positive, rate, whole

ROUGH = 1e4  # grid points: a search on so few gives a good place to start the one that counts


def noise_multiplier(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: Accountant = "pld",
    after: Event | Iterable[Event] = (),
    also: Callable[[float], Iterable[Event]] = lambda noise_multiplier: (),
) -> float:
    """The smallest noise multiplier with which `steps` steps stay within `epsilon`.

    Args:
        epsilon, delta: the budget.
        sample_rate: the probability with which each example takes part in a step.
        steps: how many steps will be taken.
        accountant: "pld" or "rdp", as for `epsilon`.
        after: releases that share the budget: made before, or planned besides these steps.
        also: further ones whose noise follows from that of the steps, and grows with it.

    Guarantees:
        `epsilon` of the steps with the returned noise, of `after` and of `also` together is at most the budget, not by
        a rounding error above it. The noise is not wasteful either: a thousandth less of it would exceed the budget.

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

    def cost(sigma: float, points: float) -> float:
        planned = Gaussian(noise_multiplier=sigma, sample_rate=sample_rate, steps=steps)
        return bound((*others, *also(sigma), planned), delta, accountant, points)

    def search(guess: float, points: float, tolerance: float) -> float | None:
        return Search(
            cost=partial(cost, points=points),
            budget=epsilon,
            cheapest=MOST_NOISE,
            dearest=LEAST_NOISE,
            tolerance=tolerance,
        ).start(guess)

    spent = epsilon_of(others, delta, accountant)
    if spent < epsilon:
        # The central limit theorem's answer: good for much noise, near enough to start from for little.
        per_step = 1 / (get_sigma_gaussian(epsilon - spent, delta) * math.sqrt(steps))
        guess = 1 / per_step if sample_rate == 1 else math.log1p((per_step / sample_rate) ** 2) ** -0.5
        rough = search(guess, ROUGH, tolerance=1e-2)
        found = search(rough or guess, POINTS, tolerance=2e-4)
        if found is not None:
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
    2338
    """
    positive(epsilon=epsilon)
    finite(epsilon=epsilon)
    others = gathered(after)

    def cost(count: float, points: float) -> float:
        planned = Gaussian(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=int(count))
        return bound((*others, planned), delta, accountant, points)

    def search(guess: float, points: float, tolerance: float) -> float | None:
        return Search(
            cost=partial(cost, points=points),
            budget=epsilon,
            cheapest=1,
            dearest=MOST_STEPS,
            tolerance=tolerance,
            whole=True,
        ).start(guess)

    spent = epsilon_of(others, delta, accountant)
    if spent >= epsilon or cost(1, POINTS) > epsilon:
        return 0
    inverse = noise_multiplier**-2  # not 0: a step without noise was beyond the budget
    per_step = inverse if sample_rate == 1 else sample_rate**2 * math.expm1(min(inverse, 700))
    guess = get_sigma_gaussian(epsilon - spent, delta) ** -2 / per_step
    rough = search(guess, ROUGH, tolerance=1e-2)
    return int(search(rough or guess, POINTS, tolerance=0) or 0)
