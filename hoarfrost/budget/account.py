"""What was planned, reserved, charged, lost and spent before: all that is known about the cost of one model's weights.

Steps are counted by *counters*. Every account that reserves steps without a ledger has a counter of its own, and so has
every run that a ledger admitted; each has an id that was drawn at random, and only ever grows. What two accounts know
of the same weights is put together by taking the larger count for each id: the same steps are never counted twice, and
different steps are never taken for the same ones, whatever the runs are called, however often and in whichever order
snapshots and ledgers are read. Releases in addition to the steps have ids in the same way.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hoarfrost import validate
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.allowance import Allowance
from hoarfrost.budget.entry import Entry
from hoarfrost.budget.events import (
    Event,
    Gaussian,
    Release,
    Unprotected,
    as_gaussian,
    by_kind,
    noisy,
)
from hoarfrost.budget.ledger import Ledger
from hoarfrost.budget.plan import Plan
from hoarfrost.budget.snapshot import Counters, Snapshot
from hoarfrost.budget.statement import PERSON, Statement
from hoarfrost.errors import BudgetSpent, InvalidValue, LedgerDamaged


class Account:
    """Counts what a run releases, before it releases it. Knows nothing of models.

    A step is reserved before its batch is drawn (`reserve`), taken when its noisy sum is about to exist (`charge`),
    and committed when it is done (`commit`). A release in addition to the steps is made inside `release`.

    Args:
        plan: what the run is going to release.
        run: its name in a ledger.
        seeded: its noise can be repeated from a seed.

    Guarantees:
        What was released was charged before. Nothing is refunded: whatever is reserved counts as spent, used or not,
        and restoring an older snapshot lowers nothing. If the noise was calibrated for an epsilon, everything charged
        for these weights that this account knows of stays within it, unless it exceeded it before. A copy, and the
        child of a fork, count for themselves: what was reserved, and is in hand, stays with the first.

    >>> plan = Plan.solve(size=1000, batch_size=100, steps=20, epsilon=2.0, delta=1e-5)
    >>> account = Account(plan)
    >>> for _ in range(3):
    ...     account.reserve()
    ...     account.charge()
    ...     account.commit()
    >>> account.steps_taken, account.charged, account.epsilon() < 2.0
    (3, 3, True)
    """

    def __init__(self, plan: Plan, *, run: str | None = None, seeded: bool = False) -> None:
        self.plan, self.seeded = plan, seeded
        self.run = secrets.token_hex(8) if run is None else run
        self.steps_taken = 0  # that the weights have behind them
        self.allowance: Allowance | None = None  # what a ledger admitted for the steps
        self.releases: dict[str, Release] = {_new_id(): event for event in plan.unprotected}
        self.on_change: Callable[[], None] = _nothing  # called when more is known than before
        self._counters: dict[str, Gaussian] = {}
        self._counter = _new_id()  # of steps that this object reserves without a ledger
        self._made: list[str | None] = [None] * len(plan.releases)
        self._held: dict[int, Allowance] = {}  # what a ledger holds for planned releases, by their number in the plan
        self._open = 0  # reserved by this process, and neither taken nor known to be lost
        self._owner: int | None = os.getpid()  # the process whose counter this is; None for a copy
        self._update()

    # What was spent.

    @property
    def id(self) -> str:
        """Of the counter that the next step is charged to."""
        return self._counter if self.allowance is None else self.allowance.entry.id

    @property
    def counters(self) -> dict[str, Gaussian]:
        """The steps charged for these weights, by the id of their counter."""
        own = self.plan.event(0) if self.allowance is None else self.allowance.entry.spent
        return self._counters | {self.id: _larger(self._counters.get(self.id, own), own)}

    @property
    def charged(self) -> int:
        """How many steps this run was charged for: all that were reserved, used or not."""
        return self.counters[self.id].steps

    @property
    def charged_in_all(self) -> int:
        """How many steps were charged for these weights, by all runs."""
        return sum(event.steps for event in self.counters.values())

    def events(self) -> tuple[Event, ...]:
        """The releases made so far, steps of one kind added up."""
        steps = (event for event in self.counters.values() if event.steps)
        return by_kind((*steps, *self.releases.values()))

    def epsilon(self) -> float:
        """What was spent so far, at the plan's delta: 0 before the first step, infinite without noise."""
        return epsilon_of(self.events(), self.plan.delta, self.plan.accountant)

    def statement(self) -> Statement:
        """What was spent so far, in words."""
        return Statement.of(
            self.events(), self.plan.delta, self.plan.accountant, seeded=self.seeded, unit=self.plan.unit
        )

    def planned(self) -> Statement:
        """What will have been spent when all steps are taken and all planned releases are made."""
        assert self.steps is not None
        more = self.plan.event(max(0, self.steps - self.next_step - self._in_hand))
        events = by_kind((*self.events(), more, *self._pending()))
        return Statement.of(events, self.plan.delta, self.plan.accountant, seeded=self.seeded, unit=self.plan.unit)

    def before_this_run(self) -> tuple[Event, ...]:
        """Everything but this run's own steps; planned releases that are still to come count as made."""
        others = (event for id, event in self.counters.items() if id != self.id)
        return by_kind((*others, *self.releases.values(), *self._pending()))

    def steps_within(self, epsilon: float) -> int:
        """How many steps the weights will have behind them when so much is spent."""
        return max(0, self.plan.steps_within(epsilon, self.before_this_run()) + self._offset)

    @property
    def next_step(self) -> int:
        """The number (from 0) of the step whose batch is drawn next."""
        return self.steps_taken + self._open

    # One step.

    def reserve(self) -> None:
        """Before a batch is drawn: charges for its step. With a ledger, it is on the disk when this returns."""
        self._check_owner()
        if self._most is not None and self._most <= self._consumed:
            raise BudgetSpent(
                "no step is left of those that the noise was calibrated for: batches that were drawn and not used, or "
                "broken off, stay charged"
            )
        if self.allowance is None:
            self._counters[self._counter] = self.plan.event(self.charged + 1)
        else:
            self._refuse_older(self.allowance.entry)
            # Without a target, lost steps are paid for and taken again.
            wanted = None if self.steps is None else max(1, self.steps - self.next_step)
            self.allowance.reserve(wanted, most=self._most)
        self._open += 1

    def charge(self) -> None:
        """When a step's noisy sum is about to exist: the step is one of those that were reserved, and counts."""
        if self.steps is not None and self.steps_taken >= self.steps:
            raise BudgetSpent(
                f"all {self.steps} steps that this run was planned for are taken; plan more with steps= or epochs= in "
                "make_private, which calibrates the noise for them"
            )
        self._check_owner()
        if self._open == 0:
            raise BudgetSpent("this step was not reserved: every step needs a batch from the private loader")
        self._open -= 1
        self.steps_taken += 1

    def commit(self) -> None:
        """After the step."""
        if self.allowance is not None:
            self.allowance.commit()

    # Releases in addition to the steps.

    def is_made(self, number: int) -> bool:
        """Whether the plan's release of that number (from 0) was made."""
        return self._made[number] is not None

    @contextmanager
    def release(self, event: Release, what: str, *, number: int | None = None) -> Iterator[str]:
        """Charges for a release that the block makes, before the block begins; yields its id.

        Args:
            number: it is the plan's release of that number (from 0).

        Guarantees:
            Every call is a release of its own, with an id drawn here, whatever the words. With a ledger it is on the
            disk before the block begins. It stays charged if the block fails; to make it again is another release.
        """
        self._check_owner()
        if number is not None and event != self.plan.releases[number].event:
            raise InvalidValue(f"{event} is not the release that was planned: {self.plan.releases[number]}")
        self._refuse_beyond_target(event, number)
        held = self._held.pop(number, None) if number is not None else None
        if held is None and self.allowance is not None:
            held = self._admit(self.allowance, event, what, _new_id())
        id = _new_id() if held is None else held.entry.id
        if held is not None:
            held.reserve()
        try:
            self.releases[id] = event
            if number is not None:
                self._made[number] = id
            self._update()
            yield id
            if held is not None:
                held.commit(held.entry.event.steps)
        except BaseException:
            if number is not None:
                self._made[number] = None  # what it found is lost
                self._update()
            raise
        finally:
            if held is not None:
                held.close()

    # Ledgers and snapshots.

    def attach(self, ledger: Ledger | Allowance | str | Path, *, what: str = "", **admission: Any) -> None:
        """From now on every step, and every release in addition to them, is charged to a ledger.

        A ledger admits the plan's remaining steps and releases now, or goes on with the run of this name that it knows.

        Args:
            ledger: a ledger or its path; or an allowance that it gave for the steps.
            what, admission: what `Ledger.admit` is told about a new run.

        Guarantees:
            What the ledger knows of these weights is added to this account, and what it does not know of releases in
            addition to the steps is charged to it. If that is refused, nothing new is held.
        """
        self._check_owner()
        allowance, new = self._find(ledger, what, admission)
        before = self.allowance, self.run, self._open, dict(self._counters), dict(self.releases)
        try:
            self._attach(allowance)
        except BaseException:
            for held in self._held.values():
                held.close()
            if new:
                allowance.close()
            self._held = {}
            self.allowance, self.run, self._open, self._counters, self.releases = before
            raise

    def close(self) -> None:
        """Gives back to the ledger what was not reserved."""
        self._check_owner()
        for allowance in (self.allowance, *self._held.values()):
            if allowance is not None and not allowance.entry.closed:
                allowance.close()
        self._held = {}
        self._update()

    def snapshot(self) -> Snapshot:
        """What is known now, to be kept with the weights."""
        return Snapshot(self.steps_taken, self.counters, dict(self.releases), tuple(self._made), unit=self.plan.unit)

    def restore(self, snapshot: Snapshot, *, releases_stand: bool = False) -> None:
        """Goes on from weights that a snapshot belongs to.

        Args:
            releases_stand: what the planned releases of the snapshot's run found is restored too: those that it had
                made need not be made again, and those that it had not made are still to come.

        Guarantees:
            Nothing is refunded: for every counter, the larger of what the snapshot, this account and the ledger know
            counts. If the noise was calibrated for an epsilon, `steps` becomes as many as stay within it. Otherwise
            steps that were lost are taken again and paid for, as far as the ledger's budget allows.
        """
        self._check_owner()
        validate.count(steps_taken=snapshot.steps_taken)
        self._refuse_other_unit(snapshot)
        if sum(event.steps for event in snapshot.counters.values()) < snapshot.steps_taken:
            raise InvalidValue("these weights have more steps behind them than were paid for")
        self._learn(snapshot.counters, snapshot.releases)
        self.steps_taken, self._open = snapshot.steps_taken, 0
        if releases_stand and len(snapshot.made) == len(self._made):
            self._made = list(snapshot.made)
            for number in [number for number in self._held if self._made[number] is not None]:
                self._held.pop(number).close()
        try:
            if self.allowance is not None:
                self._read(self.allowance.ledger)
        finally:
            self._update()
        self.replace_lost_steps()

    def replace_lost_steps(self) -> None:
        """Asks the ledger for steps that were lost, or as many of them as its budget allows.

        Not if the noise was calibrated for an epsilon, which they would exceed.
        """
        allowance = self.allowance
        if allowance is None or self._target is not None or self.plan.steps is None or allowance.entry.closed:
            return
        wanted = self.plan.steps - self.next_step - allowance.left
        possible = allowance.ledger.steps_left(self.plan.sample_rate, self.plan.noise_multiplier) if wanted > 0 else 0
        more = wanted if possible is None else min(wanted, possible)
        if more > 0:
            allowance.extend(more)
        self._update()

    def learn(self, known: Snapshot | Counters) -> None:
        """Adds what somebody else knows of the steps charged for these weights; of a snapshot, its releases too."""
        if isinstance(known, Snapshot):
            self._refuse_other_unit(known)
            self._learn(known.counters, known.releases)
        else:
            self._learn(known, {})
        self._update()

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
        return self.plan.epsilon if len(noisy(self.releases.values())) == len(self.releases) else None

    def _pending(self, but: int | None = None) -> tuple[Release, ...]:
        """Planned releases that are still to come, without the one of the number given."""
        planned = (r.event for n, r in enumerate(self.plan.releases) if self._made[n] is None and n != but)
        return tuple(event for event in planned if not isinstance(event, Unprotected))

    @property
    def _as_planned(self) -> bool:
        """Whether nothing is known of these weights but what the noise was calibrated for."""
        plan = self.plan
        made = {id: r.event for id, r in zip(self._made, plan.releases, strict=True) if id is not None}
        if plan.steps is None or plan.taken or self.releases != made or self.charged_in_all > plan.steps:
            return False
        return all(event == plan.event(event.steps) for event in self.counters.values() if event.steps)

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
            return max(0, plan.steps - (self.charged_in_all - self.charged))
        before, wanted = self.before_this_run(), self._consumed + max(0, plan.steps - self.steps_taken)
        if epsilon_of((*before, plan.event(max(self.charged, wanted))), plan.delta, plan.accountant) <= target:
            return wanted
        return min(wanted, plan.steps_within(target, before))

    def _refuse_beyond_target(self, event: Release, number: int | None) -> None:
        if self._target is None or (number is not None and self._made[number] is None and self._as_planned):
            return
        others = (*self.events(), *self._pending(but=number))
        cost = epsilon_of((*others, event), self.plan.delta, self.plan.accountant)
        if cost > self._target:
            raise BudgetSpent(
                f"{event} would bring this run to epsilon {cost:.4g}, above the {self._target:g} that was planned"
            )

    def _find(self, ledger: Ledger | Allowance | str | Path, what: str, admission: Any) -> tuple[Allowance, bool]:
        """The allowance for the steps, and whether it is new."""
        if isinstance(ledger, Allowance):
            self._refuse_other_units_ledger(ledger.ledger)
            return ledger, False
        if self.steps is None:
            raise InvalidValue("a ledger needs to know how long the run is: give epochs= or steps=")
        ledger = ledger if isinstance(ledger, Ledger) else Ledger(ledger)
        ledger.refresh()
        self._refuse_other_units_ledger(ledger)
        if ledger.find(self.run) is not None:
            return ledger.resume(self.run, ahead=admission.get("ahead", 1)), False
        rest = self.plan.event(max(1, self.steps - self.steps_taken))
        return ledger.admit(rest, run=self.run, what=what, seeded=self.seeded, **admission), True

    def _refuse_other_units_ledger(self, ledger: Ledger) -> None:
        if ledger.unit != self.plan.unit:
            raise InvalidValue(
                f"the ledger {ledger.path} is for {ledger.unit}, and this run is for {self.plan.unit}: what they spend "
                "does not add up. Make a ledger for the run's unit (hoarfrost ledger create --unit), or train for the "
                "ledger's"
            )

    def _attach(self, allowance: Allowance) -> None:
        entry = allowance.entry
        if replace(entry.event, steps=1) != self.plan.event(1) or entry.seeded != self.seeded:
            raise InvalidValue(
                f"the run {allowance.run!r} was admitted to the ledger with other settings ({entry.event}) than these "
                f"({self.plan.event(entry.event.steps)}). Give another run=, and it is charged as what it is"
            )
        self._counters = {id: event for id, event in self.counters.items() if event.steps}
        self.allowance, self.run, self._open = allowance, allowance.run, 0
        self._read(allowance.ledger)
        for id, event in self.releases.items():
            self._book(allowance, id, event)
        while self._held:  # what another ledger, or another run, keeps for them is not needed any more
            self._held.popitem()[1].close()
        for number, planned in enumerate(self.plan.releases):
            if self._made[number] is None and as_gaussian(planned.event).steps:
                self._hold(allowance, number)
        self._update()

    def _read(self, ledger: Ledger) -> None:
        """Adds what the ledger knows of these weights: what was lost after the last snapshot, say."""
        ledger.refresh()
        known = [entry for entry in map(ledger.with_id, self.counters) if entry is not None]
        owned = [release for entry in known for release in ledger.owned_by(entry.id) if release.reserved]
        self._learn({entry.id: entry.spent for entry in known}, {entry.id: entry.event for entry in owned})
        for entry in known:
            self._refuse_older(entry)

    def _refuse_older(self, entry: Entry) -> None:
        """A ledger that has lost steps of these weights would give them out a second time, under the same id."""
        if entry.id in self._counters and self._counters[entry.id].steps > entry.reserved:
            raise LedgerDamaged(
                f"{self._counters[entry.id].steps} steps of the run {entry.run!r} are known, and its ledger has "
                f"{entry.reserved}: it was cut, or put back from an older copy"
            )

    def _refuse_other_unit(self, known: Snapshot) -> None:
        """What was spent on examples says nothing of people who have several, and the other way round."""
        if known.unit != self.plan.unit and (known.releases or any(event.steps for event in known.counters.values())):
            raise InvalidValue(
                f"what was spent on these weights was spent for {known.unit}, and this run is for {self.plan.unit}: no "
                f"epsilon holds for both. Go on for {known.unit}"
                + (", with person= and per_person=" if known.unit == PERSON else ", without person=")
            )

    def _learn(self, counters: Counters, releases: Mapping[str, Release]) -> None:
        known = self.counters
        for id, event in counters.items():
            if replace(known.get(id, event), steps=0) != replace(event, steps=0):
                raise InvalidValue(f"two kinds of steps with the same id: {known[id]}, and {event}")
        for id, event in counters.items():
            self._counters[id] = _larger(self._counters.get(id, event), event)
        self.releases = {**releases, **self.releases}

    def _book(self, allowance: Allowance, id: str, event: Release) -> None:
        """Charges the ledger for a release that it does not know."""
        ledger = allowance.ledger
        booked = [each for each in map(ledger.with_id, self.releases) if each is not None]
        # Of releases without noise one is as many as several: it need not be repeated whenever a run goes on.
        known = isinstance(event, Unprotected) and any(each.event.noise_multiplier == 0 for each in booked)
        if known or ledger.with_id(id) is not None or as_gaussian(event).steps == 0:
            return
        charge = self._admit(allowance, event, str(event), id)
        charge.reserve()
        charge.commit(charge.entry.event.steps)
        charge.close()

    def _hold(self, allowance: Allowance, number: int) -> None:
        """Has the ledger keep room for a planned release: what it kept before a crash, or new."""
        planned, taken = self.plan.releases[number], {held.entry.id for held in self._held.values()}
        if isinstance(planned.event, Unprotected):
            return
        for entry in allowance.ledger.owned_by(allowance.entry.id):
            if entry.event == planned.event and not entry.reserved and not entry.closed and entry.id not in taken:
                self._held[number] = allowance.ledger.resume(entry.run, ahead=entry.event.steps)
                return
        self._held[number] = self._admit(allowance, planned.event, planned.what, _new_id())

    def _admit(self, allowance: Allowance, event: Release, what: str, id: str) -> Allowance:
        cost = as_gaussian(event)
        return allowance.ledger.admit(
            cost, run=f"{allowance.run}-{id[:8]}", what=what, seeded=self.seeded, ahead=cost.steps, id=id,
            owner=allowance.entry.id,
        )  # fmt: skip

    def _check_owner(self) -> None:
        """After a fork, and in a copy: the counter, and what was reserved or is held, are the first one's."""
        if self._owner != os.getpid():
            self._owner, self._counter, self._open, self._held = os.getpid(), _new_id(), 0, {}
            self._update()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_change": _nothing, "_owner": None}  # whom to tell is the first one's, too

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._counters, self.releases, self._made = dict(self._counters), dict(self.releases), list(self._made)
        self.allowance = copy(self.allowance)
        self._check_owner()


def _nothing() -> None:
    pass


def _larger(one: Gaussian, other: Gaussian) -> Gaussian:
    return other if other.steps > one.steps else one


def _new_id() -> str:
    return secrets.token_hex(16)
