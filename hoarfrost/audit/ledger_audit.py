"""The audit of a run folder's books: whether what it states is what its ledger says it spent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hoarfrost.audit.result import Audit
from hoarfrost.budget import Gaussian, Ledger, Release, as_gaussian, epsilon
from hoarfrost.budget.entry import Entry
from hoarfrost.budget.events import from_dict
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.untrusted import size_of

MOST_BYTES = 1 << 24


@dataclass(frozen=True, kw_only=True)
class LedgerAudit(Audit):
    """What a run states it spent, beside what its ledger says."""

    kind: ClassVar[str] = "ledger"

    run: str
    stated_steps: int
    charged_steps: int  # by the ledger
    released_steps: int
    stated_epsilon: float | None  # None: not private
    second_epsilon: float  # of the same releases, by the other accountant

    def figures(self) -> tuple[str, ...]:
        stated = "not private" if self.stated_epsilon is None else f"ε {self.stated_epsilon:.4g}"
        return (
            f"ledger audit: {self.stated_steps} steps stated, {self.charged_steps} in the ledger, "
            f"{self.released_steps} of them released",
            f"{stated} stated; the other accountant says {self.second_epsilon:.4g}",
        )


def ledger(folder: str | Path, key: bytes | None = None) -> LedgerAudit:
    """Checks the ledger's chain, and the run's statement against it.

    Guarantees:
        A pass says that the ledger was not changed (cutting its end shows only against the head that ``budget.json``
        keeps), that everything it charged for this run is in the statement, and that the stated epsilon is what the
        stated releases cost.
    """
    folder = Path(folder)
    stated, run = facts(folder, "budget.json"), facts(folder, "run.json")
    try:
        releases = tuple(map(from_dict, stated["releases"]))
        own = folder / "ledger.jsonl"
        journal = Ledger(own if own.exists() else run["ledger"], key)
        name, delta, accountant, claimed = run["run"], stated["delta"], stated["accountant"], stated["epsilon"]
        # In a ledger of its own, everything is the folder's: also what was given up for an older checkpoint.
        # What a freezer released stands in it beside the run.
        ours = [entry for entry in journal.entries if own.exists() or entry.owner in run["runs"]]
        named = [entry for entry in ours if not entry.beside]
        taken, reserved = int(run["steps_taken"]), sum(entry.reserved for entry in named)
        alarms = [f"the run took {taken} steps, and its ledger knows of {reserved}"] if reserved < taken else []
        alarms += _disagreements(journal, stated, releases, ours)
        cost = epsilon(releases, delta, accountant)
        other = epsilon(releases, delta, "rdp" if accountant == "pld" else "pld")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(f"{folder} does not hold a run's books as `hoarfrost train` leaves them") from error
    if claimed is not None and not claimed >= cost * (1 - 1e-9):
        alarms.append(f"ε {claimed:.6g} is stated for releases that cost {cost:.6g}")
    return LedgerAudit(
        alarms=tuple(alarms),
        run=name,
        stated_steps=sum(event.steps for event in releases if isinstance(event, Gaussian)),
        charged_steps=reserved,
        released_steps=sum(entry.committed for entry in named),
        stated_epsilon=claimed,
        second_epsilon=other,
    )


def _disagreements(
    ledger: Ledger, stated: Mapping[str, Any], releases: tuple[Release, ...], ours: list[Entry]
) -> Iterator[str]:
    if stated["ledger_head"] is not None:
        try:
            ledger.check(stated["ledger_head"])
        except HoarfrostError as error:
            yield str(error)
    paid = list(map(as_gaussian, releases))
    for kind in {replace(entry.spent, steps=1) for entry in ours if entry.reserved}:
        charged = sum(entry.reserved for entry in ours if replace(entry.spent, steps=1) == kind)
        if sum(event.steps for event in paid if replace(event, steps=1) == kind) < charged:
            yield f"the ledger charged {replace(kind, steps=charged)}, which is more than the run states"


def facts(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a run folder."""
    path = folder / name
    if size_of(path, "file") > MOST_BYTES:
        raise InvalidValue(f"{path} is too long to be a run's")
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidValue(f"cannot read {path} as JSON") from error
    if not isinstance(found, dict):
        raise InvalidValue(f"{path} does not hold what a run folder's does")
    return found
