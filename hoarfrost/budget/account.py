"""What was planned, reserved, charged, lost and spent before: all that is known about the cost of one model's weights.

What can be asked of it is in `spent.py`, how far it goes in `limits.py`; this is how it changes.

Steps are counted by *counters*. Every account that reserves steps without a ledger has a counter of its own, and so has
every run that a ledger admitted; each has an id that was drawn at random, and only ever grows. What two accounts know
of the same weights is put together by taking the larger count for each id: the same steps are never counted twice, and
different steps are never taken for the same ones, whatever the runs are called, however often and in whichever order
snapshots and ledgers are read. Releases in addition to the steps have ids in the same way.

Weights may have *stages*: a run with steps, noise and an epsilon of its own goes on from what earlier runs trained.
What those released is known by its ids, too. It counts in everything that is said about the weights, and not in what
this stage was planned for: its steps begin at 0, and its epsilon is for its own releases.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from hoarfrost import validate
from hoarfrost.budget.allowance import Allowance
from hoarfrost.budget.booking import admit, book, held_for
from hoarfrost.budget.entry import Entry
from hoarfrost.budget.events import Gaussian, Release
from hoarfrost.budget.ledger import Ledger
from hoarfrost.budget.limits import Limits, nothing
from hoarfrost.budget.plan import Plan
from hoarfrost.budget.snapshot import Counters, Snapshot
from hoarfrost.budget.spent import new_id
from hoarfrost.budget.statement import PERSON
from hoarfrost.errors import BudgetSpent, InvalidValue, LedgerDamaged


class Account(Limits):
    """Counts what a run releases, before it releases it. Knows nothing of models.

    A step is reserved before its batch is drawn (`reserve`), taken when its noisy sum is about to exist (`charge`),
    and committed when it is done (`commit`). A release in addition to the steps is made inside `release`.

    Args:
        plan: what the run is going to release.
        run: its name in a ledger.
        seeded: its noise can be repeated from a seed.
        after: what was spent on these weights in earlier stages.

    Guarantees:
        What was released was charged before. Nothing is refunded: whatever is reserved counts as spent, used or not,
        and restoring an older snapshot lowers nothing. If the noise was calibrated for an epsilon, everything charged
        for this stage of these weights that this account knows of stays within it, unless it exceeded it before. A
        copy, and the child of a fork, count for themselves: what was reserved, and is in hand, stays with the first.

    >>> plan = Plan.solve(size=1000, batch_size=100, steps=20, epsilon=2.0, delta=1e-5)
    >>> account = Account(plan)
    >>> for _ in range(3):
    ...     account.reserve()
    ...     account.charge()
    ...     account.commit()
    >>> account.steps_taken, account.charged, account.epsilon() < 2.0
    (3, 3, True)
    >>> second = Account(plan, after=[account.snapshot()])
    >>> second.steps_taken, second.steps, second.epsilon() == account.epsilon()
    (0, 20, True)
    """

    def __init__(
        self, plan: Plan, *, run: str | None = None, seeded: bool = False, after: Iterable[Snapshot] = ()
    ) -> None:
        super().__init__(plan, seeded=seeded)
        self.run = secrets.token_hex(8) if run is None else run
        self._held: dict[int, Allowance] = {}  # what a ledger holds for planned releases, by their number in the plan
        self._owner: int | None = os.getpid()  # the process whose counter this is; None for a copy
        for snapshot in after:
            self._refuse_other_unit(snapshot)
            self._charges.learn(snapshot.counters, snapshot.releases, {*snapshot.counters, *snapshot.releases})
            self._seeded_before |= snapshot.seeded
        self._update()

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
            self._charges.counters[self._counter] = self.plan.event(self.charged + 1)
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
            held = admit(self.allowance, event, what, new_id())
        id = new_id() if held is None else held.entry.id
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
        before = self.allowance, self.run, self._open, self._charges.copy()
        try:
            self._attach(allowance)
        except BaseException:
            for held in self._held.values():
                held.close()
            if new:
                allowance.close()
            self._held = {}
            self.allowance, self.run, self._open, self._charges = before
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
        known, seeded = self._known, self.seeded or self._seeded_before
        return Snapshot(
            self.steps_taken, known.counters, known.releases, tuple(self._made), tuple(sorted(known.earlier)), seeded,
            unit=self.plan.unit,
        )  # fmt: skip

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
        self.check(snapshot)
        self.learn(snapshot)
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

    def check(self, snapshot: Snapshot) -> None:
        """Refuses a snapshot that this account cannot go on from."""
        own = {id: event.steps for id, event in snapshot.counters.items() if event.steps and id not in snapshot.earlier}
        if sum(own.values()) < snapshot.steps_taken:
            raise InvalidValue("these weights have more steps behind them than were paid for")
        if own and self._charges.earlier.issuperset(own):
            raise InvalidValue(
                "this is the state of an earlier stage (after=), of which everything is counted already. Load its "
                "weights into the model alone, and begin this stage with an optimizer of its own"
            )

    def replace_lost_steps(self) -> None:
        """Asks the ledger for steps that were lost, or as many of them as its budget allows.

        Not if the noise was calibrated for an epsilon, which they would exceed.
        """
        allowance = self.allowance
        if allowance is None or self._target is not None or self.plan.steps is None or allowance.entry.closed:
            return
        wanted = self.plan.steps - self.next_step - allowance.left
        if wanted > 0:
            more = allowance.ledger.steps_left(self.plan.sample_rate, self.plan.noise_multiplier, wanted=wanted)
            if more:
                allowance.extend(more)
        self._update()

    def learn(self, known: Snapshot | Counters) -> None:
        """Adds what somebody else knows of the steps charged for these weights; of a snapshot, its releases too."""
        if isinstance(known, Snapshot):
            self._refuse_other_unit(known)
            self._charges.learn(known.counters, known.releases, known.earlier, own=self.id)
            self._seeded_before |= known.seeded
        else:
            self._charges.learn(known, {}, own=self.id)
        self._update()

    # The inside.

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
        if entry.id in self._charges.earlier:
            raise InvalidValue(
                f"the run {allowance.run!r} of the ledger is an earlier stage of these weights. Give this stage a run= "
                "of its own, and it is charged as what it is"
            )
        if replace(entry.event, steps=1) != self.plan.event(1) or entry.seeded != self.seeded:
            raise InvalidValue(
                f"the run {allowance.run!r} was admitted to the ledger with other settings ({entry.event}) than these "
                f"({self.plan.event(entry.event.steps)}). Give another run=, and it is charged as what it is"
            )
        self._charges = self._known  # also of runs without a step, of which the ledger may know releases
        self.allowance, self.run, self._open = allowance, allowance.run, 0
        self._read(allowance.ledger)
        for id, event in self.releases.items():
            book(allowance, id, event, booked=self.releases)
        while self._held:  # what another ledger, or another run, keeps for them is not needed any more
            self._held.popitem()[1].close()
        for number, planned in enumerate(self.plan.releases):
            if self._made[number] is None and isinstance(planned.event, Gaussian) and planned.event.steps:
                self._held[number] = held_for(allowance, planned, but=self._held.values())
        self._update()

    def _read(self, ledger: Ledger) -> None:
        """Adds what the ledger knows of these weights: what was lost after the last snapshot, say."""
        ledger.refresh()
        charges = self._charges
        known = [entry for entry in map(ledger.with_id, self.counters) if entry is not None]
        for entry in known:
            found = {each.id: each.event for each in ledger.owned_by(entry.id) if each.reserved}
            # What is new of an earlier stage's run is of that stage, too.
            new = found.keys() - charges.releases.keys() if entry.id in charges.earlier else set()
            charges.learn({entry.id: entry.spent}, found, charges.earlier | new, own=self.id)
        for entry in known:
            self._refuse_older(entry)

    def _refuse_older(self, entry: Entry) -> None:
        """A ledger that has lost steps of these weights would give them out a second time, under the same id."""
        known = self._charges.counters.get(entry.id)
        if known is not None and known.steps > entry.reserved:
            raise LedgerDamaged(
                f"{known.steps} steps of the run {entry.run!r} are known, and its ledger has {entry.reserved}: it was "
                "cut, or put back from an older copy"
            )

    def _refuse_other_unit(self, known: Snapshot) -> None:
        """What was spent on examples says nothing of people who have several, and the other way round."""
        if known.unit != self.plan.unit and (known.releases or any(event.steps for event in known.counters.values())):
            raise InvalidValue(
                f"what was spent on these weights was spent for {known.unit}, and this run is for {self.plan.unit}: no "
                f"epsilon holds for both. Go on for {known.unit}"
                + (", with person= and per_person=" if known.unit == PERSON else ", without person=")
            )

    def _check_owner(self) -> None:
        """After a fork, and in a copy: the counter, and what was reserved or is held, are the first one's."""
        if self._owner != os.getpid():
            self._owner, self._counter, self._open, self._held = os.getpid(), new_id(), 0, {}
            self._update()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "on_change": nothing, "_owner": None}  # whom to tell is the first one's, too

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._charges, self._made = self._charges.copy(), list(self._made)
        self.allowance = copy(self.allowance)
        self._check_owner()
