"""What freezers release beside the steps: known by its name to a run, its checkpoints and its ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from hoarfrost import budget
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.base import Freezer

Releases = Mapping[str, budget.Release]


def made_by(freezer: Freezer) -> dict[str, budget.Release]:
    """What the freezer has released, by names that the same freezer gives again."""
    events = tuple(freezer.events())
    if not all(isinstance(event, budget.Release) for event in events):
        raise InvalidValue(f"events() of {freezer!r} are Gaussian(...) or Unprotected(...), and not {events!r}")
    return {f"{freezer!r} {number}": event for number, event in enumerate(events, 1)}


def together(one: Releases, other: Releases) -> dict[str, budget.Release]:
    """What two accounts tell: the same thing under the same name is one release.

    Something else under the same name gets a prime. The other account's primes are dropped first, since it may have met
    the same things in another order.
    """
    found = dict(one)
    for name, event in other.items():
        name = name.rstrip("'")
        while name in found and budget.as_gaussian(found[name]) != budget.as_gaussian(event):
            name += "'"
        found.setdefault(name, event)
    return found


def protected(events: Iterable[budget.Release]) -> tuple[budget.Gaussian, ...]:
    """Those that had noise. What had none, no noise elsewhere makes up for."""
    return tuple(event for event in map(budget.as_gaussian, events) if event.noise_multiplier > 0)


def booked(ledger: budget.Ledger, runs: Collection[str]) -> dict[str, budget.Release]:
    """What a ledger holds of these runs' freezers. What was admitted and never reserved was not released."""
    ours = [entry for entry in ledger.entries if entry.beside and entry.owner in runs and entry.reserved]
    found: dict[str, budget.Release] = {}
    for entry in ours:
        found = together(found, {entry.beside: entry.event})
    return found


def book(allowance: budget.Allowance, releases: Releases, paid: Releases) -> None:
    """Pays for what the ledger does not hold yet (`booked`), beside the allowance's run."""
    for name, event in together(paid, releases).items():
        cost = budget.as_gaussian(event)
        if cost.steps > 0 and name not in paid:
            with allowance.ledger.release(cost, what=budget.beside(allowance.run, name)):
                pass
