"""What a ledger admitted, to be drawn step by step."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
        taken stay spent. They are in the hand of the object, and of the process, that reserved them: neither a copy nor
        the child of a fork takes them.
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
    def in_hand(self) -> int:
        """How many were reserved here, and are still to be taken."""
        return self._in_hand if self._owner == os.getpid() else 0

    @property
    def left(self) -> int:
        """How many steps can still be taken."""
        return self.entry.left + self.in_hand

    def reserve(self, wanted: int | None = None, *, most: int | None = None) -> None:
        """Before every batch: reserves its step, and steps ahead of it.

        Args:
            wanted: no more than so many at once.
            most: no more than so many for the run in all, by whomever.
        """
        if self.in_hand == 0:
            self._in_hand, self._owner = 0, os.getpid()
            with self.ledger._writing() as writer:
                entry = self.entry
                if entry.closed:
                    raise BudgetSpent(f"the run {self.run!r} was closed in the ledger {self.ledger.path}")
                if entry.left == 0:
                    raise BudgetSpent(
                        f"all {entry.event.steps} steps that the ledger {self.ledger.path} admitted for {self.run!r} "
                        "are reserved"
                    )
                if most is not None and entry.reserved >= most:
                    raise BudgetSpent(f"the {most} steps that {self.run!r} may take are reserved, by another process")
                limits = (self.ahead, entry.left, wanted, None if most is None else most - entry.reserved)
                steps = min(limit for limit in limits if limit is not None)
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
        with self.ledger._affording(replace(self.entry.event, steps=steps)) as writer:
            self._record(writer, "extend", steps)

    def close(self) -> None:
        """Gives back what was not reserved. What is left in hand is lost: it was reserved."""
        self._in_hand = 0
        with self.ledger._writing() as writer:
            if not self.entry.closed:
                self.ledger._append(writer, {"kind": "close", "for": self.number, "at": now()})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _in_hand=0)

    def _record(self, writer: Writer, kind: str, steps: int, *, durable: bool = True) -> None:
        self.ledger._append(writer, {"kind": kind, "for": self.number, "steps": steps, "at": now()}, durable=durable)
