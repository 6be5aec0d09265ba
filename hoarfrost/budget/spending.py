"""What runs have spent on the same weights: of two accounts of the same steps, the larger counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hoarfrost.budget.events import Gaussian


class Run(NamedTuple):
    """A run as accounts know it: another noise under the same name is another run."""

    name: str
    noise_multiplier: float
    sample_rate: float


Spending = Mapping[Run, Gaussian]


def spending(run: str, event: Gaussian) -> dict[Run, Gaussian]:
    """What one run has spent.

    >>> spending("mine", Gaussian(noise_multiplier=2.0, steps=3))
    {Run(name='mine', noise_multiplier=2.0, sample_rate=1.0): Gaussian(noise_multiplier=2.0, sample_rate=1.0, steps=3)}
    """
    return {Run(run, event.noise_multiplier, event.sample_rate): event}


def merged(*accounts: Spending) -> dict[Run, Gaussian]:
    """What several accounts tell together.

    >>> three, five = (spending("mine", Gaussian(noise_multiplier=2.0, steps=steps)) for steps in (3, 5))
    >>> [event.steps for event in merged(three, five, spending("another", Gaussian(noise_multiplier=2.0))).values()]
    [5, 1]
    """
    found: dict[Run, Gaussian] = {}
    for account in accounts:
        for run, event in account.items():
            found[run] = max(found.get(run, event), event, key=lambda each: each.steps)
    return found


def names(spent: Spending) -> set[str]:
    """The names of the runs.

    >>> names(spending("mine", Gaussian(noise_multiplier=2.0)))
    {'mine'}
    """
    return {run.name for run in spent}
