"""Releases that are told what share of epsilon they may spend: how noisy they then are, and how noisy the steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hoarfrost import validate
from hoarfrost.budget.accountant import Accountant
from hoarfrost.budget.calibration import noise_multiplier as noise_multiplier_for
from hoarfrost.budget.events import LEAST_NOISE, MOST_NOISE, Event, Gaussian, Release, noisy
from hoarfrost.errors import BudgetSpent, InvalidValue


@dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """A release in addition to the steps.

    Args:
        event: what is released, and how noisily.
        what: what it is for, in words for whoever reads the ledger. Not its identity: see `Account.release`.
        step: it is made before the batch of this step (from 0) is drawn.

    >>> print(PlannedRelease(event=Gaussian(noise_multiplier=5.0), what="layer scores"))
    layer scores: 1 step on all examples with noise multiplier 5
    """

    event: Release
    what: str
    step: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.event, Release):
            raise InvalidValue(f"a planned release is Gaussian(...) or Unprotected(...), got {self.event!r}")
        _check_words(self.what, self.step)

    def __str__(self) -> str:
        return f"{self.what}: {self.event}"


@dataclass(frozen=True, kw_only=True)
class PlannedShare:
    """A noisy sum that is told what it may cost, and not how noisy it is: `Plan.solve` finds that.

    All of a plan with the same share and sampling rate have the same noise, and spend the share together.

    Args:
        share: r: the steps alone cost (1 - r)·epsilon, and everything together costs epsilon, all at the plan's delta.
            "auto": of all ways to spend epsilon, the one with the least noise variance, added up over all steps and
            these releases (as the central limit theorem says; 1 or 2 % more than the least were seen).
        sample_rate: the probability with which each example takes part.
        what: as in `PlannedRelease`.
        step: as in `PlannedRelease`.
    """

    share: float | Literal["auto"]
    sample_rate: float
    what: str
    step: int = 0

    def __post_init__(self) -> None:
        check_share(share=self.share)
        validate.rate(sample_rate=self.sample_rate)
        _check_words(self.what, self.step)

    def with_noise(self, noise_multiplier: float) -> PlannedRelease:
        """The release, with so much noise."""
        event = Gaussian(noise_multiplier=noise_multiplier, sample_rate=self.sample_rate)
        return PlannedRelease(event=event, what=self.what, step=self.step)


Wanted = PlannedRelease | PlannedShare
Group = tuple[float | Literal["auto"], float]  # share and sampling rate


def check_share(**values: object) -> None:
    """Refuses what is no share of a budget."""
    for name, value in values.items():
        if value == "auto":
            continue
        validate.positive(**{name: value})
        if value >= 1:  # type: ignore[operator] # a number
            raise InvalidValue(f'{name} is a share of epsilon above 0 and below 1, or "auto", got {value!r}')


def _check_words(what: object, step: object) -> None:
    if not isinstance(what, str):
        raise InvalidValue(f"what a release is for is a text, got {what!r}")
    validate.count(step=step)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Finds the noise of steps and releases that have one epsilon together."""

    epsilon: float
    delta: float
    sample_rate: float
    steps: int
    accountant: Accountant
    spent: tuple[Event, ...]  # before

    def solve(self, wanted: Sequence[Wanted]) -> tuple[float, tuple[PlannedRelease, ...]]:
        """The noise multiplier of the steps, and the releases with theirs."""
        groups: dict[Group, int] = {}
        for each in wanted:
            if isinstance(each, PlannedShare):
                groups[each.share, each.sample_rate] = groups.get((each.share, each.sample_rate), 0) + 1
        automatic = [share == "auto" for share, _ in groups]
        if any(automatic) and not all(automatic):
            raise InvalidValue('releases are planned with budget="auto" and with a stated share: choose one for all')
        others = noisy((*self.spent, *(each.event for each in wanted if isinstance(each, PlannedRelease))))
        steps, found = self._together(groups, others) if any(automatic) else self._in_turn(groups, others)
        return steps, tuple(
            each if isinstance(each, PlannedRelease) else each.with_noise(found[each.share, each.sample_rate])
            for each in wanted
        )

    def _in_turn(self, groups: dict[Group, int], others: tuple[Event, ...]) -> tuple[float, dict[Group, float]]:
        left = 1.0 - sum(float(share) for share, _ in groups)
        if left <= 0:
            raise InvalidValue("the releases' shares of epsilon add up to 1 or more: nothing is left for the steps")
        try:
            steps = self._noise(left, self.sample_rate, self.steps, others)
        except BudgetSpent as error:
            if not groups:
                raise
            raise BudgetSpent(
                f"of epsilon {self.epsilon:g}, {left:g} are for the steps, and other releases spend that: {error}"
            ) from error
        spent = (*others, Gaussian(noise_multiplier=steps, sample_rate=self.sample_rate, steps=self.steps))
        found: dict[Group, float] = {}
        for number, ((share, rate), count) in enumerate(groups.items(), 1):
            # Of the last one exactly all: 1 is not what rounded shares add up to.
            left = 1.0 if number == len(groups) else left + float(share)
            found[share, rate] = self._noise(left, rate, count, spent)
            spent = (*spent, Gaussian(noise_multiplier=found[share, rate], sample_rate=rate, steps=count))
        return steps, found

    def _noise(self, share: float, rate: float, count: int, spent: tuple[Event, ...]) -> float:
        return noise_multiplier_for(share * self.epsilon, self.delta, rate, count, self.accountant, after=spent)

    def _together(self, groups: dict[Group, int], others: tuple[Event, ...]) -> tuple[float, dict[Group, float]]:
        def noise_of(rate: float, steps: float) -> float:
            return least_in_all(steps, rate / self.sample_rate)

        def releases(steps: float) -> Iterator[Event]:
            for (_, rate), count in groups.items():
                yield Gaussian(noise_multiplier=noise_of(rate, steps), sample_rate=rate, steps=count)

        steps = noise_multiplier_for(
            self.epsilon, self.delta, self.sample_rate, self.steps, self.accountant, after=others, also=releases
        )
        return steps, {group: noise_of(group[1], steps) for group in groups}


def least_in_all(noise: float, ratio: float) -> float:
    """The noise of a release beside that of a step with which their variances add up to the least at what they cost.

    A release with noise multiplier s at sampling rate q costs about q²·(exp(s⁻²) - 1), the central limit theorem says;
    what costs how much is not taken from there, only how it is divided. The sum of s² over all releases at a given cost
    is least where s⁴·exp(-s⁻²) / q² is the same for all of them: for much noise, s² in proportion to q.

    Args:
        noise: of a step.
        ratio: the release's sampling rate over that of a step.

    >>> round(least_in_all(100.0, ratio=4.0)), least_in_all(1.5, ratio=1.0)
    (200, 1.5)
    """
    if ratio == 1:
        return noise

    def side(s: float) -> float:
        return 4 * math.log(s) - 1 / min(s, MOST_NOISE) ** 2

    wanted = side(noise) + 2 * math.log(ratio)
    low, high = LEAST_NOISE, 2 * MOST_NOISE
    for _ in range(100):  # of bisection, in logarithms: to the last bit
        middle = math.sqrt(low * high)
        low, high = (middle, high) if side(middle) < wanted else (low, middle)
    return high


def with_noise_of(wanted: Iterable[Wanted], found: Sequence[Release]) -> tuple[PlannedRelease, ...]:
    """The releases, where ``found`` says what they were in a plan that was solved before."""
    planned = tuple(wanted)
    if len(found) != len(planned):
        shares = [each for each in planned if isinstance(each, PlannedShare)]
        if shares:
            raise InvalidValue(
                f"{shares[0].what} is planned as a share of epsilon, and with noise_multiplier= there is no epsilon to "
                "take it from: state its own noise (Frost(noise=...)), or give epsilon="
            )
        return tuple(each for each in planned if isinstance(each, PlannedRelease))
    return tuple(map(_noisy, planned, found))


def _noisy(wanted: Wanted, found: Release) -> PlannedRelease:
    if isinstance(wanted, PlannedRelease):
        return wanted
    if not isinstance(found, Gaussian) or (found.sample_rate, found.steps) != (wanted.sample_rate, 1):
        raise InvalidValue(f"{wanted.what} was planned as something else before: {found}")
    return wanted.with_noise(found.noise_multiplier)
