"""The figures behind the guarantees, in small: the commands of `benchmarks.trust` with fewer trials."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.trust import admission, concurrent, edits, empty, finished, kills, opening
from benchmarks.trust.__main__ import keep
from hoarfrost.budget import Ledger


def test_a_killed_run_released_no_step_that_its_ledger_does_not_have() -> None:
    figures = kills.measure(10)
    for ahead in (1, 10):
        each = figures[f"ahead {ahead}"]
        assert each["covered"] == each["kills"] == 10
        assert each["largest excess"] <= ahead
    assert sum(each["kills between the first release and the last"] for each in figures.values()) > 0
    assert kills.summary(figures).count("10 of 10") == 2


def test_processes_on_one_budget_do_not_overspend_it() -> None:
    figures = concurrent.measure(4)
    assert (figures["processes"], figures["overspend"]) == (4, 0.0)
    assert figures["would buy"] < concurrent.LEAST  # they went on until nothing was left


def test_edits_are_noticed() -> None:
    figures = edits.measure(100)
    assert (figures["edits"], figures["noticed"]) == (100, 100)
    assert figures["kinds"]["cut"]["noticed by anyone"] < 25  # which is what an exported head is for


def test_empty_batches_are_noised_and_counted() -> None:
    assert empty.measure(50) == {"steps": 50, "empty": 50, "noised": 50, "reserved": 50, "committed": 50}


def test_a_ledger_of_finished_runs_opens_and_admits() -> None:
    opened = opening.measure(200)
    for each in opened.values():
        assert (each["records"], each["runs"]) == (201, 20)
    assert opening.summary(opened).count("201 records") == 2
    admitted = admission.measure(20)
    assert [each["finished runs"] for each in admitted.values()] == [20, 2]
    assert all(each["admission seconds"] > 0 for each in admitted.values())


def test_the_ledger_of_finished_runs_is_one_that_a_ledger_would_write(tmp_path: Path) -> None:
    finished.write(tmp_path / "ledger.jsonl", runs=3, budget=2.0)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    assert ledger.spent() == tuple(finished.kinds(3))
    assert all(entry.closed and entry.committed == finished.STEPS for entry in ledger.entries)


def test_figures_are_kept_next_to_those_of_other_commands(tmp_path: Path) -> None:
    keep(tmp_path / "trust.json", "kills", {"kills": 1})
    keep(tmp_path / "trust.json", "edits", {"edits": 2})
    keep(tmp_path / "trust.json", "kills", {"kills": 3})
    known = json.loads((tmp_path / "trust.json").read_text())
    assert (known["kills"]["kills"], known["edits"]["edits"]) == (3, 2)
