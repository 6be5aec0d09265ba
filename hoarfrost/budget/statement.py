"""What may be said about a run: epsilon together with everything without which the number means nothing."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal

from hoarfrost.budget.accountant import Accountant, check_accountant
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.events import Event, Unprotected, by_kind, gathered
from hoarfrost.errors import InvalidValue
from hoarfrost.validate import not_negative, probability

SEEDED = "This run was seeded: its noise can be drawn again and taken off. It must not be released."
ALONE = "This epsilon is this run's alone: runs on the same data add up, unless one ledger holds them all."
EXAMPLE, PERSON = "one example", "one person"
"""What is added or removed: the units that a guarantee can be for."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """Epsilon, delta, how they were computed, and for what.

    >>> from hoarfrost.budget import Gaussian
    >>> print(Statement.of(Gaussian(noise_multiplier=1.54, sample_rate=0.02, steps=2000), delta=1e-5))
    epsilon 2.754 at delta 1e-05 (pld accountant)
    for one example: add or remove one
    2000 steps at sampling rate 0.02 with noise multiplier 1.54
    """

    epsilon: float
    delta: float
    accountant: Accountant
    releases: tuple[Event, ...]
    seeded: bool = False
    relation: str = "add or remove one"
    unit: str = EXAMPLE
    stages: tuple[tuple[Event, ...], tuple[Event, ...]] | None = None  # the releases before this stage, and in it
    notes: tuple[str, ...] = ()  # what else is to be said, as far as epsilon does not depend on it

    def __post_init__(self) -> None:
        not_negative(epsilon=self.epsilon)
        probability(delta=self.delta)
        check_accountant(self.accountant)

    @classmethod
    def of(
        cls,
        events: Event | Iterable[Event],
        delta: float,
        accountant: Accountant = "pld",
        *,
        seeded: bool = False,
        unit: str = EXAMPLE,
        before: Iterable[Event] = (),
    ) -> "Statement":
        """The statement about these releases, and those that earlier stages of the same weights made ``before``."""
        own, earlier = gathered(events), gathered(before)
        releases = by_kind((*earlier, *own)) if earlier else own
        return cls(
            epsilon=epsilon_of(releases, delta, accountant),
            delta=delta,
            accountant=accountant,
            releases=releases,
            seeded=seeded,
            unit=unit,
            stages=(earlier, own) if earlier else None,
        )

    @property
    def private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    def lines(self) -> tuple[str, ...]:
        """The statement in words. Epsilon is rounded up."""
        if self.private:
            first = f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} ({self.accountant} accountant)"
        else:
            why = [str(event) for event in self.releases if isinstance(event, Unprotected)]
            first = f"not private ({'; '.join(why) or 'no noise'})"
        warning = (SEEDED,) if self.seeded else ()
        unit = f"for {self.unit}: {self.relation}"
        return (first, *warning, unit, *self._told_releases(), *self.notes)

    def _told_releases(self) -> tuple[str, ...]:
        if self.stages is None:
            return tuple(map(str, self.releases))
        before, now = ("; ".join(map(str, events)) or "nothing yet" for events in self.stages)
        alone = epsilon_of(self.stages[1], self.delta, self.accountant)
        cost = f" (epsilon {rounded_up(alone)} of its own)" if alone and math.isfinite(alone) else ""
        return f"in earlier stages: {before}", f"in this stage: {now}{cost}"

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def as_dict(self) -> dict[str, object]:
        """The statement as JSON can hold it, which knows no infinity: epsilon is null if nothing is private.

        >>> facts = Statement(epsilon=float("inf"), delta=1e-5, accountant="pld", releases=()).as_dict()
        >>> facts["epsilon"], facts["private"]
        (None, False)
        """
        return {
            "epsilon": self.epsilon if self.private else None,
            "private": self.private,
            "delta": self.delta,
            "accountant": self.accountant,
            "relation": self.relation,
            "unit": self.unit,
            "seeded": self.seeded,
            "warning": SEEDED if self.seeded else None,
            "releases": [event.as_dict() for event in self.releases],
            **({"before": [event.as_dict() for event in self.stages[0]]} if self.stages else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
        }


def rounded_up(epsilon: float) -> str:
    """Four digits, never fewer than the number is worth.

    >>> rounded_up(2.75301), rounded_up(math.inf)
    ('2.754', 'inf')
    """
    if math.isinf(epsilon):
        return "inf"
    return f"{float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(Decimal(epsilon))):g}"


def check_unit(unit: object) -> None:
    """Refuses what is not a unit."""
    if unit not in (EXAMPLE, PERSON):
        raise InvalidValue(f'unit is "{EXAMPLE}" or "{PERSON}", got {unit!r}')


def counted(unit: str) -> str:
    """What there are several of.

    >>> counted("one person")
    'people'
    """
    return "people" if unit == PERSON else "examples"
