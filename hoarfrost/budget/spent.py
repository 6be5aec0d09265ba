"""What was spent on some weights, as far as one account knows: what can be asked of it, and nothing that changes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace

from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.allowance import Allowance
from hoarfrost.budget.charges import Charges, larger
from hoarfrost.budget.events import Event, Gaussian, Release, by_kind
from hoarfrost.budget.plan import Plan
from hoarfrost.budget.statement import ALONE, Statement


class Spent:
    """What an `Account` can be asked: counts, events, epsilon and the statement."""

    def __init__(self, plan: Plan, *, seeded: bool) -> None:
        self.plan, self.seeded = plan, seeded
        self.allowance: Allowance | None = None  # what a ledger admitted for the steps
        self._charges = Charges(releases={new_id(): event for event in plan.unprotected})
        self._seeded_before = False  # steps that others took for these weights can be repeated from a seed
        self._counter = new_id()  # of steps that this object reserves without a ledger

    @property
    def id(self) -> str:
        """Of the counter that the next step is charged to."""
        return self._counter if self.allowance is None else self.allowance.entry.id

    @property
    def counters(self) -> dict[str, Gaussian]:
        """The steps charged for these weights, by the id of their counter."""
        return self._known.counters

    @property
    def releases(self) -> dict[str, Release]:
        """Those in addition to the steps, by their id."""
        return self._charges.releases

    @property
    def charged(self) -> int:
        """How many steps this run was charged for: all that were reserved, used or not."""
        return self.counters[self.id].steps

    @property
    def charged_in_all(self) -> int:
        """How many steps were charged for these weights, by all runs and in all stages."""
        return sum(event.steps for event in self.counters.values())

    def events(self) -> tuple[Event, ...]:
        """The releases made so far, steps of one kind added up."""
        return self._known.events()

    def stage_events(self) -> tuple[Event, ...]:
        """Those of this stage: what the plan's epsilon is for."""
        return self._known.events(earlier=False)

    def epsilon(self) -> float:
        """What was spent so far, at the plan's delta: 0 before the first step, infinite without noise."""
        return self._cost(self.events())

    def statement(self) -> Statement:
        """What was spent so far, in words."""
        return self._statement()

    @property
    def _known(self) -> Charges:
        """What is known now; with a ledger also of steps that others have reserved under this run's name."""
        known = self._charges.copy()
        own = self.plan.event(0) if self.allowance is None else self.allowance.entry.spent
        known.counters[self.id] = larger(known.counters.get(self.id, own), own)
        return known

    def _cost(self, events: Iterable[Event]) -> float:
        return epsilon_of(events, self.plan.delta, self.plan.accountant)

    def _statement(self, *more: Event) -> Statement:
        found = Statement.of(
            by_kind((*self.stage_events(), *more)), self.plan.delta, self.plan.accountant,
            before=self._known.events(earlier=True), seeded=self.seeded or self._seeded_before, unit=self.plan.unit,
        )  # fmt: skip
        return found if self.allowance is not None else replace(found, notes=(ALONE,))

    @property
    def _charged_in_stage(self) -> int:
        known = self._known
        return sum(event.steps for id, event in known.counters.items() if id not in known.earlier)


def new_id() -> str:
    """Never the same twice, wherever it is drawn."""
    return secrets.token_hex(16)
