"""A ledger's account, for a person and for a program."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_FLOOR, Decimal
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hoarfrost.budget import Gaussian, Ledger
from hoarfrost.budget.entry import Entry
from hoarfrost.train import formatting
from hoarfrost.untrusted import line

KINDS = 3  # of steps, the newest: how many are left of one may take seconds to compute


@dataclass(frozen=True)
class Account:
    """What is told of a ledger, worked out once."""

    ledger: Ledger
    epsilon: float
    with_held: float
    steps_left: Mapping[Gaussian, int]  # by the event of one step; not all of them, and none without a limit
    macs: bool  # were checked
    head: bool  # was checked against an earlier one

    @classmethod
    def of(cls, ledger: Ledger, *, every: bool, macs: bool, head: bool) -> Account:
        """Works it out; ``every`` for all kinds of steps."""
        kinds = list(dict.fromkeys(_one(entry) for entry in reversed(ledger.entries)))
        with Console(stderr=True).status("counting what is left ..."):  # on a terminal only
            counts = {
                kind: ledger.steps_left(kind.sample_rate, kind.noise_multiplier)
                for kind in (kinds if every else kinds[:KINDS])
            }
        return cls(
            ledger=ledger,
            epsilon=ledger.epsilon(),
            with_held=ledger.epsilon_with_held(),
            steps_left={kind: count for kind, count in counts.items() if count is not None},
            macs=macs,
            head=head,
        )

    @property
    def left(self) -> float | None:
        """What nobody has spent or holds; None without a limit."""
        return None if self.ledger.budget is None else max(0.0, self.ledger.budget - self.with_held)

    def json(self) -> str:
        """One object. Infinity, which JSON does not know, is null: then something was released without noise."""
        ledger = self.ledger
        facts = {
            "path": str(ledger.path),
            "note": ledger.note,
            "budget": ledger.budget,
            "delta": ledger.delta,
            "accountant": ledger.accountant,
            "epsilon": _number(self.epsilon),
            "epsilon_with_held": _number(self.with_held),
            "epsilon_left": self.left,
            "private": math.isfinite(self.epsilon),
            "seeded_allowed": ledger.seeded,
            "head": str(ledger.head),
            "checked": {"chain": True, "macs": self.macs, "head": self.head},
            "keyed": ledger.keyed,
            "entries": [self._facts(entry) for entry in ledger.entries],
        }
        return json.dumps(facts, indent=2, allow_nan=False)

    def print(self) -> None:
        """As lines and a table, as wide as the terminal; 80 columns if there is none, or less of it."""
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # names in letters that the terminal does not have
        console = Console(highlight=False, markup=False, emoji=False)
        console.width = max(80, console.width)  # in less, numbers would be cut
        console.print(formatting.columns(self._lines()), soft_wrap=True)
        if self.ledger.entries:
            console.print()
            console.print(self._table())

    def _lines(self) -> list[tuple[str, str]]:
        ledger = self.ledger
        about = f" at delta {ledger.delta:g} ({ledger.accountant} accountant)"
        lines = [("ledger", line(str(ledger.path)))]
        lines += [("note", line(ledger.note))] if ledger.note else []
        lines += [("budget", ("no limit" if ledger.budget is None else f"epsilon {ledger.budget:g}") + about)]
        infinite = math.isinf(self.epsilon)
        spent = "not private: something was released without noise" if infinite else None
        lines += [("spent", spent or f"epsilon {formatting.epsilon(self.epsilon)}")]
        if ledger.held() and not infinite:
            lines += [
                ("held", f"by open runs: epsilon {formatting.epsilon(self.with_held)} when all their steps are taken")
            ]
        if self.left is not None:
            lines += [("left", f"epsilon {Decimal(self.left).quantize(Decimal('0.01'), rounding=ROUND_FLOOR)}")]
        return [*lines, ("head", str(ledger.head)), ("checked", self._checked())]

    def _checked(self) -> str:
        said = ["every record follows from those before it"]
        if self.macs:
            said += ["every MAC is right"]
        elif self.ledger.keyed:
            said += ["MACs not checked (give --key)"]
        return ";\n".join([*said, "the given head is there" if self.head else "against no earlier head (give --head)"])

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), header_style="bold")
        table.add_column("run", ratio=1, overflow="fold")
        for title in ("each step", "steps", "state", "left buys"):
            table.add_column(title, no_wrap=True)
        for entry in self.ledger.entries:
            facts = self._facts(entry)
            who = "\n".join(line(facts[name], 200) for name in ("run", "what", "who", "code") if facts[name])
            state = ["open" if facts["open"] else "closed"] + ["seeded"] * entry.seeded
            buys = "–" if facts["steps_left"] is None else f"{facts['steps_left']} steps"
            table.add_row(
                Text(f"{who}\n{facts['at']}"),
                f"rate {entry.event.sample_rate:.4g}\nnoise {entry.event.noise_multiplier:.4g}",
                f"{entry.event.steps} admitted\n{entry.reserved} reserved\n{entry.committed} released",
                "\n".join(state),
                buys,
            )
        return table

    def _facts(self, entry: Entry) -> dict[str, Any]:
        return {
            "run": entry.run,
            "what": entry.what,
            "who": entry.who,
            "at": datetime.fromtimestamp(entry.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "code": entry.code,
            "sample_rate": entry.event.sample_rate,
            "noise_multiplier": entry.event.noise_multiplier,
            "steps_admitted": entry.event.steps,
            "steps_reserved": entry.reserved,
            "steps_released": entry.committed,
            "open": not entry.closed,
            "seeded": entry.seeded,
            "steps_left": self.steps_left.get(_one(entry)),
        }


def _one(entry: Entry) -> Gaussian:
    return Gaussian(noise_multiplier=entry.event.noise_multiplier, sample_rate=entry.event.sample_rate)


def _number(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
