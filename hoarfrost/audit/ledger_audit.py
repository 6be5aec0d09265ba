"""The ledger audit: does a run folder state what its ledger charged?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from hoarfrost.audit.result import Audit
from hoarfrost.budget import Gaussian, Ledger, Release, as_gaussian, epsilon
from hoarfrost.budget.entry import Entry
from hoarfrost.budget.events import from_dict
from hoarfrost.errors import HoarfrostError, InvalidValue
from hoarfrost.train.folder import read_json


@dataclass(frozen=True, kw_only=True)
class LedgerAudit(Audit):
    """What a run states that it spent, beside what its ledger charged."""

    kind: ClassVar[str] = "ledger"

    run: str
    stated_steps: int
    charged_steps: int  # in the ledger
    released_steps: int
    stated_epsilon: float | None  # None: not private
    other_accountant_epsilon: float  # of the same releases

    def figures(self) -> tuple[str, ...]:
        stated = "not private" if self.stated_epsilon is None else f"ε {self.stated_epsilon:.4g}"
        return (
            f"ledger audit: {self.stated_steps} steps stated, {self.charged_steps} charged, "
            f"{self.released_steps} released",
            f"{stated} stated; with the other accountant {self.other_accountant_epsilon:.4g}",
        )


def ledger(folder: str | Path, key: bytes | None = None) -> LedgerAudit:
    """Checks the ledger's hash chain, and compares the run's statement with the ledger.

    Guarantees:
        A pass says that the ledger was not changed (a cut is detected only up to the head that ``budget.json`` keeps),
        that all it charged for this run is in the statement, and that the stated epsilon is what the stated releases
        cost.
    """
    folder = Path(folder)
    stated, run = read_json(folder, "budget.json"), read_json(folder, "run.json")
    try:
        releases = tuple(map(from_dict, stated["releases"]))
        own = folder / "ledger.jsonl"
        opened = Ledger(own if own.exists() else run["ledger"], key)
        name, delta, accountant, claimed = run["run"], stated["delta"], stated["accountant"], stated["epsilon"]
        # All entries of the folder's own ledger are this run's, also those of steps after an older checkpoint that was
        # resumed. Freezers' releases are separate entries.
        runs = {entry.id for entry in opened.entries if entry.run in run["runs"]}
        ours = [entry for entry in opened.entries if own.exists() or {entry.id, entry.owner} & runs]
        named = [entry for entry in ours if entry.owner is None]
        taken, reserved = int(run["steps_taken"]), sum(entry.reserved for entry in named)
        alarms = [f"the run took {taken} steps, and its ledger charged {reserved}"] if reserved < taken else []
        alarms += _disagreements(opened, stated, releases, ours)
        cost = epsilon(releases, delta, accountant)
        other = epsilon(releases, delta, "rdp" if accountant == "pld" else "pld")
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidValue(
            f"{folder} is not a run folder as `hoarfrost train` writes it: check budget.json, run.json and the ledger"
        ) from error
    if claimed is not None and not claimed >= cost * (1 - 1e-9):
        alarms.append(f"the stated ε is {claimed:.6g}, and the stated releases cost {cost:.6g}")
    return LedgerAudit(
        alarms=tuple(alarms),
        run=name,
        stated_steps=sum(event.steps for event in releases if isinstance(event, Gaussian)),
        charged_steps=reserved,
        released_steps=sum(entry.committed for entry in named),
        stated_epsilon=claimed,
        other_accountant_epsilon=other,
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
            yield f"the ledger charged more than the run states: {replace(kind, steps=charged)}"
