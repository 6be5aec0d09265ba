"""What `hoarfrost ledger show` prints, as text and as JSON."""

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

NEWEST = 3  # kinds of steps: computing how many steps are left takes seconds for each


@dataclass(frozen=True)
class LedgerReport:
    """A ledger's state: spent, held and left."""

    ledger: Ledger
    epsilon: float
    with_held: float
    steps_left: Mapping[Gaussian, int]  # by the event of one step; only some, and empty without a limit
    macs: bool  # whether they were checked
    head: bool  # whether an earlier head was checked

    @classmethod
    def of(cls, ledger: Ledger, *, every: bool, macs: bool, head: bool) -> LedgerReport:
        """Computes it; with ``every``, steps left are computed for all kinds of steps."""
        kinds = list(dict.fromkeys(_one_step(entry) for entry in reversed(ledger.entries)))
        with Console(stderr=True).status("computing the steps left ..."):  # on a terminal only
            counts = {
                kind: ledger.steps_left(kind.sample_rate, kind.noise_multiplier)
                for kind in (kinds if every else kinds[:NEWEST])
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
        """The budget that is neither spent nor held; None without a limit."""
        return None if self.ledger.budget is None else max(0.0, self.ledger.budget - self.with_held)

    def json(self) -> str:
        """One object. An infinite epsilon (a release without noise) is null, since JSON has no infinity."""
        ledger = self.ledger
        report = {
            "path": str(ledger.path),
            "note": ledger.note,
            "unit": ledger.unit,
            "budget": ledger.budget,
            "delta": ledger.delta,
            "accountant": ledger.accountant,
            "epsilon": _finite(self.epsilon),
            "epsilon_with_held": _finite(self.with_held),
            "epsilon_left": self.left,
            "private": math.isfinite(self.epsilon),
            "seeded_allowed": ledger.seeded,
            "head": str(ledger.head),
            "checked": {"chain": True, "macs": self.macs, "head": self.head},
            "keyed": ledger.keyed,
            "entries": [self._fields(entry) for entry in ledger.entries],
        }
        return json.dumps(report, indent=2, allow_nan=False)

    def print(self) -> None:
        """Prints lines and a table, as wide as the terminal, but at least 80 columns."""
        if hasattr(sys.stdout, "reconfigure"):
            sys.stdout.reconfigure(errors="backslashreplace")  # characters that the terminal cannot show
        console = Console(highlight=False, markup=False, emoji=False)
        console.width = max(80, console.width)  # narrower, numbers would be cut
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
        lines += [("unit", ledger.unit)]
        infinite = math.isinf(self.epsilon)
        spent = "not private: something was released without noise" if infinite else None
        lines += [("spent", spent or f"epsilon {formatting.epsilon(self.epsilon)}")]
        if ledger.held() and not infinite:
            held = formatting.epsilon(self.with_held)
            lines += [("held", f"by open runs: epsilon {held} once all their steps are taken")]
        if self.left is not None:
            lines += [("left", f"epsilon {Decimal(self.left).quantize(Decimal('0.01'), rounding=ROUND_FLOOR)}")]
        return [*lines, ("head", str(ledger.head)), ("checked", self._checked())]

    def _checked(self) -> str:
        checks = ["hash chain is intact"]
        if self.macs:
            checks += ["MACs are valid"]
        elif self.ledger.keyed:
            checks += ["MACs not checked (give --key)"]
        return ";\n".join(
            [*checks, "the given head is in the chain" if self.head else "no earlier head checked (give --head)"]
        )

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 1, 0), header_style="bold")
        table.add_column("run", ratio=1, overflow="fold")
        for title in ("each step", "steps", "state", "steps left"):
            table.add_column(title, no_wrap=True)
        for entry in self.ledger.entries:
            fields = self._fields(entry)
            who = "\n".join(line(fields[name], 200) for name in ("run", "what", "who", "code") if fields[name])
            state = ["open" if fields["open"] else "closed"] + ["seeded"] * entry.seeded
            left = "–" if fields["steps_left"] is None else f"{fields['steps_left']} steps"
            table.add_row(
                Text(f"{who}\n{fields['at']}"),
                f"rate {entry.event.sample_rate:.4g}\nnoise {entry.event.noise_multiplier:.4g}",
                f"{entry.event.steps} admitted\n{entry.reserved} reserved\n{entry.committed} released",
                "\n".join(state),
                left,
            )
        return table

    def _fields(self, entry: Entry) -> dict[str, Any]:
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
            "steps_left": self.steps_left.get(_one_step(entry)),
        }


def _one_step(entry: Entry) -> Gaussian:
    return Gaussian(noise_multiplier=entry.event.noise_multiplier, sample_rate=entry.event.sample_rate)


def _finite(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None
