"""A ledger: what is spent is written before it is released, nobody spends more than there is, nothing is refunded."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import hoarfrost
from hoarfrost.budget import Gaussian, Ledger, _rdp, epsilon, make_key, privacy_filter, read_key
from hoarfrost.budget._journal import Journal
from hoarfrost.budget.accountant import within
from hoarfrost.budget.events import mechanisms
from hoarfrost.errors import BudgetSpent, HoarfrostError, InvalidValue, LedgerDamaged, NotPrivate
from hoarfrost.sampling.poisson import Poisson

STEP = Gaussian(noise_multiplier=1.0, sample_rate=0.01)
KEY = b"k" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def new(path: Path, budget: float | None = 2.0, **options: Any) -> Ledger:
    return Ledger.create(path, epsilon=budget, delta=1e-5, accountant="rdp", **options)


def steps(count: int) -> Gaussian:
    return replace(STEP, steps=count)


def reserved(path: Path, key: bytes | None = None) -> int:
    """What a stranger who opens the file finds reserved, in all."""
    return sum(entry.reserved for entry in Ledger(path, key).entries)


# Reserving.


def test_a_reservation_is_on_the_disk_when_reserve_returns_and_commits_change_nothing(path: Path) -> None:
    allowance = new(path).admit(steps(5))
    for count in range(1, 6):
        allowance.reserve()
        assert reserved(path) == count
        before = Ledger(path).epsilon()
        if count % 2:
            allowance.commit()
        assert Ledger(path).epsilon() == before == epsilon(steps(count), 1e-5, "rdp")


def test_reserved_ahead_is_spent_at_once_whether_it_is_taken_or_not(path: Path) -> None:
    allowance = new(path).admit(steps(25), ahead=10)
    seen = []
    for _ in range(25):
        allowance.reserve()
        seen.append(reserved(path))
    assert seen == [10] * 10 + [20] * 10 + [25] * 5
    with pytest.raises(BudgetSpent, match="all 25 steps"):
        allowance.reserve()


def test_neither_resuming_nor_closing_refunds_what_was_reserved(path: Path) -> None:
    allowance = new(path).admit(steps(20), run="mine", ahead=10)
    allowance.reserve()
    assert Ledger(path).resume("mine").left == 10  # the nine in hand are gone with the process
    Ledger(path).close("mine")
    ledger = Ledger(path)
    assert (reserved(path), ledger.held(), ledger.epsilon()) == (10, (), epsilon(steps(10), 1e-5, "rdp"))
    with pytest.raises(InvalidValue, match="is closed"):
        ledger.resume("mine")
    for _ in range(9):
        allowance.reserve()  # what it had reserved before somebody closed it is paid for
        allowance.commit()
    with pytest.raises(BudgetSpent, match="was closed"):
        allowance.reserve()
    assert reserved(path) == 10


def test_a_release_is_paid_for_before_its_block_and_stays_paid_if_the_block_fails(path: Path) -> None:
    ledger = new(path, budget=8.0)
    with ledger.release(Gaussian(noise_multiplier=5.0), what="a metric"):
        assert reserved(path) == 1
    with pytest.raises(ZeroDivisionError), ledger.release(Gaussian(noise_multiplier=5.0, steps=3), what="another"):
        raise ZeroDivisionError
    entries = Ledger(path).entries
    assert [(e.what, e.reserved, e.committed, e.closed) for e in entries] == [
        ("a metric", 1, 1, True), ("another", 3, 0, True)
    ]  # fmt: skip
    with pytest.raises(BudgetSpent), ledger.release(Gaussian(noise_multiplier=0.1), what="too much"):
        pytest.fail("the block ran")


def test_more_commits_than_reservations_are_refused_before_they_spoil_the_file(path: Path) -> None:
    allowance = new(path).admit(steps(5))
    with pytest.raises(InvalidValue, match="does not fit"):
        allowance.commit()
    assert reserved(path) == 0


# The budget.


def test_a_refusal_says_what_is_left_and_the_steps_that_it_buys_are_right(path: Path) -> None:
    ledger = new(path)
    other = ledger.admit(steps(100), run="open")
    other.reserve()
    with pytest.raises(BudgetSpent) as told:
        ledger.admit(steps(100_000))
    message = str(told.value)
    assert re.search(r"budget of 2 at delta 1e-05\. Spent so far: 0\.\d+, \d\.\d+ with what open runs hold", message)
    found = re.search(r"buys (\d+) such steps", message)
    assert found is not None
    buys = int(found[1])
    assert buys == ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier) > 0
    with pytest.raises(BudgetSpent):
        ledger.admit(steps(buys + 1))
    ledger.admit(steps(buys))
    assert ledger.epsilon_with_held() <= 2.0


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_a_mixed_ledger_never_admits_more_than_its_budget(path: Path, accountant: Any) -> None:
    ledger = Ledger.create(path, epsilon=3.0, delta=1e-5, accountant=accountant)
    for noise, rate in [(1.0, 0.01), (6.0, 1.0)]:
        buys = ledger.steps_left(rate, noise)
        assert buys
        event = Gaussian(noise_multiplier=noise, sample_rate=rate, steps=max(1, buys // 3))
        ledger.admit(event, ahead=event.steps).reserve()
    assert 1.5 < ledger.epsilon() <= 3.0


def test_what_open_runs_hold_is_not_for_others_until_they_are_closed(path: Path) -> None:
    ledger = new(path)
    all_of_it = ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier)
    assert all_of_it
    ledger.admit(steps(all_of_it), run="holds everything")
    assert Ledger(path).epsilon() == 0
    with pytest.raises(BudgetSpent, match="buys 0 such steps"):
        Ledger(path).admit(steps(1))
    Ledger(path).close("holds everything")
    Ledger(path).admit(steps(all_of_it))


def many_kinds(path: Path, count: int, budget: float, accountant: str = "pld") -> Ledger:
    """A ledger with so many finished runs, no two of the same kind."""
    Ledger.create(path, epsilon=budget, delta=1e-5, accountant=accountant)
    bodies = []
    for number in range(count):
        done = Gaussian(noise_multiplier=4 + number / count, sample_rate=0.001 + number * 1e-6, steps=50 + number)
        which = {"for": 1 + 3 * number}
        bodies += [
            admitted(run=f"run {number}", event=done.as_dict()),
            about("reserve", done.steps, **which),
            {"kind": "close", "at": 1, **which},
        ]
    forged(path, *bodies)
    return Ledger(path)


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp@4.4"])
def test_far_below_the_budget_many_kinds_of_finished_runs_take_no_long_computation(
    path: Path, monkeypatch: pytest.MonkeyPatch, accountant: str
) -> None:
    ledger = many_kinds(path, 60, budget=5.0, accountant=accountant)

    def long(*_: Any) -> float:
        pytest.fail("a distribution or a series for every kind of steps")

    with monkeypatch.context() as patch:
        patch.setattr("hoarfrost.budget._pld._one_step", long)
        patch.setattr("hoarfrost.budget._rdp.one_step", long)
        ledger.admit(steps(10), run="ours").extend(5)
    assert Ledger(path).find("ours") is not None


def test_near_the_budget_the_accountant_decides_as_before(path: Path) -> None:
    spent = many_kinds(path, 5, budget=9.0).spent()
    path.unlink()
    fits = epsilon((*spent, steps(300)), 1e-5)
    ledger = many_kinds(path, 5, budget=fits)
    assert _rdp.quick_epsilon(mechanisms((*spent, steps(300))), 1e-5) > fits  # which alone would refuse
    with pytest.raises(BudgetSpent, match="buys 300 such steps"):
        ledger.admit(steps(301))
    ledger.admit(steps(300))
    assert ledger.epsilon_with_held() == fits


def test_a_computation_of_what_fits_keeps_nobody_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(path)
    running = Ledger(path).admit(steps(5))

    def slow(*arguments: Any) -> bool:
        running.reserve()  # which needs the lock
        return bool(within(*arguments))

    monkeypatch.setattr("hoarfrost.budget._journal.GIVE_UP_AFTER", 0.1)
    monkeypatch.setattr("hoarfrost.budget.ledger.within", slow)
    ledger.admit(steps(5)).extend(1)
    assert reserved(path) == 2  # once for each: what others reserve of what they hold does not begin it anew


def test_what_is_admitted_while_others_compute_is_not_given_out_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = new(path)
    left = ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier)
    assert left
    asked = []

    def meanwhile(*arguments: Any) -> bool:
        asked.append(arguments)
        if len(asked) == 1:
            Ledger(path).admit(steps(left - 100), run="quicker")
        return bool(within(*arguments))

    monkeypatch.setattr("hoarfrost.budget.ledger.within", meanwhile)
    with pytest.raises(BudgetSpent, match="buys 100 such steps"):
        ledger.admit(steps(200))
    assert [entry.run for entry in Ledger(path).entries] == ["quicker"]
    ledger.admit(steps(100))


def test_a_name_taken_while_others_compute_is_not_given_out_twice(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = new(path)
    asked = []

    def meanwhile(*arguments: Any) -> bool:
        asked.append(arguments)
        if len(asked) == 1:
            other = Ledger(path).admit(steps(1), run="mine")
            other.close()  # so that nothing of it counts
        return bool(within(*arguments))

    monkeypatch.setattr("hoarfrost.budget.ledger.within", meanwhile)
    with pytest.raises(InvalidValue, match="a run named 'mine' already"):
        ledger.admit(steps(1), run="mine")


def test_how_many_of_some_steps_fit(path: Path) -> None:
    ledger = new(path)
    left = ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier)
    assert left
    for wanted in (1, left, left + 1, 10 * left):
        found = ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier, wanted=wanted)
        assert found == min(wanted, left)


def test_more_steps_of_a_run_are_asked_for_like_any_others(path: Path) -> None:
    ledger = new(path)
    allowance = ledger.admit(steps(10))
    left = ledger.steps_left(STEP.sample_rate, STEP.noise_multiplier)
    assert left
    with pytest.raises(BudgetSpent):
        allowance.extend(left + 1)
    allowance.extend(left)
    assert (allowance.left, Ledger(path).entries[0].event.steps) == (10 + left, 10 + left)


def test_without_a_limit_everything_is_admitted_and_counted(path: Path) -> None:
    ledger = new(path, budget=None)
    ledger.admit(steps(10**6), ahead=10**6).reserve()
    assert (ledger.steps_left(0.01, 1.0), ledger.epsilon() > 2) == (None, True)
    ledger.admit(Gaussian(noise_multiplier=0.0)).reserve()
    assert Ledger(path).epsilon() == math.inf


def test_without_noise_nothing_fits_a_budget(path: Path) -> None:
    with pytest.raises(BudgetSpent, match="to epsilon inf"):
        new(path).admit(Gaussian(noise_multiplier=0.0))


def test_seeded_runs_are_refused_unless_the_ledger_is_made_for_them(path: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="admits no seeded runs"):
        new(path).admit(steps(1), seeded=True)
    assert new(tmp_path / "other", seeded=True).admit(steps(1), seeded=True).entry.seeded


def test_a_name_is_given_once(path: Path) -> None:
    ledger = new(path)
    ledger.admit(steps(1), run="a")
    with pytest.raises(InvalidValue, match="a run named 'a' already"):
        Ledger(path).admit(steps(1), run="a")
    with pytest.raises(InvalidValue, match="knows no run named 'b'"):
        ledger.resume("b")


@pytest.mark.parametrize("wrong", [{"run": 7}, {"what": ["a"]}, {"data": 7}])
def test_a_record_that_readers_would_refuse_is_not_written(path: Path, wrong: dict[str, Any]) -> None:
    ledger = new(path)
    with pytest.raises(InvalidValue):
        ledger.admit(steps(1), **wrong)
    assert Ledger(path).entries == ()


# Several processes.


def in_processes(work: Callable[..., None], count: int, *arguments: Any) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=work, args=(number, *arguments)) for number in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0


def spend_until_refused(number: int, path: Path, key: bytes | None) -> None:
    ledger = Ledger(path, key)
    try:
        while True:
            allowance = ledger.admit(steps(40), ahead=7)
            for _ in range(5 * number):
                allowance.reserve()
                allowance.commit()
            if number % 2:
                allowance.close()
    except BudgetSpent:
        os._exit(0)


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "key"])
def test_eight_processes_on_one_budget_never_spend_more_than_it(path: Path, key: bytes | None) -> None:
    new(path, budget=1.5, key=key)
    in_processes(spend_until_refused, 8, path, key)
    ledger = Ledger(path, key)
    assert len(ledger.entries) >= 8
    assert 1.0 < ledger.epsilon_with_held() <= 1.5


def open_again_and_again(number: int, path: Path) -> None:
    if number == 0:
        allowance = Ledger(path, KEY).admit(steps(100))
        for _ in range(100):
            allowance.reserve()
    else:
        for _ in range(100):
            Ledger(path, KEY)
    os._exit(0)


def test_whoever_opens_a_ledger_while_others_write_sees_no_damage(path: Path) -> None:
    new(path, budget=8.0, key=KEY)
    in_processes(open_again_and_again, 3, path)


# Changes by other hands.


def forged(path: Path, *bodies: dict[str, Any], key: bytes | None = None) -> None:
    """Adds records with a right hash (and MAC), whatever they say."""
    journal = Journal(path, key)
    with journal.locked() as writer:
        for body in bodies:
            writer.append(body)


def admitted(**other: Any) -> dict[str, Any]:
    return {
        "kind": "admit", "run": "a", "what": "", "who": "me", "code": "1", "at": 1, "event": steps(5).as_dict(),
        "seeded": False, "data": None, **other,
    }  # fmt: skip


def about(kind: str, count: Any = 1, **other: Any) -> dict[str, Any]:
    return {"kind": kind, "for": 1, "steps": count, "at": 1, **other}


def event(**other: Any) -> dict[str, Any]:
    return admitted(event={**steps(5).as_dict(), **other})


IMPOSSIBLE: dict[str, list[dict[str, Any]]] = {
    "commits more than was reserved": [admitted(), about("reserve"), about("commit", 2)],
    "reserves more than was admitted": [admitted(), about("reserve", 6)],
    "negative steps": [admitted(), about("reserve", -1)],
    "no steps": [admitted(), about("reserve", 0)],
    "steps as text": [admitted(), about("reserve", "1")],
    "half a step": [admitted(), about("reserve", 0.5)],
    "true steps": [admitted(), about("reserve", True)],
    "huge steps": [admitted(), about("extend", 10**400)],
    "many huge extensions": [admitted(), about("extend", 10**9), about("extend", 10**9)],
    "an unknown kind": [admitted(), about("refund")],
    "a kind that is a list": [admitted(), about([])],  # type: ignore[arg-type]
    "no kind": [{"steps": 1}],
    "a second budget": [{"kind": "create", "format": 1, "epsilon": 99.0, "delta": 1e-5}],
    "for an unknown entry": [about("reserve")],
    "for a list": [admitted(), about("reserve", **{"for": []})],
    "for itself": [admitted(), about("reserve", **{"for": 2})],
    "after its end": [admitted(), about("close"), about("reserve")],
    "closed twice": [admitted(), about("close"), about("close")],
    "negative noise": [event(noise_multiplier=-1.0)],
    "huge noise": [event(noise_multiplier=10**400)],
    "noise as text": [event(noise_multiplier="1")],
    "a rate above 1": [event(sample_rate=1.5)],
    "no rate": [event(sample_rate=0)],
    "huge plan": [event(steps=10**400)],
    "another event": [event(kind="laplace")],
    "an event that is a list": [admitted(event=[])],
    "an event of lists": [admitted(event={"kind": []})],
    "a name that is a list": [admitted(run=["a"])],
    "a name twice": [admitted(), admitted()],
    "text that is a number": [admitted(what=7)],
    "a time before time": [admitted(at=-1)],
    "a time after time": [admitted(at=10**30)],
    "seeded maybe": [admitted(seeded="perhaps")],
    "data that is a number": [admitted(data=5)],
    "nothing but a number": [{}],
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_records_that_are_chained_rightly_but_cannot_be_are_refused(path: Path, case: str) -> None:
    new(path)
    watching = Ledger(path)
    forged(path, *IMPOSSIBLE[case])
    with pytest.raises(LedgerDamaged, match="holds a record that cannot be") as told:
        Ledger(path)
    assert "\n" not in str(told.value)
    for _ in range(2):  # and whoever has it open does not go on as if nothing had happened
        with pytest.raises(LedgerDamaged):
            watching.admit(steps(1))
        with pytest.raises(LedgerDamaged):
            watching.refresh()


def test_the_possible_records_are_possible(path: Path) -> None:
    """Or the test above would prove nothing."""
    new(path)
    forged(path, admitted(), about("reserve"), about("commit"), about("extend"), about("close"))
    (entry,) = Ledger(path).entries
    assert (entry.reserved, entry.committed, entry.event.steps, entry.closed) == (1, 1, 6, True)


FIRST: dict[str, Any] = {
    "kind": "create", "format": 1, "epsilon": 2.0, "delta": 1e-5, "accountant": "rdp", "keyed": False, "seeded": False,
    "note": "", "who": "me", "code": "1", "at": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"format": 2}, {"epsilon": -1.0}, {"epsilon": "8"}, {"epsilon": 10**400}, {"delta": 0}, {"delta": None},
        {"accountant": "prv"}, {"accountant": []}, {"keyed": "no"}, {"seeded": 1}, {"note": []}, {"kind": "admit"},
        {"at": 1e9},
    ],
    ids=str,
)  # fmt: skip
def test_a_budget_that_cannot_be_is_refused(path: Path, other: dict[str, Any]) -> None:
    Journal(path).create({**FIRST, **other})
    with pytest.raises(LedgerDamaged):
        Ledger(path)


def test_a_first_record_as_it_should_be_is_read(path: Path) -> None:
    Journal(path).create(FIRST)
    assert Ledger(path).budget == 2.0


@pytest.mark.parametrize(
    "steps_text",
    ["NaN", "Infinity", "1e999", "-0", "1" * 5000, "[" * 500 + "]" * 500, "[" * 9999 + "]" * 9999, '"\\ud800"'],
)
def test_numbers_that_are_none_are_refused_although_the_hash_is_right(path: Path, steps_text: str) -> None:
    ledger = new(path)
    ledger.admit(steps(5), run="a")
    body = f'{{"at":1,"for":1,"kind":"reserve","n":2,"steps":{steps_text}}}'
    digest = hashlib.sha256(f"{ledger.head.hash}\n{body}\n".encode()).hexdigest()
    with open(path, "a") as file:
        file.write(body.replace('"kind"', f'"hash":"{digest}","kind"') + "\n")
    with pytest.raises(LedgerDamaged):
        Ledger(path)


def test_the_hash_in_the_test_above_is_right(path: Path) -> None:
    test = test_numbers_that_are_none_are_refused_although_the_hash_is_right
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test(path, "1")


def test_truncation_is_noticed_by_whoever_kept_the_head(path: Path) -> None:
    ledger = new(path)
    allowance = ledger.admit(steps(3))
    allowance.reserve()
    head = str(ledger.head)
    allowance.reserve()
    Ledger(path).check(head)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    shorter = Ledger(path)  # nothing in the file itself tells
    with pytest.raises(LedgerDamaged, match="does not contain the record 2"):
        shorter.check(head)


def test_truncation_is_noticed_with_the_owner_s_key(path: Path) -> None:
    allowance = new(path, key=KEY).admit(steps(3))
    allowance.reserve()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(LedgerDamaged, match="was cut: it ends before record 2"):
        Ledger(path, KEY)


@pytest.mark.parametrize("head", [None, b"", b"\xff", b"1", b"1:" + b"0" * 64, b"2:" + b"0" * 64 + b" " + b"0" * 64])
def test_a_head_file_that_is_gone_or_not_the_owner_s_is_noticed(path: Path, head: bytes | None) -> None:
    new(path, key=KEY).admit(steps(3)).reserve()
    head_file = path.with_name(f"{path.name}.head")
    if head is None:
        head_file.unlink()
    else:
        head_file.write_bytes(head)
    with pytest.raises(LedgerDamaged):
        Ledger(path, KEY)
    assert reserved(path) == 1  # without the key it can still be read


def test_a_record_without_the_owner_s_key_is_noticed_and_nobody_writes_one_by_mistake(path: Path) -> None:
    new(path, key=KEY).admit(steps(3), run="a")
    with pytest.raises(InvalidValue, match="whoever draws on it needs it"):
        Ledger(path).admit(steps(1))
    with pytest.raises(InvalidValue, match="whoever draws on it needs it"):
        Ledger(path).close("a")
    forged(path, about("close"))
    assert Ledger(path).entries[0].closed
    with pytest.raises(LedgerDamaged, match="not written with this key"):
        Ledger(path, KEY)


def test_the_wrong_key_and_a_key_to_a_ledger_without_one_are_refused(path: Path, tmp_path: Path) -> None:
    new(path, key=KEY)
    new(tmp_path / "open")
    for other in (path, tmp_path / "open"):
        with pytest.raises(HoarfrostError):
            Ledger(other, b"x" * 32)


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    key = make_key(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert read_key(tmp_path / "key") == key
    with pytest.raises(InvalidValue, match="already"):
        make_key(tmp_path / "key")
    for wrong in (b"", b"abc", b"\xff" * 64, key.hex().encode() * 2):
        (tmp_path / "wrong").write_bytes(wrong)
        with pytest.raises(InvalidValue, match="not a ledger's key"):
            read_key(tmp_path / "wrong")


def test_a_fingerprint_tells_nothing_without_the_key_and_knows_the_data_with_it(path: Path, tmp_path: Path) -> None:
    ledger, unkeyed = new(path, key=KEY), new(tmp_path / "unkeyed")
    assert unkeyed.fingerprint(b"data") is None
    one, other = ledger.fingerprint(b"data"), ledger.fingerprint(b"other data")
    assert one != other
    assert one not in (hashlib.sha256(b"data").hexdigest(), new(tmp_path / "k", key=b"j" * 32).fingerprint(b"data"))
    ledger.admit(steps(1), data=one)
    Ledger(path, KEY).admit(steps(1), data=one)
    with pytest.raises(InvalidValue, match="another data set"):
        Ledger(path, KEY).admit(steps(1), data=other)
    Ledger(path, KEY).admit(steps(1), data=other, new_data=True)


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "below a file", "torn first line"])
def test_what_is_no_ledger_is_refused_in_one_line(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "ledger.jsonl"
    match kind:
        case "folder":
            path.mkdir()
        case "empty":
            path.touch()
        case "below a file":
            (tmp_path / "file").touch()
            path = tmp_path / "file" / "ledger.jsonl"
        case "torn first line":
            path.write_text(json.dumps(FIRST))
    with pytest.raises(HoarfrostError) as told:
        Ledger(path)
    assert "\n" not in str(told.value)


# In training.


class Watched(Dataset[Any]):
    """Ten examples that tell whoever wants to know that they are read."""

    def __init__(self, read: Callable[[int], None]) -> None:
        self.read = read

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        self.read(index)
        return torch.ones(3) * index, torch.tensor(index % 2)


def private(data: Dataset[Any], **options: Any) -> Any:
    model = nn.Linear(3, 2)
    settings: dict[str, Any] = {"noise_multiplier": 8.0, "delta": 1e-5, "sample_rate": 1.0, "steps": 4}
    return hoarfrost.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, **(settings | options))


def train(made: Any, most: int | None = None) -> None:
    model, optimizer, loader = made
    while made.steps_taken < made.steps:
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            if made.steps_taken == most:
                return


def test_a_step_is_on_the_disk_before_its_batch_is_drawn(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(path, budget=8.0)
    happened: list[str] = []
    draw, sync = Poisson.draw, os.fsync

    def drawn(*arguments: Any) -> Any:
        happened.append(f"draw {reserved(path)}")
        return draw(*arguments)

    def synced(file: int) -> None:
        sync(file)
        happened.append("disk")

    made = private(Watched(lambda index: None), ledger=path)
    monkeypatch.setattr(Poisson, "draw", drawn)
    monkeypatch.setattr(os, "fsync", synced)
    train(made)
    assert happened == ["disk", "draw 1", "disk", "draw 2", "disk", "draw 3", "disk", "draw 4"]
    assert [(e.reserved, e.committed) for e in Ledger(path).entries] == [(4, 4)]


def test_a_run_beyond_the_budget_is_refused_before_an_example_is_read(path: Path) -> None:
    new(path, budget=1.0)
    read: list[int] = []
    with pytest.raises(BudgetSpent, match=r"what is left buys \d+ such steps") as told:
        private(Watched(read.append), ledger=path, steps=500)
    assert read == []
    found = re.search(r"buys (\d+) such steps", str(told.value))
    assert found is not None
    buys = int(found[1])
    with pytest.raises(BudgetSpent):
        private(Watched(read.append), ledger=path, steps=buys + 1)
    private(Watched(read.append), ledger=path, steps=buys)


def test_a_step_that_cannot_be_written_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new(path, budget=8.0)
    read: list[int] = []
    made = private(Watched(read.append), ledger=path)
    before = [p.clone() for p in made.model.parameters()]

    def broken(file: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(InvalidValue, match="cannot write the ledger"):
        train(made)
    assert read == []
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))
    monkeypatch.undo()
    train(made)
    assert reserved(path) == 4


def test_steps_reserved_ahead_count_for_the_weights_too(path: Path) -> None:
    event = Gaussian(noise_multiplier=8.0, steps=4)
    allowance = new(path, budget=8.0).admit(event, run="mine", ahead=3)
    made = private(Watched(lambda index: None), ledger=allowance)
    train(made, most=1)
    assert (made.run, made.charged, reserved(path)) == ("mine", 3, 3)
    assert made.epsilon() == epsilon(replace(event, steps=3), 1e-5)


def test_a_named_run_goes_on_where_the_ledger_has_it_and_only_as_what_it_was(path: Path) -> None:
    new(path, budget=8.0, seeded=True)
    train(private(Watched(lambda index: None), ledger=path, run="mine"), most=1)
    for other in ({"noise_multiplier": 9.0}, {"sample_rate": 0.5}, {"seed": 1}):
        with pytest.raises(InvalidValue, match="was admitted to the ledger with other settings"):
            private(Watched(lambda index: None), ledger=path, run="mine", **other)
    again = private(Watched(lambda index: None), ledger=path, run="mine")
    assert (len(Ledger(path).entries), again.charged, again.allowance.left) == (1, 1, 3)
    train(again)
    assert reserved(path) == 4


def test_a_ledger_needs_to_know_how_long_the_run_is(path: Path) -> None:
    new(path)
    with pytest.raises(InvalidValue, match="how long the run is"):
        private(Watched(lambda index: None), ledger=path, steps=None)


def test_a_named_run_that_goes_on_without_a_checkpoint_takes_the_steps_it_has_left(path: Path) -> None:
    Ledger.create(path, epsilon=None, delta=1e-5, seeded=True)

    def start() -> Any:
        model = nn.Linear(2, 1)
        data = TensorDataset(torch.ones(10, 2))
        return hoarfrost.make_private(
            model, torch.optim.SGD(model.parameters(), lr=0.1), data, sample_rate=1.0, steps=5, noise_multiplier=1.0,
            delta=1e-5, ledger=path, run="mine", seed=1,
        )  # fmt: skip

    def take(private: Any, most: int) -> None:
        while most and private.steps_taken < private.steps:
            for (x,) in private.loader:
                private.model(x).mean().backward()
                private.optimizer.step()
                most -= 1
                break

    take(start(), 2)
    again = start()
    assert again.steps == 3
    assert again.optimizer.mechanism.noise.draws == 2  # a seeded stream does not begin with the same noise again
    take(again, 10)
    assert Ledger(path).entries[0].reserved == 5


def test_a_filter_is_chosen_for_the_budget_and_kept(path: Path) -> None:
    ledger = Ledger.create(path, epsilon=3.0, delta=1e-5, accountant="filter")
    assert ledger.accountant == Ledger(path).accountant == privacy_filter(3.0, 1e-5)
    step = Gaussian(noise_multiplier=2.0, sample_rate=0.1)
    left = ledger.steps_left(0.1, 2.0)
    assert left is not None
    ledger.admit(replace(step, steps=left))
    with pytest.raises(BudgetSpent):
        ledger.admit(step)


def test_a_filter_needs_a_budget(path: Path) -> None:
    with pytest.raises(InvalidValue, match="made for a budget"):
        Ledger.create(path, epsilon=None, delta=1e-5, accountant="filter")


# What breaks off in the middle.


@pytest.mark.parametrize(
    "where", ["hoarfrost.budget.contents.Contents._apply", "hoarfrost.budget._journal.Journal._hash"]
)
@pytest.mark.parametrize("number", [1, 2, 5])
def test_an_interrupt_while_records_are_read_loses_none(path: Path, where: str, number: int) -> None:
    ledger = new(path, budget=None)
    other = Ledger(path)
    allowance = other.admit(replace(STEP, steps=20))
    for _ in range(6):
        allowance.reserve()
    owner, _, name = where.rpartition(".")
    module, _, cls = owner.rpartition(".")
    kind = getattr(sys.modules[module], cls)
    plain, calls = getattr(kind, name), []

    def interrupt(self: Any, *args: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        return plain(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, name, interrupt)
        with pytest.raises(KeyboardInterrupt):
            ledger.refresh()
    ledger.refresh()
    assert ledger.entries == Ledger(path).entries
    assert ledger.entries[0].reserved == 6


def test_an_interrupt_between_writing_and_remembering_does_not_spoil_the_file(path: Path) -> None:
    new(path, budget=None)
    allowance = Ledger(path).admit(replace(STEP, steps=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_take", interrupt_on_call(2))
        with pytest.raises(KeyboardInterrupt):
            allowance.reserve()
    allowance.reserve()
    with pytest.raises(BudgetSpent):
        allowance.reserve()
    assert Ledger(path).entries[0].reserved == 2


def interrupt_on_call(number: int) -> Any:
    plain, calls = Ledger._take, []

    def take(self: Ledger, records: Any) -> None:
        calls.append(None)
        if len(calls) == number:
            raise KeyboardInterrupt
        plain(self, records)

    return take


def test_what_was_reserved_ahead_is_the_parents_after_a_fork(path: Path) -> None:
    new(path, budget=None)
    allowance = Ledger(path).admit(replace(STEP, steps=20), ahead=5)
    allowance.reserve()
    child = os.fork()
    if child == 0:
        try:
            allowance.reserve()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    allowance.reserve()
    assert Ledger(path).entries[0].reserved == 10


def test_a_step_belongs_to_the_process_that_drew_its_batch(path: Path) -> None:
    made = private(Watched(lambda index: None), ledger=None)
    for x, _ in made.loader:
        made.model(x).mean().backward()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                made.optimizer.step()
            except NotPrivate:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        made.optimizer.step()
        break
    else:
        pytest.fail("there was no batch")


@pytest.mark.parametrize("wrong", [{"note": None}, {"seeded": 1}])
def test_a_ledger_that_nobody_could_read_is_not_made(path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        Ledger.create(path, epsilon=1.0, delta=1e-5, **wrong)
    assert not path.exists()
