"""How far a run goes: what it may still be charged for, by its plan, its target epsilon and its ledger."""

from __future__ import annotations

from collections.abc import Callable

from hoarfrost.budget.events import Event, Release, Unprotected, by_kind, noisy
from hoarfrost.budget.plan import Plan
from hoarfrost.budget.spent import Spent
from hoarfrost.budget.statement import Statement
from hoarfrost.errors import BudgetSpent


class Limits(Spent):
    """What an `Account` can be asked about steps and releases that are still to come."""

    def __init__(self, plan: Plan, *, seeded: bool) -> None:
        super().__init__(plan, seeded=seeded)
        self.steps_taken = 0  # that the weights have behind them, of this stage
        self.on_change: Callable[[], None] = nothing  # called when more is known than before
        self._made: list[str | None] = [None] * len(plan.releases)
        self._open = 0  # reserved by this process, and neither taken nor known to be lost

    def planned(self) -> Statement:
        """What will have been spent when all steps are taken and all planned releases are made."""
        assert self.steps is not None
        more = self.plan.event(max(0, self.steps - self.next_step - self._in_hand))
        return self._statement(more, *self._pending())

    def before_this_run(self) -> tuple[Event, ...]:
        """Everything of this stage but this run's own steps; planned releases still to come count as made."""
        known = self._known
        known.counters.pop(self.id)
        return by_kind((*known.events(earlier=False), *self._pending()))

    def steps_within(self, epsilon: float) -> int:
        """How many steps the weights will have behind them when so much is spent."""
        return max(0, self.plan.steps_within(epsilon, self.before_this_run()) + self._offset)

    @property
    def next_step(self) -> int:
        """The number (from 0) of the step whose batch is drawn next."""
        return self.steps_taken + self._open

    # The inside.

    @property
    def _in_hand(self) -> int:
        """Charged, and still to be taken."""
        return 0 if self.allowance is None else self.allowance.in_hand

    @property
    def _consumed(self) -> int:
        """Of this run's steps, those that nobody can take any more: drawn, or lost after they were reserved."""
        return self.charged - self._in_hand

    @property
    def _target(self) -> float | None:
        """The epsilon to stay within; None if none was asked for, or if something was released without noise."""
        own = self.stage_events()
        return self.plan.epsilon if len(noisy(own)) == len(own) else None

    def _pending(self, but: int | None = None) -> tuple[Release, ...]:
        """Planned releases that are still to come, without the one of the number given."""
        planned = (r.event for n, r in enumerate(self.plan.releases) if self._made[n] is None and n != but)
        return tuple(event for event in planned if not isinstance(event, Unprotected))

    @property
    def _as_planned(self) -> bool:
        """Whether nothing is known of this stage but what the noise was calibrated for."""
        plan, known = self.plan, self._known
        made = {id: r.event for id, r in zip(self._made, plan.releases, strict=True) if id is not None}
        releases = {id: event for id, event in known.releases.items() if id not in known.earlier}
        if plan.steps is None or plan.taken or releases != made or self._charged_in_stage > plan.steps:
            return False
        own = (event for id, event in known.counters.items() if event.steps and id not in known.earlier)
        return all(event == plan.event(event.steps) for event in own)

    def _update(self) -> None:
        """After more became known: how far the run goes."""
        self._offset = self.steps_taken + self._open - self._consumed  # what was lost, or taken by others
        self._most = self._most_steps()
        self.steps: int | None = None
        if self.plan.steps is not None:
            wanted = self.plan.steps - self.steps_taken
            if self._most is not None:
                wanted = min(wanted, self._most - self._consumed + self._open)
            if self.allowance is not None:
                wanted = min(wanted, self.allowance.left + self._open)
            self.steps = self.steps_taken + max(0, wanted)
        self.on_change()

    def _most_steps(self) -> int | None:
        """How many steps this run may be charged for in all, to stay within the target; None without one."""
        target, plan = self._target, self.plan
        if target is None or plan.steps is None:
            return None
        if self._as_planned:
            return max(0, plan.steps - (self._charged_in_stage - self.charged))
        before, wanted = self.before_this_run(), self._consumed + max(0, plan.steps - self.steps_taken)
        if self._cost((*before, plan.event(max(self.charged, wanted)))) <= target:
            return wanted
        return min(wanted, plan.steps_within(target, before))

    def _refuse_beyond_target(self, event: Release, number: int | None) -> None:
        if self._target is None or (number is not None and self._made[number] is None and self._as_planned):
            return
        cost = self._cost((*self.stage_events(), *self._pending(but=number), event))
        if cost > self._target:
            raise BudgetSpent(
                f"{event} would bring this run to epsilon {cost:.4g}, above the {self._target:g} that was planned"
            )


def nothing() -> None:
    """Tells nobody."""
