"""What a ledger admitted, to be drawn step by step."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from hoarfrost import validate
from hoarfrost.budget.entry import Entry, now
from hoarfrost.errors import BudgetSpent

if TYPE_CHECKING:
    from hoarfrost.budget._journal import Writer
    from hoarfrost.budget.ledger import Ledger


class Allowance:
    """What a ledger admitted: so many steps, to be reserved one after the other.

    Guarantees:
        `reserve` returns when the reservation is on the disk, and not before. Steps that were reserved ahead and never
        taken stay spent.
    """

    def __init__(self, ledger: Ledger, number: int, ahead: int) -> None:
        validate.whole(ahead=ahead)
        self.ledger, self.number, self.ahead = ledger, number, ahead
        self._in_hand = 0  # reserved by this object, and not taken yet
        self._owner = os.getpid()

    @property
    def entry(self) -> Entry:
        """What the ledger knows of it."""
        return self.ledger._entries[self.number]

    @property
    def run(self) -> str:
        """The name under which it can be resumed."""
        return self.entry.run

    @property
    def left(self) -> int:
        """How many steps can still be taken."""
        return self.entry.held.steps + self._in_hand

    @property
    def gone(self) -> int:
        """How many were taken, or lost after they were reserved."""
        return self.entry.reserved - self._in_hand

    def reserve(self, most: int | None = None) -> None:
        """Before every batch: reserves its step, and steps ahead of it, ``most`` at the most."""
        if self._owner != os.getpid():
            self._in_hand, self._owner = 0, os.getpid()  # after a fork, what was reserved is the parent's
        if self._in_hand == 0:
            with self.ledger._writing() as writer:
                steps = min(self.ahead, self.entry.held.steps, self.ahead if most is None else most)
                if self.entry.closed:
                    raise BudgetSpent(f"the run {self.run!r} was closed in the ledger {self.ledger.path}")
                if steps == 0:
                    raise BudgetSpent(
                        f"all {self.entry.event.steps} steps that the ledger {self.ledger.path} admitted for "
                        f"{self.run!r} are reserved"
                    )
                self._record(writer, "reserve", steps)
            self._in_hand = steps
        self._in_hand -= 1

    def commit(self, steps: int = 1) -> None:
        """After the release. Not flushed to the disk: a commit that is lost changes nothing about what is spent."""
        with self.ledger._writing() as writer:
            self._record(writer, "commit", steps, durable=False)

    def extend(self, steps: int) -> None:
        """Asks for more steps of the same kind."""
        validate.whole(steps=steps)
        with self.ledger._writing() as writer:
            self.ledger._refuse_beyond_budget(replace(self.entry.event, steps=steps))
            self._record(writer, "extend", steps)

    def close(self) -> None:
        """Gives back what was not reserved. What is left in hand is lost: it was reserved."""
        self._in_hand = 0
        with self.ledger._writing() as writer:
            if not self.entry.closed:
                self.ledger._append(writer, {"kind": "close", "for": self.number, "at": now()})

    def _record(self, writer: Writer, kind: str, steps: int, *, durable: bool = True) -> None:
        self.ledger._append(writer, {"kind": kind, "for": self.number, "steps": steps, "at": now()}, durable=durable)
