"""An account under forks, copies, crashes, retries and ledgers put back: it may over-count, never under-count."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hoarfrost.budget import (
    Account,
    Allowance,
    Gaussian,
    Ledger,
    Plan,
    PlannedRelease,
    Snapshot,
    Unprotected,
    _rdp,
    epsilon,
)
from hoarfrost.budget import account as account_module
from hoarfrost.budget import allowance as allowance_module
from hoarfrost.budget import limits as limits_module
from hoarfrost.errors import BudgetSpent, InvalidValue, LedgerDamaged

LOOK = Gaussian(noise_multiplier=6.0)
DELTA = 1e-5


def calibrated(steps: int = 6, *looks: int, event: Gaussian = LOOK, epsilon: float = 2.0) -> Plan:
    """Calibrated for an epsilon, with a release before each of the steps given."""
    releases = [PlannedRelease(event=event, what="a look", step=step) for step in looks]
    return Plan.solve(
        size=100, sample_rate=1.0, steps=steps, epsilon=epsilon, delta=DELTA, accountant="rdp", releases=releases
    )


def stated(steps: int | None = 6, noise: float = 8.0, *looks: int) -> Plan:
    releases = [PlannedRelease(event=LOOK, what="a look", step=step) for step in looks]
    return Plan.solve(
        size=100, sample_rate=1.0, steps=steps, noise_multiplier=noise, delta=DELTA, accountant="rdp", releases=releases
    )


def ledger(folder: Path, name: str = "ledger.jsonl", budget: float | None = None) -> Ledger:
    return Ledger.create(folder / name, epsilon=budget, delta=DELTA, accountant="rdp")


def take(account: Account, steps: int = 1) -> None:
    for _ in range(steps):
        account.reserve()
        account.charge()
        account.commit()


def take_all(account: Account, most: int = 100) -> int:
    """Takes steps until they are refused; how many there were."""
    for taken in range(most):
        try:
            take(account)
        except BudgetSpent:
            return taken
    pytest.fail("nothing is refused")


def look(account: Account, number: int | None = 0, event: Gaussian = LOOK) -> None:
    with account.release(event, "a look", number=number):
        pass


def in_child(work: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Forks of the process.


@pytest.mark.parametrize("taken", [0, 2])
def test_a_child_keeps_to_the_epsilon_as_its_parent_does(taken: int) -> None:
    account = Account(calibrated())
    take(account, taken)

    def work() -> bool:
        return take_all(account) == 6 - taken and account.epsilon() <= 2.0

    in_child(work)
    assert take_all(account) == 6 - taken


def test_a_child_does_not_take_what_its_parent_has_in_hand(tmp_path: Path) -> None:
    plan = calibrated()
    account = Account(plan)
    account.attach(ledger(tmp_path).admit(plan.event(30), run="mine", ahead=4))
    take(account)

    def work() -> bool:
        return take_all(account) == 2 and account.epsilon() <= 2.0

    in_child(work)
    take(account, 3)
    assert Ledger(tmp_path / "ledger.jsonl").entries[0].reserved == 6
    with pytest.raises(BudgetSpent):
        take(account)


def test_parent_and_child_each_make_the_planned_release(tmp_path: Path) -> None:
    account = Account(stated(6, 8.0, 0))
    account.attach(ledger(tmp_path), ahead=2)

    def work() -> bool:
        look(account)
        take(account)
        return account.is_made(0)

    in_child(work)
    look(account)
    take(account)
    entries = Ledger(tmp_path / "ledger.jsonl").entries
    assert sorted(entry.reserved for entry in entries) == [1, 1, 4]


def test_what_was_drawn_before_a_fork_is_the_parent_s(tmp_path: Path) -> None:
    account = Account(stated())
    account.reserve()

    def work() -> bool:
        with pytest.raises(BudgetSpent, match="not reserved"):
            account.charge()
        return account.next_step == 0

    in_child(work)
    account.charge()


# Several objects for one run.


@pytest.mark.parametrize("ahead", [1, 3])
def test_two_processes_on_one_run_stay_within_its_epsilon(tmp_path: Path, ahead: int) -> None:
    """More was admitted than the noise was calibrated for, and each knows what the other did before its last look."""
    plan, books = calibrated(), ledger(tmp_path)
    books.admit(plan.event(30), run="mine")
    accounts = [Account(plan, run="mine") for _ in range(2)]
    for account in accounts:
        account.attach(Ledger(books.path), ahead=ahead)
    taken = 0
    for number in range(20):
        try:
            take(accounts[number % 2])
            taken += 1
        except BudgetSpent:
            continue
    assert Ledger(books.path).entries[0].reserved == taken == 6
    assert all(account.epsilon() <= 2.0 for account in accounts)


def test_a_process_that_another_one_overtook_goes_on_if_no_epsilon_is_exceeded(tmp_path: Path) -> None:
    plan, books = stated(), ledger(tmp_path)
    accounts = [Account(plan, run="mine") for _ in range(2)]
    for account in accounts:
        account.attach(Ledger(books.path), ahead=2)
    take(accounts[0], 4)
    take(accounts[1], 2)
    with pytest.raises(BudgetSpent, match="all 6 steps"):
        take(accounts[1])


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda account: pickle.loads(pickle.dumps(account)),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_account_counts_for_itself(how: str) -> None:
    account = Account(stated(20, 8.0, 0))
    take(account, 3)
    account.reserve()
    other = COPIES[how](account)
    with pytest.raises(BudgetSpent, match="not reserved"):
        other.charge()
    look(other)
    assert not account.is_made(0)
    assert account.releases == {}
    take(other, 5)
    take(account, 2)
    account.restore(other.snapshot())
    assert account.charged_in_all == 4 + 5 + 2
    assert list(account.releases.values()) == [LOOK]


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_of_an_account_does_not_take_what_the_ledger_reserved_for_the_first(how: str, tmp_path: Path) -> None:
    account = Account(stated(20, 8.0, 0))
    account.attach(ledger(tmp_path), ahead=4)
    take(account)
    other = COPIES[how](account)
    for each in (account, other):
        look(each)
        take(each, 3)
    run, *looks = Ledger(tmp_path / "ledger.jsonl").entries
    assert run.reserved == 8
    assert sum(entry.reserved for entry in looks) == 2
    allowance = Ledger(tmp_path / "ledger.jsonl").resume(run.run, ahead=4)
    allowance.reserve()
    copied: Allowance = COPIES[how](allowance)
    assert (allowance.left, copied.left) == (11, 8)


# Ledgers that were put back.


def test_a_ledger_that_was_put_back_from_an_older_copy_is_not_drawn_on(tmp_path: Path) -> None:
    """Its next steps would be taken for those that the weights have behind them."""
    books = ledger(tmp_path)
    account = Account(stated(), run="mine")
    account.attach(books.path)
    take(account, 2)
    older = shutil.copy(books.path, tmp_path / "older")
    take(account, 3)
    snapshot = account.snapshot()
    later = Account(stated(), run="mine")
    later.restore(snapshot)
    with pytest.raises(LedgerDamaged, match="older copy"):
        later.attach(older)
    assert later.charged_in_all == 5
    take(later)  # without that ledger, as before
    assert later.charged_in_all == 6
    attached = Account(stated(), run="mine")
    attached.attach(older)
    for go_on in (lambda: attached.restore(snapshot), lambda: take(attached)):
        with pytest.raises(LedgerDamaged, match="older copy"):
            go_on()
    assert attached.charged_in_all == 5


def record(**body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def as_before(path: Path, *bodies: dict[str, Any]) -> Path:
    """A ledger file as the version before wrote it: no record has an id or an owner."""
    facts = {"who": "me", "code": "hoarfrost, torch"}
    first = {"kind": "create", "format": 1, "epsilon": None, "delta": DELTA, "accountant": "rdp", "keyed": False}
    head, lines = "0" * 64, b""
    for n, body in enumerate(({**first, "seeded": False, "note": "", **facts}, *bodies)):
        body = {**body, "n": n, "at": 1_700_000_000}
        if body["kind"] == "admit":
            body = {"what": "", "seeded": False, "data": None, **facts, **body}
        head = hashlib.sha256(head.encode() + b"\n" + record(**body)).hexdigest()
        lines += record(**body, hash=head)
    path.write_bytes(lines)
    return path


def about(kind: str, number: int, steps: int | None = None) -> dict[str, Any]:
    return {"kind": kind, "for": number} | ({} if steps is None else {"steps": steps})


STEPS_BEFORE = {"kind": "admit", "event": Gaussian(noise_multiplier=8.0, steps=6).as_dict()}
LOOK_BEFORE = {"kind": "admit", "run": "run-5f0c9d2e", "event": LOOK.as_dict()}


def test_a_ledger_of_the_version_before_tells_what_its_runs_and_their_freezers_spent(tmp_path: Path) -> None:
    """Four steps reserved, one of them lost; a freezer's release; and another run's, which is not counted for it."""
    path = as_before(
        tmp_path / "ledger.jsonl",
        {**STEPS_BEFORE, "run": "mine", "what": "make_private"},
        {**LOOK_BEFORE, "what": "mine · freezing · Selecting() 1"}, about("reserve", 2, 1), about("commit", 2, 1),
        about("close", 2), about("reserve", 1, 2), about("commit", 1, 1), about("reserve", 1, 2),
        {**STEPS_BEFORE, "run": "other"}, about("reserve", 9, 5),
        {**LOOK_BEFORE, "run": "run-11111111", "what": "other · freezing · Selecting() 1"}, about("reserve", 11, 1),
        {**LOOK_BEFORE, "run": "run-22222222", "what": "nobody · freezing · Selecting() 1"}, about("reserve", 13, 1),
    )  # fmt: skip
    account = Account(stated(6, 8.0, 0), run="mine")
    account.attach(path)
    assert (account.charged_in_all, list(account.releases.values()), account.steps) == (4, [LOOK], 2)
    assert not account.is_made(0)
    look(account)
    take(account, 2)
    snapshot = Snapshot.from_dict(json.loads(json.dumps(account.snapshot().as_dict())))
    again = Account(stated(6, 8.0, 0), run="mine")
    again.attach(path)
    again.restore(snapshot, releases_stand=True)
    assert (again.charged_in_all, list(again.releases.values()), again.is_made(0)) == (6, [LOOK, LOOK], True)
    ids = [entry.id for entry in Ledger(path).entries]
    assert len(set(ids)) == len(ids)


def test_runs_of_two_ledgers_of_the_version_before_are_not_taken_for_one(tmp_path: Path) -> None:
    """Made in the same second with the same budget, the ledgers have the same first record."""
    paths = [
        as_before(tmp_path / name, {**STEPS_BEFORE, "run": name}, about("reserve", 1, 3)) for name in ("one", "other")
    ]
    snapshots = []
    for path in paths:
        account = Account(stated(), run=path.name)
        account.attach(path)
        snapshots.append(account.snapshot())
    account.restore(snapshots[0])
    assert account.charged_in_all == 6


# What snapshots may say.


def test_a_counter_that_another_noise_is_told_of_is_refused() -> None:
    """Or many steps with much noise would stand for those that were taken with little."""
    account = Account(stated())
    take(account, 2)
    spent = account.epsilon()
    forged = {account.id: Gaussian(noise_multiplier=1e6, steps=3)}
    for go_on in (
        lambda: account.restore(Snapshot(steps_taken=0, counters=forged, releases={})),
        lambda: account.learn(forged),
    ):
        with pytest.raises(InvalidValue, match="the same id"):
            go_on()
    assert (account.steps_taken, account.epsilon()) == (2, spent)


@pytest.mark.parametrize(
    "wrong",
    [
        {"made": ["unknown"]}, {"made": [7]}, {"steps_taken": -1}, {"steps_taken": True},
        {"counters": {"a": Unprotected("a mask").as_dict()}}, {"counters": {"a": {"kind": "gaussian"}}},
        {"releases": {"a": {}}},
    ],
    ids=str,
)  # fmt: skip
def test_a_snapshot_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    facts = {"steps_taken": 0, "counters": {}, "releases": {}, "made": []}
    Snapshot.from_dict(facts)
    with pytest.raises(ValueError):  # noqa: PT011 - InvalidValue is one
        Snapshot.from_dict(facts | wrong)


def test_what_is_learned_of_a_snapshot_includes_its_releases() -> None:
    first = Account(stated(6, 8.0, 0))
    look(first)
    take(first, 2)
    account = Account(stated())
    account.learn(first.snapshot())
    assert account.events() == first.events()
    assert account.steps_taken == 0


# Planned releases.


def test_a_planned_release_that_failed_is_made_again_only_within_the_epsilon() -> None:
    plan = calibrated(6, 4, event=Gaussian(noise_multiplier=3.0))
    account = Account(plan)
    take(account, 4)
    with pytest.raises(ZeroDivisionError), account.release(plan.releases[0].event, "a look", number=0):
        raise ZeroDivisionError
    with pytest.raises(BudgetSpent, match="above the 2 that was planned"):
        look(account, event=Gaussian(noise_multiplier=3.0))
    assert account.epsilon() <= 2.0


def test_a_planned_release_is_the_one_that_was_planned() -> None:
    account = Account(calibrated(6, 0))
    with pytest.raises(InvalidValue, match="planned"):
        look(account, event=Gaussian(noise_multiplier=0.5))
    look(account)
    assert (account.epsilon() < 2.0, account.steps) == (True, 6)


def test_a_release_that_another_plan_made_is_charged_as_what_it_is() -> None:
    dear = Account(stated(6, 8.0, 0))
    look(dear)
    account = Account(calibrated(6, 0, event=Gaussian(noise_multiplier=50.0)))
    account.restore(dear.snapshot(), releases_stand=True)
    assert take_all(account) < 6
    assert account.epsilon() <= 2.0


def test_what_a_release_found_is_as_old_as_the_snapshot_that_is_restored() -> None:
    account = Account(stated(6, 8.0, 2))
    take(account, 1)
    before = account.snapshot()
    take(account, 1)
    look(account)
    after = account.snapshot()
    account.restore(before, releases_stand=True)
    assert not account.is_made(0)
    account.restore(after, releases_stand=True)
    assert account.is_made(0)
    account.restore(before)
    assert account.is_made(0)  # what was found since is still there
    assert len(account.releases) == 1


def test_a_release_that_is_broken_off_before_it_begins_is_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(stated(6, 8.0, 0))

    def interrupt() -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(account, "on_change", interrupt)
    with pytest.raises(KeyboardInterrupt):
        look(account)
    assert not account.is_made(0)
    assert len(account.releases) == 1


def test_what_is_held_for_planned_releases_is_free_when_another_ledger_or_run_is_drawn_on(tmp_path: Path) -> None:
    plan, books, other = stated(6, 8.0, 0, 3), ledger(tmp_path), ledger(tmp_path, "other")
    account = Account(plan)
    for next_ledger, name in ((books, "first"), (books, "second"), (other, "third")):
        account.run = name
        account.attach(next_ledger)
    for each, held in ((books, 0), (other, 2)):
        assert sum(entry.owner is not None and entry.held.steps for entry in Ledger(each.path).entries) == held


# Plans for weights that have steps behind them, and the end of a run.


def test_an_account_that_was_not_restored_keeps_to_an_epsilon_meant_for_the_rest() -> None:
    spent = Gaussian(noise_multiplier=40.0, steps=10)
    plan = Plan.solve(
        size=100, sample_rate=1.0, steps=12, epsilon=2.0, delta=DELTA, accountant="rdp", taken=10, spent=spent
    )
    account = Account(plan)
    assert 2 <= take_all(account) < 12
    assert account.epsilon() <= 2.0
    restored = Account(plan)
    restored.restore(Snapshot(steps_taken=10, counters={"a": spent}, releases={}))
    assert (restored.steps, take_all(restored)) == (12, 2)
    assert restored.epsilon() <= 2.0


def test_a_run_that_was_closed_has_no_further_steps(tmp_path: Path) -> None:
    account = Account(stated())
    account.attach(ledger(tmp_path))
    take(account, 2)
    account.reserve()
    account.close()
    assert account.steps == 3  # one batch was drawn
    account.charge()
    with pytest.raises(BudgetSpent, match="closed"):
        account.reserve()


@pytest.mark.parametrize("order", ["restored, then attached", "attached, then restored", "a later stage"])
@pytest.mark.parametrize("closed", [True, False])
def test_what_a_run_released_that_never_took_a_step_is_learned_from_its_ledger(
    order: str, closed: bool, tmp_path: Path
) -> None:
    """Its first look is in the checkpoint, its second one in the ledger alone; another run goes on from there."""
    books, plan = ledger(tmp_path), stated(6, 8.0, 0, 0)
    first = Account(plan, run="first")
    first.attach(books)
    look(first, 0)
    saved = first.snapshot()
    look(first, 1)
    if closed:
        first.close()
    own_plan = stated(6, 8.0)  # without looks of its own
    again = Account(own_plan, run="again", after=[saved] if order == "a later stage" else [])
    if order == "restored, then attached":
        again.restore(saved)
    again.attach(books.path)
    if order == "attached, then restored":
        again.restore(saved)
    assert list(again.releases.values()) == [LOOK, LOOK]
    assert again.epsilon() == first.epsilon() == pytest.approx(Ledger(books.path).epsilon())
    assert again.stage_events() == (() if order == "a later stage" else again.events())
    take(again)
    assert Snapshot.from_dict(again.snapshot().as_dict()) == again.snapshot()
    assert again.epsilon() == pytest.approx(Ledger(books.path).epsilon())


@pytest.mark.parametrize("budget", [None, 5.0])
def test_lost_steps_are_replaced_once(tmp_path: Path, budget: float | None) -> None:
    account = Account(stated())
    account.attach(ledger(tmp_path, budget=budget))
    take(account, 2)
    snapshot = account.snapshot()
    account.reserve()
    account.restore(snapshot)
    for _ in range(2):
        account.reserve()
        account.replace_lost_steps()
        account.charge()
    assert (account.steps, account.allowance and account.allowance.entry.event.steps) == (6, 7)


def test_lost_steps_that_fit_are_asked_for_without_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account(stated())
    account.attach(ledger(tmp_path, budget=5.0))
    snapshot = account.snapshot()
    account.reserve()
    monkeypatch.setattr("hoarfrost.budget.ledger.steps_within", lambda *_, **__: pytest.fail("a search"))
    account.restore(snapshot)
    assert account.allowance is not None
    assert (account.steps, account.allowance.entry.event.steps) == (6, 7)


def test_as_many_lost_steps_are_replaced_as_fit(tmp_path: Path) -> None:
    books = ledger(tmp_path, budget=5.0)
    others = books.steps_left(stated().sample_rate, stated().noise_multiplier)
    assert others is not None
    books.admit(stated().event(others - 8))
    account = Account(stated())
    account.attach(books)
    snapshot = account.snapshot()
    for _ in range(3):
        account.reserve()
    account.restore(snapshot)  # three are lost, of which two can be paid for
    assert account.steps == 5
    assert account.allowance is not None
    assert account.allowance.entry.event.steps == 8


def test_what_was_refused_is_as_if_it_had_not_been_asked_for(tmp_path: Path) -> None:
    books = ledger(tmp_path, budget=1.0)
    account = Account(stated(6, 8.0, 0, 1, 2, 3))
    take(account, 2)
    before = account.snapshot()
    with pytest.raises(BudgetSpent):
        account.attach(books)
    assert account.snapshot() == before
    assert account.allowance is None
    assert Ledger(books.path).held() == ()
    take(account, 4)
    assert replace(account.plan.event(6)) in account.events()


# Ctrl-C at every line.


class Interruption:
    """Raises KeyboardInterrupt before the line of that number (from 0), of those that the account's files run."""

    FILES = (account_module.__file__, limits_module.__file__, allowance_module.__file__)

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: Any, kind: str, _: Any) -> Any:
        if frame.f_code.co_filename not in self.FILES:
            return None
        if kind == "line":
            self.left -= 1
            if self.left == -1:
                raise KeyboardInterrupt
        return self


def run_through(folder: Path, interruption: Interruption, *, booked: bool) -> None:
    """A loop whose owner goes on after Ctrl-C, whatever it met; then another process does."""
    plan, books = calibrated(8, 0, 2, event=Gaussian(noise_multiplier=12.0)), ledger(folder)
    account, taken, looks = Account(plan, run="mine"), 0, 0
    snapshots = [account.snapshot()]

    def step() -> None:
        nonlocal taken
        account.reserve()
        account.charge()
        taken += 1  # the noisy sum exists from here on
        account.commit()

    def look_at(number: int) -> None:
        nonlocal looks
        with account.release(plan.releases[number].event, "a look", number=number):
            looks += 1

    work: list[Callable[[], object]] = [
        step, lambda: booked and account.attach(books.path, ahead=2), lambda: look_at(0), step, step,
        lambda: snapshots.append(account.snapshot()), step,
        lambda: account.restore(snapshots[-1], releases_stand=True), lambda: look_at(1), step, step, account.reserve,
    ]  # fmt: skip
    before = sys.gettrace()
    sys.settrace(interruption)
    try:
        for each in work:
            try:
                each()
            except KeyboardInterrupt:
                continue
            except BudgetSpent:
                assert interruption.left < 0
        with suppress(BudgetSpent, KeyboardInterrupt):  # whatever it takes for drawn
            while True:
                account.charge()
                taken += 1
    finally:
        sys.settrace(before)

    def check(known: Account, steps: int, of_looks: int) -> None:
        assert known.charged_in_all >= steps
        assert len(known.releases) >= of_looks
        assert known.epsilon() <= 2.0

    check(account, taken, looks)
    if interruption.left >= 0 and not booked:
        assert (account.charged_in_all, len(account.releases)) == (taken, looks) == (7, 2)
    take_all(account)
    check(account, taken, looks)
    if account.allowance is not None:
        entries = Ledger(books.path).entries
        assert sum(e.reserved for e in entries if e.owner is None) >= taken - 1  # one was before the ledger
        assert sum(e.reserved for e in entries if e.owner is not None) >= looks
        later = Account(plan, run="mine")
        later.restore(snapshots[-1])
        later.attach(books.path)
        check(later, taken if len(snapshots) > 1 else taken - 1, looks)


@pytest.mark.parametrize(("booked", "lines"), [(True, 600), (False, 300)])
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))])
def test_ctrl_c_at_any_line_loses_nothing_that_was_released(
    tmp_path: Path, part: int, booked: bool, lines: int
) -> None:
    for number in range(part, 10_000, 12):
        interruption = Interruption(number)
        run_through(tmp_path / str(number), interruption, booked=booked)
        if interruption.left >= 0:  # nobody was interrupted
            assert number > lines
            return
    pytest.fail("the loop has no end")


# What is said.


def test_epsilon_is_worked_out_once_for_the_same_releases(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    compose = _rdp.epsilon
    monkeypatch.setattr(_rdp, "epsilon", lambda *given: asked.append(given) or compose(*given))
    account = Account(stated(noise=8.765))  # of which no other test asks
    take(account, 2)
    told = {account.epsilon() for _ in range(5)} | {account.statement().epsilon}
    assert len(asked) == len(told) == 1
    take(account)
    assert account.epsilon() > max(told)
    assert len(asked) == 2


def test_a_statement_says_that_runs_add_up_unless_a_ledger_counts_them(tmp_path: Path) -> None:
    account = Account(stated())
    assert any("runs on the same data add up" in line for line in account.statement().lines())
    account.attach(ledger(tmp_path))
    assert not any("add up" in line for line in account.statement().lines())


def test_a_snapshot_of_the_first_versions_is_read() -> None:
    """They know of no stages, and do not say whether they were seeded."""
    account = Account(stated())
    take(account, 2)
    facts = account.snapshot().as_dict()
    del facts["earlier"], facts["seeded"]
    assert Snapshot.from_dict(facts) == account.snapshot()


# Stages.


def test_an_earlier_stage_leaves_the_epsilon_of_the_next_alone() -> None:
    first = Account(calibrated(6, 0))
    look(first)
    take(first, 6)
    second = Account(calibrated(6, 0), after=[first.snapshot()])
    assert (second.steps, second.steps_taken, second.is_made(0)) == (6, 0, False)
    look(second)
    assert take_all(second) == 6
    assert second.epsilon() > 2.0 >= epsilon(second.stage_events(), DELTA, "rdp")
    assert second.charged_in_all == 12
    third = Account(calibrated(), after=[second.snapshot(), first.snapshot()])
    assert third.epsilon() == second.epsilon()
    assert take_all(third) == 6


def test_what_was_lost_of_an_earlier_stage_is_found_in_its_ledger(tmp_path: Path) -> None:
    books = ledger(tmp_path)
    first = Account(stated(12, 8.0, 4), run="first")
    first.attach(books.path)
    take(first, 2)
    early = first.snapshot()
    take(first, 2)
    look(first)
    second = Account(calibrated(), run="second", after=[early])
    second.attach(books.path)
    assert (second.charged_in_all, second.steps, second.stage_events()) == (4, 6, ())
    assert list(second.releases.values()) == [LOOK]
    assert take_all(second) == 6


def test_one_s_own_steps_stay_one_s_own_whatever_a_later_stage_says() -> None:
    first = Account(calibrated())
    take(first, 2)
    second = Account(calibrated(), after=[first.snapshot()])
    take(second)
    first.restore(second.snapshot())
    assert first.stage_events() == first.events()
    assert (first.steps_taken, first.steps) == (1, 4)
    assert take_all(first) == 3
    assert first.epsilon() <= 2.0
