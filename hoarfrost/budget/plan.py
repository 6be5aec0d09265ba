"""What a run is going to release: the one place that turns epochs into steps and epsilon into noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hoarfrost import validate
from hoarfrost.budget.accountant import Accountant, check_accountant
from hoarfrost.budget.calibration import steps as steps_for
from hoarfrost.budget.events import Event, Gaussian, Release, Unprotected, gathered, noisy
from hoarfrost.budget.shares import PlannedRelease, PlannedShare, Shares, Wanted, with_noise_of
from hoarfrost.budget.statement import EXAMPLE, Statement, check_unit, counted
from hoarfrost.epochs import check_steps, rate_of, steps_of
from hoarfrost.errors import InvalidValue

NEEDS_LENGTH = "epsilon= needs to know how long the run is: give epochs= or steps="


@dataclass(frozen=True, kw_only=True)
class Plan:
    """N, sampling, steps, noise, delta, accountant, and the releases in addition to the steps. Made by `Plan.solve`.

    Args:
        size: N, the number of examples, or of people.
        sample_rate: q, the probability with which each of them takes part in a step.
        steps: how many steps the weights shall have in the end; None without a limit.
        taken: so many of them were taken before the plan was made.
        noise_multiplier: standard deviation of a step's noise over its sensitivity.
        epsilon: what the noise was calibrated for; None if the noise was stated instead.
        releases: in addition to the steps, with the step before which each is made.
        unit: what is added or removed: "one example" or "one person".
    """

    size: int
    sample_rate: float
    noise_multiplier: float
    delta: float
    steps: int | None = None
    taken: int = 0
    epsilon: float | None = None
    accountant: Accountant = "pld"
    releases: tuple[PlannedRelease, ...] = ()
    unit: str = EXAMPLE

    def __post_init__(self) -> None:
        validate.whole(size=self.size)
        validate.rate(sample_rate=self.sample_rate)
        validate.not_negative(noise_multiplier=self.noise_multiplier)
        validate.finite(noise_multiplier=self.noise_multiplier)
        validate.probability(delta=self.delta)
        check_accountant(self.accountant)
        check_unit(self.unit)
        validate.count(taken=self.taken)
        if self.steps is not None:
            check_steps(self.steps)
        if self.epsilon is not None:
            validate.positive(epsilon=self.epsilon)
            validate.finite(epsilon=self.epsilon)
            if self.steps is None:
                raise InvalidValue(NEEDS_LENGTH)

    @classmethod
    def solve(
        cls,
        *,
        size: int,
        delta: float,
        batch_size: float | None = None,
        sample_rate: float | None = None,
        epochs: float | None = None,
        steps: int | None = None,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        accountant: Accountant = "pld",
        releases: Iterable[Wanted] = (),
        solved: Sequence[Release] = (),
        taken: int = 0,
        spent: Event | Iterable[Event] = (),
        unit: str = EXAMPLE,
    ) -> Plan:
        """Turns epochs into steps, an expected batch into a sampling rate, and epsilon into noise.

        Args:
            batch_size, sample_rate: one of them.
            epochs, steps: at most one of them; needed to calibrate for ``epsilon``.
            epsilon, noise_multiplier: one of them.
            releases: further ones that the noise of the steps has to leave room for; or that are told what share of
                epsilon they may spend (`PlannedShare`).
            solved: with ``noise_multiplier``: what the releases were in a plan that was solved before.
            taken, spent: steps that the weights already have, and what was spent on them: the noise is calibrated for
                the remaining steps and the remaining budget.
            unit: "one example", or "one person": then N counts people.

        Guarantees:
            With ``epsilon``, the steps, the releases and what was spent cost at most epsilon together. What was
            released without noise is left out: no noise elsewhere makes up for it, and the statement says so.

        >>> plan = Plan.solve(size=60_000, batch_size=600, epochs=10, epsilon=3.0, delta=1e-5)
        >>> plan.steps, round(plan.noise_multiplier, 2)
        (1000, 0.81)
        >>> plan.statement().epsilon <= 3.0
        True
        """
        rate = rate_of(size, batch_size, sample_rate, counted(unit))
        validate.probability(delta=delta)
        if (epsilon is None) == (noise_multiplier is None):
            raise InvalidValue("give either epsilon= or noise_multiplier=")
        if epochs is not None and steps is not None:
            raise InvalidValue("give either epochs= or steps=, not both")
        if epsilon is not None and epochs is None and steps is None:
            raise InvalidValue(NEEDS_LENGTH)
        steps = steps_of(epochs, steps, rate)
        if steps is not None:
            check_steps(steps)
        validate.count(taken=taken)
        wanted = tuple(releases)
        if not all(isinstance(release, PlannedRelease | PlannedShare) for release in wanted):
            raise InvalidValue(f"releases are PlannedRelease(...) or PlannedShare(...), got {wanted!r}")
        if noise_multiplier is None:
            assert epsilon is not None
            assert steps is not None
            noise_multiplier, planned = Shares(
                epsilon=epsilon, delta=delta, sample_rate=rate, steps=max(1, steps - taken), accountant=accountant,
                spent=gathered(spent),
            ).solve(wanted)  # fmt: skip
        else:
            planned = with_noise_of(wanted, solved)
        return cls(
            size=size, sample_rate=rate, noise_multiplier=noise_multiplier, delta=delta, steps=steps, taken=taken,
            epsilon=epsilon, accountant=accountant, releases=planned, unit=unit,
        )  # fmt: skip

    @property
    def expected_batch(self) -> float:
        """q·N: a real number and a public constant, which clipped sums are divided by."""
        return self.sample_rate * self.size

    @property
    def unprotected(self) -> tuple[Unprotected, ...]:
        """Releases without noise: with any of them, no epsilon holds."""
        return tuple(release.event for release in self.releases if isinstance(release.event, Unprotected))

    @property
    def delta_advice(self) -> str | None:
        """What to say about a delta that is too large for so many examples, or people.

        >>> print(Plan(size=1500, sample_rate=0.1, noise_multiplier=1.0, delta=1e-2).delta_advice)
        delta 0.01 is not below 1/1500, one over the number of examples: it would allow one of them to be published \
outright
        """
        if self.delta * self.size < 1:
            return None
        return (
            f"delta {self.delta:g} is not below 1/{self.size}, one over the number of {counted(self.unit)}: it would "
            "allow one of them to be published outright"
        )

    def event(self, steps: int) -> Gaussian:
        """What so many steps of this plan release.

        >>> plan = Plan(size=100, sample_rate=0.1, noise_multiplier=1.0, delta=1e-5)
        >>> print(plan.event(3))
        3 steps at sampling rate 0.1 with noise multiplier 1
        """
        return Gaussian(noise_multiplier=self.noise_multiplier, sample_rate=self.sample_rate, steps=steps)

    def steps_within(self, epsilon: float, spent: Event | Iterable[Event] = ()) -> int:
        """How many steps of this plan stay within ``epsilon``, after what was spent with noise."""
        others = noisy(gathered(spent))
        return steps_for(epsilon, self.delta, self.sample_rate, self.noise_multiplier, self.accountant, after=others)

    def statement(self, spent: Event | Iterable[Event] = (), steps: int | None = None) -> Statement:
        """What everything will have cost in the end: what was spent, ``steps`` more (the rest by default), releases."""
        steps = steps if steps is not None else max(0, (self.steps or 0) - self.taken)
        events = (*gathered(spent), self.event(steps), *(release.event for release in self.releases))
        return Statement.of(events, self.delta, self.accountant, unit=self.unit)
