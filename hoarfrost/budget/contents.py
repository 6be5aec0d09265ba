"""What the records of a ledger say: its budget, and everything that was ever admitted."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hoarfrost import validate
from hoarfrost.budget._journal import Head, Journal
from hoarfrost.budget.accountant import Accountant, check_accountant
from hoarfrost.budget.accountant import epsilon as epsilon_of
from hoarfrost.budget.entry import EARLIER_OWNER, Entry
from hoarfrost.budget.events import Gaussian, gaussian_from_dict
from hoarfrost.budget.statement import EXAMPLE, check_unit
from hoarfrost.epochs import check_steps
from hoarfrost.errors import HoarfrostError, InvalidValue, LedgerDamaged

FORMAT = 1
LAST_MOMENT = 253402300799  # the year 9999: later ones cannot be shown
# What a record that cannot be may raise.
IMPOSSIBLE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, HoarfrostError)


class Contents:
    """What a `Ledger` can be asked, and how its records are read; nothing that writes them."""

    def __init__(self, path: str | Path, key: bytes | None = None) -> None:
        self.path = Path(path)
        self._key = key
        self._journal = Journal(self.path, key)
        self._entries: dict[int, Entry] = {}  # by the number of the record that admitted it
        self._numbers: dict[str, int] = {}  # by the run's name
        self._ids: dict[str, int] = {}  # the same by the id
        self._unsettled = False  # what follows was broken off: memory may lack records that the file has
        self.budget: float | None = None
        self.delta = math.nan
        self.accountant: Accountant = "pld"
        self.keyed = self.seeded = False
        self.note = ""
        self.unit = EXAMPLE
        if not os.path.isfile(self.path):  # not Path.is_file, which raises in a folder that may not be looked into
            raise InvalidValue(f"there is no ledger at {self.path}; make one with `hoarfrost ledger create`")
        vouched = self._journal.head_file()
        self.refresh()
        if not self._journal.hashes:
            raise LedgerDamaged(f"the ledger {self.path} is empty: not even its budget is in it")
        self._journal.check_head_file(vouched)

    def refresh(self) -> None:
        """Reads what others have written."""
        with self._settled():
            self._take(self._journal.read())

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Everything that was admitted, in order."""
        return tuple(self._entries.values())

    def find(self, run: str) -> Entry | None:
        """What was admitted under that name; None if nothing was."""
        return self._entries[self._numbers[run]] if run in self._numbers else None

    def spent(self) -> tuple[Gaussian, ...]:
        """All that was reserved: what has been released, or may have been."""
        return tuple(entry.spent for entry in self.entries if entry.reserved)

    def with_id(self, id: str) -> Entry | None:
        """What was admitted with that id; None if nothing was."""
        return self._entries[self._ids[id]] if id in self._ids else None

    def owned_by(self, id: str) -> tuple[Entry, ...]:
        """The releases in addition to the steps of the run with that id."""
        return tuple(entry for entry in self.entries if entry.owner == id)

    def held(self) -> tuple[Gaussian, ...]:
        """What open runs may still reserve."""
        return tuple(entry.held for entry in self.entries if entry.left)

    def epsilon(self) -> float:
        """What was spent, at the ledger's delta."""
        return epsilon_of(self.spent(), self.delta, self.accountant)

    def epsilon_with_held(self) -> float:
        """What will have been spent when all open runs take all their steps."""
        return epsilon_of(self.spent() + self.held(), self.delta, self.accountant)

    @property
    def head(self) -> Head:
        """The newest record. Keep it somewhere else, and `check` can tell later that nothing was taken away."""
        return self._journal.head

    def check(self, head: Head | str) -> None:
        """Refuses a ledger that does not contain the record which an earlier `head` names."""
        head = Head.parse(head) if isinstance(head, str) else head
        if not self._journal.contains(head):
            raise LedgerDamaged(
                f"the ledger {self.path} does not contain the record {head.number} that the given head names: it was "
                "cut, put back from an older copy, or is another ledger"
            )

    # The inside.

    @contextmanager
    def _settled(self) -> Iterator[None]:
        """Whatever breaks off what is done inside (Ctrl-C, a full disk), the file is read anew the next time."""
        if self._unsettled and self._journal.damage is None:
            known = self._journal.head if self._journal.hashes else None
            self._journal, self._entries, self._numbers, self._ids = Journal(self.path, self._key), {}, {}, {}
            self._take(self._journal.read())
            if known is not None and not self._journal.contains(known):
                self._journal.damage = LedgerDamaged(f"the ledger {self.path} was changed or cut since it was opened")
                raise self._journal.damage
        self._unsettled = True
        yield
        self._unsettled = False

    def _take(self, records: list[dict[str, Any]]) -> None:
        try:
            for record in records:
                self._apply(record)
        except IMPOSSIBLE as error:
            self._journal.damage = LedgerDamaged(f"the ledger {self.path} holds a record that cannot be: {error}")
            raise self._journal.damage from error

    def _apply(self, record: dict[str, Any]) -> None:
        if (record["kind"] == "create") != (record["n"] == 0):
            raise ValueError("the first record, and no other, states the budget")
        if record["n"] > 0:
            entry = self._entry_after(record)
            self._entries[entry.number] = entry
            self._numbers[entry.run] = self._ids[entry.id] = entry.number
            return
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}, where this version of Hoarfrost reads {FORMAT}")
        check_accountant(record["accountant"])
        validate.probability(delta=record["delta"])
        if record["epsilon"] is not None:
            validate.positive(epsilon=record["epsilon"])
        _check_kinds(record, note=str, who=str, code=str, at=int, keyed=bool, seeded=bool)
        self.budget, self.delta, self.accountant = record["epsilon"], record["delta"], record["accountant"]
        unit = record.get("unit", EXAMPLE)  # before there was a choice
        check_unit(unit)
        self.keyed, self.seeded, self.note, self.unit = record["keyed"], record["seeded"], record["note"], unit

    def _entry_after(self, record: Mapping[str, Any]) -> Entry:
        """The entry that the record makes or changes."""
        if record["kind"] == "admit":
            kinds = {"run": str, "what": str, "who": str, "code": str, "at": int, "seeded": bool}
            _check_kinds(record, **kinds)
            if not isinstance(record["data"], str | None):
                raise ValueError("its data is not what such records hold")
            if self.find(record["run"]) is not None:
                raise ValueError("a second run of the same name")
            event = gaussian_from_dict(record["event"])
            check_steps(event.steps)
            facts = {name: record[name] for name in (*kinds, "data")}
            id, owner = self._identity(record)
            return Entry(number=record["n"], id=id, owner=owner, event=event, **facts)
        if record["kind"] != "close":
            check_steps(record["steps"])
        after = self._entries[record["for"]].after(record)
        if record["kind"] == "extend":
            check_steps(after.event.steps)
        return after

    def _identity(self, record: Mapping[str, Any]) -> tuple[str, str | None]:
        """A record's id and its owner's; for one that an earlier version wrote, from what it says."""
        if "id" in record:
            id, owner = record["id"], record["owner"]
            if not isinstance(id, str) or not isinstance(owner, str | None):
                raise ValueError("its id or owner is not what such records hold")
            if self.with_id(id) is not None:
                raise ValueError("a second entry with the same id")
            return id, owner
        run, words, _ = record["what"].partition(EARLIER_OWNER)
        owned = self.find(run) if words else None
        return self._journal.hashes[record["n"]][:32], None if owned is None else owned.id


def _check_kinds(record: Mapping[str, Any], **kinds: type) -> None:
    for name, kind in kinds.items():
        if type(record[name]) is not kind or (name == "at" and not 0 <= record[name] <= LAST_MOMENT):
            raise ValueError(f"its {name} is not what such records hold")
