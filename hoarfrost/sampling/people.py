"""Whose each row of a data set is, where the unit of privacy is a person."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hoarfrost import validate
from hoarfrost.errors import InvalidValue, NotPrivate
from hoarfrost.noise import Keystream

_CHUNK = 1 << 16  # random words read at a time


class People:
    """The people behind the rows of a data set: who is drawn brings up to ``per_person`` of their rows.

    Args:
        person: an id for each row: a list, tensor, array or column. Rows with equal ids are one person's.
        rows: how many rows the data set has.
        per_person: the most rows that a person brings to a step.

    Guarantees:
        Which rows a person brings depends on their own rows and on fresh random bits alone. They are drawn anew each
        time, without replacement, each set of so many rows with the same probability (but for two of the 64-bit
        numbers that are compared being equal).

    >>> people = People(["ann", "bob", "ann", "ann"], rows=4, per_person=2)
    >>> len(people)
    2
    >>> [len(rows) for rows in people.bring([0, 1], Keystream("example", seed=0))]
    [2, 1]
    """

    def __init__(self, person: Any, rows: int, per_person: int) -> None:
        validate.whole(per_person=per_person)
        self.per_person = per_person
        numbers = _numbered(person)
        if len(numbers) != rows:
            raise InvalidValue(
                f"person has {len(numbers)} ids, and the data set {rows} rows: give one id for each row, in its order"
            )
        self._order = np.argsort(numbers, kind="stable").astype(np.int64, copy=False)
        self._ends = np.cumsum(np.bincount(numbers))
        if len(self) == rows:
            warnings.warn(
                "person= has another id for every row: that is the same as without it, one example. If a person can "
                "have several rows, give ids that are equal for all rows of one person",
                stacklevel=5,
            )

    def __len__(self) -> int:
        """How many people there are."""
        return len(self._ends)

    def bring(self, people: Sequence[int], stream: Keystream) -> list[list[int]]:
        """The rows that each of these people brings, in ascending order. Takes the stream's next draw."""
        draw = stream.next_draw()
        own = [self._rows(who) for who in people]
        words = _words(sum(len(rows) for rows in own if len(rows) > self.per_person), draw, stream)
        brought, read = [], 0
        for rows in own:
            if len(rows) > self.per_person:
                lots = words[read : read + len(rows)]
                read += len(rows)
                rows = np.sort(rows[np.argpartition(lots, self.per_person - 1)[: self.per_person]])
            brought.append(rows.tolist())
        return brought

    def _rows(self, who: int) -> npt.NDArray[np.int64]:
        """All rows of a person."""
        return self._order[self._ends[who - 1] if who else 0 : self._ends[who]]


def _words(count: int, draw: int, stream: Keystream) -> npt.NDArray[np.uint64]:
    """So many random words of 64 bits."""
    starts = range(0, count, _CHUNK)
    parts = [stream.read(8 * min(_CHUNK, count - start), draw, chunk) for chunk, start in enumerate(starts)]
    return np.frombuffer(b"".join(parts), dtype="<u8")


def _numbered(person: Any) -> npt.NDArray[np.int64]:
    """A number from 0 on for each row's person. Messages tell no id, and not whose row is meant."""
    if isinstance(person, str | bytes) or not isinstance(person, Iterable):
        raise InvalidValue(
            f"person is an id for each row (a list, tensor, array or column), not one {type(person).__name__}"
        )
    numbers: dict[Hashable, int] = {}
    found = []
    for each in as_list(person):
        if not validate.is_id(each):
            raise NotPrivate(
                "a row has no person's id (None, NaN or an empty text): whose it is must be known, or what one person "
                "can change is not. Give it an id, one of its own if it is nobody else's, or leave the row out"
            )
        try:
            found.append(numbers.setdefault(each, len(numbers)))
        except TypeError:
            raise InvalidValue(
                f"person is one id for each row, a number or a text, not a {type(each).__name__}"
            ) from None
    return np.array(found, dtype=np.int64)


def as_list(column: Iterable[Any]) -> list[Any]:
    """The entries of a list, tensor, array or column."""
    for name in ("tolist", "to_pylist", "to_list"):  # arrays, tensors, and columns of any library
        if hasattr(column, name):
            listed = getattr(column, name)()
            return listed if isinstance(listed, list) else [listed]
    return list(column)
