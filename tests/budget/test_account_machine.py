"""Accounts under whatever order of steps, releases, snapshots, ledgers, copies and crashes, against sets of releases.

In the model every reserved step is an element of its own, and what an account must have charged is a set of them: to
put together what two accounts know is a union. Counters, ids and the larger of two numbers are not in it. Of which
stage a release is, is the set of those that somebody calls his own.
"""

from __future__ import annotations

import copy
import json
import pickle
import shutil
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hoarfrost.budget import (
    Gaussian,
    Ledger,
    Plan,
    PlannedRelease,
    account,
    as_gaussian,
    booking,
    charges,
    epsilon,
    limits,
    spent,
)
from hoarfrost.errors import BudgetSpent, InvalidValue

LOOK, OTHER_LOOK = Gaussian(noise_multiplier=6.0), Gaussian(noise_multiplier=9.0, sample_rate=0.5, steps=2)
BUDGETS = (None, 3.0)  # of the two ledgers
MOST_ACCOUNTS = 4
WHICH = st.integers(0, MOST_ACCOUNTS - 1)  # account, or snapshot
Run = tuple[int, str]  # the ledger's number, and the run's name there
Step = tuple[Any, float, int]  # whose it is, with which noise, and its number


@cache
def plans() -> tuple[Plan, ...]:
    def plan(*looks: tuple[int, Gaussian], **how: Any) -> Plan:
        releases = [PlannedRelease(event=event, what="a look", step=step) for step, event in looks]
        return Plan.solve(size=50, sample_rate=1.0, delta=1e-5, accountant="rdp", releases=releases, **how)

    return (
        plan(steps=9, epsilon=2.0),
        plan((0, LOOK), (3, OTHER_LOOK), steps=9, epsilon=2.0),
        plan(steps=9, noise_multiplier=8.0),
        plan((0, LOOK), (2, LOOK), steps=7, noise_multiplier=5.0),
        plan(noise_multiplier=8.0),
    )


@dataclass(frozen=True)
class Known:
    """What is known of some weights: steps charged, steps taken, releases in addition (by id), and runs of ledgers.

    ``who`` are those that may have taken steps. ``own`` are those of them, and the releases, that somebody who knows
    them calls his own stage's.
    """

    charged: frozenset[Step] = frozenset()
    taken: frozenset[Step] = frozenset()
    looks: frozenset[str] = frozenset()
    runs: frozenset[Run] = frozenset()
    who: frozenset[Any] = frozenset()
    own: frozenset[Any] = frozenset()

    def __or__(self, other: Known) -> Known:
        return Known(
            self.charged | other.charged, self.taken | other.taken, self.looks | other.looks, self.runs | other.runs,
            self.who | other.who, self.own | other.own,
        )  # fmt: skip


@dataclass
class Model:
    """One account, and what is true of it."""

    account: Any
    known: Known = field(default_factory=Known)
    run: Run | None = None
    open: list[Step] = field(default_factory=list)  # drawn, and not taken
    hand: list[Step] = field(default_factory=list)  # reserved ahead
    made: list[str | None] = field(default_factory=list)
    overtaken: bool = False  # another account has drawn on its run, or closed it, and this one has not been told
    seen: tuple[dict[str, int], set[str]] = field(default_factory=lambda: ({}, set()))
    owner: int = field(default_factory=count().__next__)  # of steps without a ledger


@dataclass
class Books:
    """One ledger, and what is true of it."""

    path: Path
    runs: dict[str, Known] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)


class Accounts(RuleBasedStateMachine):
    module: ModuleType = account

    @initialize(plan=st.sampled_from(range(5)), ahead=st.sampled_from([None, 1, 3]))
    def begin(self, plan: int, ahead: int | None) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.books = []
        for number, budget in enumerate(BUDGETS):
            path = self.folder / f"{number}.jsonl"
            Ledger.create(path, epsilon=budget, delta=1e-5, accountant="rdp")
            self.books.append(Books(path))
        self.models: list[Model] = []
        self.snapshots: list[tuple[str, Known, list[str | None]]] = []
        self.events: dict[str, Gaussian] = {}
        model = self.new(plan, 0)
        if ahead is not None:
            self.attach_to(model, 0, ahead)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder)

    # What is true.

    def new(self, plan: int, name: int, after: list[Any] | None = None) -> Model:
        made = self.module.Account(plans()[plan], run=f"run-{name}", after=after or ())
        self.models.append(Model(made, made=[None] * len(made.plan.releases)))
        del self.models[:-MOST_ACCOUNTS]
        return self.models[-1]

    def pick(self, which: int) -> Model:
        return self.models[which % len(self.models)]

    def saved(self, which: int) -> tuple[Any, Known, list[str | None]]:
        """One of the newest snapshots."""
        text, known, made = self.snapshots[-1 - which % len(self.snapshots)]
        return self.module.Snapshot.from_dict(json.loads(text)), known, made

    def known(self, model: Model) -> Known:
        """With the steps of its own run, whoever takes them."""
        if model.run is None:
            return model.known | Known(who=frozenset({model.owner}), own=frozenset({model.owner}))
        run = self.books[model.run[0]].runs[model.run[1]]
        ours = frozenset({model.run})
        return model.known | Known(charged=run.charged, taken=run.taken, runs=ours, who=ours, own=ours)

    def read(self, model: Model, number: int) -> None:
        """What a ledger tells of the runs that the account knows."""
        known = self.known(model)
        for ledger, name in known.runs:
            if ledger == number:
                new = self.books[number].runs[name].looks - known.looks if (ledger, name) in known.own else frozenset()
                known |= self.books[number].runs[name] | Known(own=new)
        model.known = known

    def look_into_ledgers(self) -> None:
        """What the files say, as a stranger reads them."""
        for number, books in enumerate(self.books):
            ledger = Ledger(books.path)
            assert ledger.budget is None or ledger.epsilon() <= ledger.budget
            names = {entry.id: entry.run for entry in ledger.entries if entry.owner is None}
            for entry in ledger.entries:
                if entry.owner is None:
                    before = books.runs.get(entry.run, Known(runs=frozenset({(number, entry.run)})))
                    steps = {((number, entry.run), entry.event.noise_multiplier, n) for n in range(entry.reserved)}
                    assert before.charged <= steps
                    books.runs[entry.run] = before | Known(charged=frozenset(steps))
                elif entry.reserved:
                    assert entry.reserved == entry.event.steps
                    self.events.setdefault(entry.id, entry.event)
                    books.runs[names[entry.owner]] |= Known(looks=frozenset({entry.id}))
            books.closed = {entry.run for entry in ledger.entries if entry.closed}

    def refuses_to_exceed(self, model: Model, before: float) -> None:
        plan, after = model.account.plan, cost_of_stage(model)
        assert plan.epsilon is None or after <= plan.epsilon or after == before

    def overtake(self, model: Model) -> None:
        for other in self.models:
            other.overtaken |= other is not model and other.run == model.run

    # Steps.

    def reserve(self, model: Model) -> bool:
        spent, before = cost_of_stage(model), self.known(model).charged
        try:
            model.account.reserve()
        except BudgetSpent:
            return False
        self.refuses_to_exceed(model, spent)
        if model.run is None:
            step = (model.owner, model.account.plan.noise_multiplier, len(self.known(model).charged))
            assert step not in before
            model.known |= Known(charged=frozenset({step}), who=frozenset({model.owner}), own=frozenset({model.owner}))
            model.open.append(step)
            return True
        if not model.hand:
            self.look_into_ledgers()
            new = self.books[model.run[0]].runs[model.run[1]].charged - before
            assert new
            model.hand = sorted(new)
            self.overtake(model)
        model.open.append(model.hand.pop(0))
        return True

    def charge(self, model: Model) -> bool:
        try:
            model.account.charge()
        except BudgetSpent:
            return False
        step = model.open.pop(0)  # or it was not reserved
        model.known |= Known(taken=frozenset({step}))
        if model.run is not None and step[0] == model.run:
            self.books[model.run[0]].runs[model.run[1]] |= Known(taken=frozenset({step}))
        model.account.commit()
        return True

    @rule(which=WHICH, ahead=st.integers(1, 3))
    def draw(self, which: int, ahead: int) -> None:
        """Batches that may be taken, or be broken off."""
        model = self.pick(which)
        for _ in range(ahead):
            self.reserve(model)

    @rule(which=WHICH)
    def take(self, which: int) -> None:
        model = self.pick(which)
        self.reserve(model)
        self.charge(model)

    @rule(which=WHICH)
    def take_what_was_drawn(self, which: int) -> None:
        model = self.pick(which)
        if not model.open:
            with pytest.raises(BudgetSpent):
                model.account.charge()
        while model.open and self.charge(model):
            pass

    @rule(which=WHICH, most=st.sampled_from([2, 3, 100]))
    def take_many(self, which: int, most: int) -> None:
        """As many steps as the account says can be taken, or some of them."""
        model = self.pick(which)
        steps = model.account.steps
        if steps is None or model.overtaken:
            return
        while model.account.steps_taken < steps and most:
            assert model.open or self.reserve(model)
            assert self.charge(model)
            most -= 1
        if model.account.steps_taken >= steps:
            with pytest.raises(BudgetSpent):
                model.account.charge()

    # Releases in addition.

    @rule(
        which=WHICH, fails=st.booleans(), event=st.sampled_from([LOOK, OTHER_LOOK]),
        number=st.sampled_from([None, 0, 1]),
    )  # fmt: skip
    def release(self, which: int, fails: bool, event: Gaussian, number: int | None) -> None:
        model = self.pick(which)
        plan = model.account.plan
        if number is not None and plan.releases:
            event = plan.releases[number].event
        else:
            number = None
        spent, refused = cost_of_stage(model), True
        with suppress(BudgetSpent, ZeroDivisionError), model.account.release(event, "a look", number=number) as id:
            refused = False
            assert id not in self.events
            self.events[id] = event
            model.known |= Known(looks=frozenset({id}), own=frozenset({id}))
            if model.run is not None:
                self.look_into_ledgers()
                assert id in self.books[model.run[0]].runs[model.run[1]].looks  # before anything is released
            if fails:
                raise ZeroDivisionError
        if number is not None and not refused:
            model.made[number] = None if fails else id
        self.refuses_to_exceed(model, spent)

    # Snapshots, copies and crashes.

    @rule(which=WHICH)
    def snapshot(self, which: int) -> None:
        model = self.pick(which)
        snapshot = model.account.snapshot()
        text = json.dumps(snapshot.as_dict())
        assert self.module.Snapshot.from_dict(json.loads(text)) == snapshot
        self.snapshots.append((text, self.known(model), list(model.made)))

    def restore(self, model: Model, which: int, stand: bool) -> None:
        snapshot, known, made = self.saved(which)
        took = {who for who, _, _ in known.charged if who in known.own}
        try:
            model.account.restore(snapshot, releases_stand=stand)
        except InvalidValue:  # of an earlier stage: it cannot be this one's as well
            assert took
            assert took.isdisjoint(self.known(model).own)
            return
        model.overtaken = False
        model.known, model.open = model.known | known, []
        if stand and len(made) == len(model.made):
            model.made = list(made)
        if model.run is not None:
            self.read(model, model.run[0])

    @precondition(lambda self: self.snapshots)
    @rule(which=WHICH, snapshot=WHICH, stand=st.booleans())
    def go_back(self, which: int, snapshot: int, stand: bool) -> None:
        self.restore(self.pick(which), snapshot, stand)

    @precondition(lambda self: self.snapshots)
    @rule(snapshot=WHICH, plan=st.sampled_from(range(5)), name=st.integers(0, 1), stand=st.booleans())
    def part(self, snapshot: int, plan: int, name: int, stand: bool) -> None:
        """Another account goes on from a snapshot."""
        self.restore(self.new(plan, name), snapshot, stand)

    @precondition(lambda self: self.snapshots)
    @rule(snapshots=st.lists(WHICH, min_size=1, max_size=2), plan=st.sampled_from(range(5)), name=st.integers(0, 1))
    def next_stage(self, snapshots: list[int], plan: int, name: int) -> None:
        """Another account begins after what one snapshot, or two, belong to."""
        earlier = [self.saved(which) for which in snapshots]
        model = self.new(plan, name, after=[snapshot for snapshot, _, _ in earlier])
        for _, known, _ in earlier:
            model.known |= replace(known, own=frozenset())
        assert (model.account.steps_taken, model.account.steps) == (0, plans()[plan].steps)
        self.reserve(model)
        self.charge(model)
        self.snapshots.append((json.dumps(model.account.snapshot().as_dict()), self.known(model), list(model.made)))

    @precondition(lambda self: self.snapshots)
    @rule(which=WHICH, told=WHICH, steps_only=st.booleans())
    def learn(self, which: int, told: int, steps_only: bool) -> None:
        model = self.pick(which)
        snapshot, known, _ = self.saved(told)
        before = self.known(model)
        model.account.learn(snapshot.counters if steps_only else snapshot)
        if steps_only:  # of which stage what is new is, it does not say
            model.known |= replace(known, looks=frozenset(), own=known.who - before.who)
        else:
            model.known |= known

    @rule(which=WHICH, how=st.sampled_from([copy.copy, copy.deepcopy, lambda a: pickle.loads(pickle.dumps(a))]))
    def clone(self, which: int, how: Any) -> None:
        model = self.pick(which)
        known = model.known if model.run is None else self.known(model)
        self.models.append(Model(how(model.account), known, model.run, made=list(model.made)))
        del self.models[:-MOST_ACCOUNTS]

    @rule(which=WHICH, restore=st.sampled_from([None, 0, 1]), attach=st.booleans(), stand=st.booleans())
    def crash(self, which: int, restore: int | None, attach: bool, stand: bool) -> None:
        """A new object takes the place of one that is gone."""
        gone = self.pick(which)
        self.models.remove(gone)
        model = self.new(plans().index(gone.account.plan), 0)
        model.account.run = gone.account.run
        if attach and gone.run is not None:
            self.attach_to(model, gone.run[0], ahead=1)
        if restore is not None and self.snapshots:
            self.restore(model, restore, stand)

    # Ledgers.

    @rule(
        which=WHICH, number=st.sampled_from([0, 0, 1]), ahead=st.sampled_from([1, 3]),
        name=st.sampled_from([None, "a", "b"]),
    )  # fmt: skip
    def attach(self, which: int, number: int, ahead: int, name: str | None) -> None:
        model = self.pick(which)
        if name is not None:
            model.account.run = name
        self.attach_to(model, number, ahead)

    def attach_to(self, model: Model, number: int, ahead: int) -> None:
        before, now = self.known(model), model.account
        counted, name = (now.events(), dict(now.releases), now.allowance), now.run
        try:
            now.attach(self.books[number].path, ahead=ahead)
        except (BudgetSpent, InvalidValue):
            assert (now.events(), now.releases, now.allowance) == counted
            return
        self.look_into_ledgers()
        model.known = before
        model.run, model.open, model.hand, model.overtaken = (number, name), [], [], False
        self.read(model, number)
        booked = {look for run in self.books[number].runs.values() for look in run.looks}
        assert model.known.looks <= booked

    @rule(which=WHICH, sure=st.integers(0, 4))
    def close(self, which: int, sure: int) -> None:
        if sure:
            return  # most runs go on
        model = self.pick(which)
        model.account.close()
        if model.run is not None:
            model.hand = []
            self.overtake(model)
            self.look_into_ledgers()
            assert model.run[1] in self.books[model.run[0]].closed

    # What holds at any time.

    @invariant()
    def nothing_is_missing_and_nothing_is_counted_twice(self) -> None:
        self.look_into_ledgers()
        for books in self.books:
            for run in books.runs.values():
                assert run.taken <= run.charged
        for model in self.models:
            if model.account.allowance is not None:
                model.account.allowance.ledger.refresh()
            known = self.known(model)
            assert known.taken <= known.charged
            charged: Counter[float] = Counter()
            for event in model.account.counters.values():
                charged[event.noise_multiplier] += event.steps
            assert +charged == Counter(noise for _, noise, _ in known.charged)
            assert set(model.account.releases) == known.looks
            own: Counter[tuple[float, float]] = Counter(
                (noise, 1.0) for who, noise, _ in known.charged if who in known.own
            )
            for event in map(self.events.__getitem__, known.looks & known.own):
                own[event.noise_multiplier, event.sample_rate] += event.steps
            stage = {(event.noise_multiplier, event.sample_rate): event.steps for event in model.account.stage_events()}
            assert stage == own
            assert all(as_gaussian(event) == self.events[id] for id, event in model.account.releases.items())
            assert [model.account.is_made(number) for number in range(len(model.made))] == [
                id is not None for id in model.made
            ]

    @invariant()
    def further_steps_leave_room_for_planned_releases(self) -> None:
        for model in self.models:
            account = model.account
            if account.plan.epsilon is not None and not model.overtaken:
                more = account.steps - account.steps_taken > len(model.open) + len(model.hand)
                planned = account.planned()
                own = planned.releases if planned.stages is None else planned.stages[1]
                assert epsilon(own, account.plan.delta, "rdp") <= account.plan.epsilon or not more

    @invariant()
    def nothing_is_refunded(self) -> None:
        for model in self.models:
            counts, looks = model.seen
            now = {id: event.steps for id, event in model.account.counters.items()}
            assert all(now.get(id, 0) >= steps for id, steps in counts.items())
            assert looks <= set(model.account.releases)
            model.seen = now, set(model.account.releases)


def cost_of_stage(model: Model) -> float:
    return epsilon(model.account.stage_events(), model.account.plan.delta, "rdp")


def run(module: ModuleType, examples: int, steps: int, **how: Any) -> None:
    given = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck), **how,
    )  # fmt: skip
    run_state_machine_as_test(type("Machine", (Accounts,), {"module": module}), settings=given)  # type: ignore[arg-type]


def test_what_was_released_was_charged_and_nothing_is_refunded() -> None:
    run(account, examples=250, steps=40)


@pytest.mark.slow
def test_the_same_for_longer() -> None:
    run(account, examples=1500, steps=60)


FAULTS = {
    "what is learned replaces what is known": (
        "self.counters[id] = larger(self.counters.get(id, event), event)",
        "self.counters[id] = event",
    ),
    "steps are added up, whoever tells of them": (
        "self.counters[id] = larger(self.counters.get(id, event), event)",
        "self.counters[id] = replace(event, steps=event.steps + getattr(self.counters.get(id), 'steps', 0))",
    ),
    "releases that others tell of are left out": ("{**releases, **self.releases}", "dict(self.releases)"),
    "own releases are forgotten": ("{**releases, **self.releases}", "dict(releases)"),
    "what a failed release found stands": ("self._made[number] = None  # what it found is lost", "pass"),
    "a failed release is not charged": (
        "self._made[number] = None  # what it found is lost",
        "self._charges.releases.pop(id)",
    ),
    "what is in hand counts as taken": (
        "return 0 if self.allowance is None else self.allowance.in_hand",
        "return 0",
    ),
    "a copy goes on with the counter of the first": (
        "os.getpid(), new_id(), 0, {}",
        "os.getpid(), self._counter, 0, {}",
    ),
    "a copy takes what was drawn for the first": (', "_owner": None}', "}"),
    "reserving does not count": ("self.plan.event(self.charged + 1)", "self.plan.event(self.charged)"),
    "a step need not be reserved": ("if self._open == 0:", "if False:"),
    "what was drawn before going back can be taken": (
        "self.steps_taken, self._open = snapshot.steps_taken, 0",
        "self.steps_taken = snapshot.steps_taken",
    ),
    "the epsilon is no limit for steps": ("self._most <= self._consumed", "False"),
    "the epsilon is no limit for releases": ("if cost > self._target:", "if False:"),
    "planned releases get no room": (
        "return by_kind((*known.events(earlier=False), *self._pending()))",
        "return known.events(earlier=False)",
    ),
    "steps of others are not taken off": (
        "plan.steps - (self._charged_in_stage - self.charged)",
        "plan.steps",
    ),
    "how far the run goes is not worked out anew": (
        "            self._update()\n        self.replace_lost_steps()",
        "            pass\n        self.replace_lost_steps()",
    ),
    "the ledger's releases are not read": ("for each in ledger.owned_by(entry.id)", "for each in ()"),
    "the ledger's steps are not read": ("charges.learn({entry.id: entry.spent},", "charges.learn({},"),
    "the ledger is not charged for releases before it": ("book(allowance, id, event, booked=self.releases)", "pass"),
    "a ledger's run is not charged for releases": (
        "if held is None and self.allowance is not None:",
        "if False:",
    ),
    "steps without a ledger are forgotten": (
        "self._charges = self._known  #",
        "self._charges = self._known\n        self._charges.counters = {}  #",
    ),
    "runs without a step are forgotten": (
        "self._charges = self._known  #",
        "self._charges = self._known\n        "
        "self._charges.counters = {id: each for id, each in self._charges.counters.items() if each.steps}  #",
    ),
    "a ledger that refused is drawn on": (
        "self.allowance, self.run, self._open, self._charges = before",
        "pass",
    ),
    "an earlier stage counts in what this one was planned for": (
        "snapshot.releases, {*snapshot.counters, *snapshot.releases})",
        "snapshot.releases)",
    ),
    "an earlier stage is not counted": ("for snapshot in after:", "for snapshot in ():"),
    "what others call their own stays another stage's": ("(id in said or id not in told)", "True"),
    "one's own becomes an earlier stage's": ("(id in before or id not in known)", "True"),
    "a snapshot does not say what is of earlier stages": ("tuple(sorted(known.earlier))", "()"),
}  # fmt: skip


SOURCES = [Path(str(module.__file__)) for module in (charges, booking, spent, limits, account)]


def compiled(monkeypatch: pytest.MonkeyPatch, right: str, wrong: str) -> ModuleType:
    """The account's module, and those that it is made of, with a piece of their code replaced."""
    module = ModuleType("")
    for source in SOURCES:
        module = ModuleType(f"hoarfrost.budget.{source.stem}")
        monkeypatch.setitem(sys.modules, module.__name__, module)  # where dataclasses, pickle and imports look
        exec(compile(source.read_text().replace(right, wrong), module.__name__, "exec"), module.__dict__)
    return module


@pytest.mark.slow
def test_the_code_without_a_fault_is_found_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled in the same way: it is not the way that is noticed."""
    run(compiled(monkeypatch, "", ""), examples=50, steps=40)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_has_its_place_in_the_code(fault: str) -> None:
    assert sum(source.read_text().count(FAULTS[fault][0]) for source in SOURCES) == 1


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with pytest.raises((Exception, pytest.fail.Exception)):
        run(compiled(monkeypatch, *FAULTS[fault]), examples=600, steps=40, phases=[Phase.generate], print_blob=False)
