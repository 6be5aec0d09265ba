"""Reading the rows of a table: which are tested on, whose they are, and what their targets are."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.columns import JSON_LINES, TABLES, Category, Columns, Feature, Number, check_known, ends_in
from hoarfrost.data.arrow_folders import open_folder
from hoarfrost.data.cells import Batch, Cell, OpenTable, ids_of, numbers_of, places_of
from hoarfrost.data.csv_files import open_csv
from hoarfrost.data.json_lines import open_json_lines
from hoarfrost.data.parquet_files import open_parquet
from hoarfrost.data.splits import Splits
from hoarfrost.data.user_files import file_errors
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import free_memory, line, shown, size_of

Mask = npt.NDArray[np.bool_]
Ids = Sequence[str]  # of each row's person; empty texts where nobody asks whose it is


@dataclass
class Reader(ABC):
    """The rows of one table or two, as examples to train on and to test on. What an example is, a subclass says.

    Guarantees:
        What a row becomes depends on the rules and that row alone. A row without a target that the rules allow is left
        out for its own sake, whatever the others are: that is no release.
    """

    rules: Columns
    features: tuple[Feature, ...] = ()
    y: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # to train on, to test on
    people: list[int] = field(default_factory=list)  # whose each row to train on is
    numbers: dict[str, int] = field(default_factory=dict)  # of people, by their id
    bytes: int = 0

    @abstractmethod
    def take(self, cells: Batch, y: Tensor, chosen: Mask, side: int) -> int:
        """Makes examples of the chosen rows; ``side`` is 0 to train on, 1 to test on. How many bytes they have."""

    @abstractmethod
    def splits(self) -> Splits:
        """All of it, as training takes it."""

    def left_out_of_test(self, targets: Sequence[Cell]) -> None:  # noqa: B027 - nothing by default
        """Is told which targets of a file to test on, which is public, are none that the rules allow."""

    def read(
        self,
        path: Path,
        *,
        test: Path | None,
        test_share: float | None,
        split_seed: int,
        separator: str | None,
    ) -> Splits:
        """All rows of the file to train on, and of the one to test on if there is one."""
        if (test is None) == (test_share is None):
            raise InvalidValue("give either test or test_share: what is the model tested on?")
        validate.count(split_seed=split_seed)
        if test_share is not None:
            validate.probability(test_share=test_share)
            share = test_share

            def is_test(first: int, ids: Ids) -> Mask:
                if self.rules.person is not None:
                    return people_to_test(ids, share, split_seed)
                return rows_to_test(first, len(ids), share, split_seed)

            self._add(path, separator, is_test)
        elif test is not None:
            if os.path.realpath(test) == os.path.realpath(path):
                raise InvalidValue("test is the file to train on: test figures would tell about private rows")
            self._add(path, separator, lambda first, ids: np.zeros(len(ids), dtype=bool))
            self._add(test, separator, None)
        with file_errors(path, "a table"):
            for side, targets in zip(("train", "test"), self.y, strict=True):
                if not any(map(len, targets)):
                    keys = "target_bounds" if isinstance(self.rules.target_rule(), Number) else "classes or labels"
                    raise InvalidValue(
                        f"no row to {side} on has a target that the rules allow; do target, its {keys} and the "
                        "separator fit the file?"
                    )
            splits = self.splits()
        rule = self.rules.target_rule()
        if isinstance(rule, Number):
            splits = replace(splits, unit=rule.unit)
        return splits if self.rules.person is None else replace(splits, people=torch.tensor(self.people))

    def targets(self, side: int) -> Tensor:
        """Of all rows to train on, or to test on."""
        return torch.cat(self.y[side])

    @property
    def classes(self) -> int | None:
        """How many there are; None if targets are real numbers."""
        rule = self.rules.target_rule()
        return len(rule.values) if isinstance(rule, Category) else None

    def _add(self, path: Path, separator: str | None, is_test: Callable[[int, Ids], Mask] | None) -> None:
        with file_errors(path, "a table"), _opened(path, separator) as table:
            self._rows(table, is_test)

    def _rows(self, table: OpenTable, is_test: Callable[[int, Ids], Mask] | None) -> None:
        """All rows of a table; without ``is_test``, all of them are test rows, and nobody asks whose they are."""
        self.rules.check_header(table.names)
        self.features = self.features or self.rules.features(table.names)
        wanted = [*(each.name for each in self.features), self.rules.target]
        person = self.rules.person if is_test is not None else None
        # A test file may have them in another order, and others beside them.
        check_known("the recipe", wanted, table.names)
        row = 0
        for *cells, targets, last in table.read([*wanted, person or self.rules.target]):
            ids = [""] * len(targets) if person is None else ids_of(last)
            if person is not None and not all(ids):
                raise InvalidValue(
                    f"a row has no id in the column {shown(line(person, 40))}: whose it is must be known, or what one "
                    "person can change is not. Give it an id, one of its own if it is nobody else's, or take it out"
                )
            tests = np.ones(len(targets), dtype=bool) if is_test is None else is_test(row, ids)
            row += len(targets)
            y, usable = self._targets([targets])
            if is_test is None:
                self.left_out_of_test([targets[place] for place in np.flatnonzero(~usable).tolist()])
            self.people += [
                self.numbers.setdefault(ids[place], len(self.numbers)) for place in np.flatnonzero(usable & ~tests)
            ]
            for side, mine in enumerate((usable & ~tests, usable & tests)):
                self.bytes += self.take(cells, y[torch.from_numpy(mine)], mine, side)
                self.y[side].append(y[torch.from_numpy(mine)])
            if self.bytes > free_memory():  # all of it once more, when it is put together
                raise InvalidValue("it needs more memory than is free")
        if row == 0:
            raise InvalidValue("it has a header and no rows")

    def _targets(self, cells: Batch) -> tuple[Tensor, Mask]:
        """Every row's target, and whether it has one."""
        rule = self.rules.target_rule()
        if isinstance(rule, Number):
            values = scaled(rule, numbers_of(cells[0]))
            return torch.from_numpy(values).float(), ~np.isnan(values)
        places = places_of(cells[0], rule.values)
        return torch.from_numpy(places), places >= 0


def rows_to_test(first: int, count: int, share: float, seed: int) -> Mask:
    """Which of so many rows, from row ``first`` (from 0) on, are test rows: each with probability ``share``.

    A row's place in the file is its public id, and decides alone, through a hash with the seed. What the rows hold does
    not matter, nor how many there are: rows that are added at the end move no other row to the other side.

    >>> rows_to_test(0, 8, 0.25, seed=0).tolist()
    [False, False, False, True, True, False, False, False]
    >>> rows_to_test(3, 5, 0.25, seed=0).tolist()
    [True, True, False, False, False]
    """
    limit = int(share * 2**64)
    return np.fromiter((_hash(seed, row) < limit for row in range(first, first + count)), bool, count)


def people_to_test(ids: Sequence[str], share: float, seed: int) -> Mask:
    """Which rows are test rows, where they are people's: all of a person's, or none; a person's with prob. ``share``.

    A person's id alone decides, through a hash with the seed: no other person moves to the other side.

    >>> people_to_test(["ann", "bob", "ann", "eve"], 0.5, seed=1).tolist()
    [True, False, True, False]
    """
    limit = int(share * 2**64)
    return np.fromiter((_hash(seed, f"person {id}") < limit for id in ids), bool, len(ids))


def _hash(seed: int, what: object) -> int:
    """Below 2⁶⁴."""
    return int.from_bytes(hashlib.sha256(f"hoarfrost split {seed} {what}".encode()).digest()[:8], "big")


def scaled(rule: Number, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Numbers clamped to their bounds, and brought to [-1, 1]."""
    return (np.clip(values, rule.low, rule.high) - rule.middle) / rule.unit


def _opened(path: Path, separator: str | None) -> AbstractContextManager[OpenTable]:
    if path.is_dir():
        return open_folder(path)
    size_of(path, "data file")
    if not ends_in(path.name, TABLES):
        raise InvalidValue(f"it is neither {', '.join(TABLES[:-1])} nor {TABLES[-1]}")
    if ends_in(path.name, JSON_LINES):
        return open_json_lines(path)
    return open_parquet(path) if path.suffix.lower() == ".parquet" else open_csv(path, separator)
