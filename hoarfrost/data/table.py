"""Your own table: a data set from a .csv or .parquet file, by rules that are public."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.columns import Category, Columns, Feature, Number, check_known, is_table
from hoarfrost.data.cells import Batch, OpenTable, ids_of, numbers_of, places_of
from hoarfrost.data.csv_files import open_csv
from hoarfrost.data.parquet_files import open_parquet
from hoarfrost.data.splits import Splits
from hoarfrost.data.user_files import file_errors
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import free_memory, line, shown, shown_path, size_of

Mask = npt.NDArray[np.bool_]
Ids = Sequence[str]  # of each row's person; empty texts where nobody asks whose it is


def from_table(
    path: str | Path,
    columns: Columns,
    *,
    test: str | Path | None = None,
    test_share: float | None = None,
    split_seed: int = 0,
    separator: str = ",",
    standardize: bool = False,
) -> Splits:
    """The data set in a table: every row is an example.

    Args:
        path: ends in .csv, .csv.gz or .parquet.
        columns: what the columns mean.
        test: another table with the same columns, to test on.
        test_share: instead of ``test``: the share of the rows to test on (`rows_to_test`), or of the people with all
            their rows (`people_to_test`) if the rules have a person.
        split_seed: a public number that decides which rows these are.
        separator: of the fields of a CSV file.
        standardize: the model is to standardise numeric columns by a private release (`freezing.PrivateScaling`).

    Guarantees:
        What a row becomes depends on the rules and that row alone; what the rows are like together is never looked at.
        A row is left out if its own target is missing or is not what the rules allow: adding or removing one row adds
        or removes at most one example. Messages contain names and rules, but neither values nor how many rows there are
        or which one is meant. (The test rows are public: that none of them has a readable value is said.)

    >>> import tempfile
    >>> rules = Columns(target="sold", labels=["no", "yes"], bounds={"age": (0, 20)}, categories={"hue": ["red"]})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cars, test = Path(folder, "cars.csv"), Path(folder, "test.csv")
    ...     _ = cars.write_text("age,hue,sold\\n5,red,no\\n99,blue,yes\\n,red,no\\n1,red,perhaps\\n")
    ...     _ = test.write_text("age,hue,sold\\n7,red,yes\\n")
    ...     splits = from_table(cars, rules, test=test)
    >>> [tensor.tolist() for tensor in splits.train.tensors]
    [[[-0.5, 1.0], [1.0, 0.0], [0.0, 1.0]], [0, 1, 0]]
    """
    if (test is None) == (test_share is None):
        raise InvalidValue("give either test or test_share: what is the model tested on?")
    validate.count(split_seed=split_seed)
    parts = _Parts(columns)
    if test_share is not None:
        validate.probability(test_share=test_share)
        share = test_share

        def is_test(first: int, ids: Ids) -> Mask:
            if columns.person is not None:
                return people_to_test(ids, share, split_seed)
            return rows_to_test(first, len(ids), share, split_seed)

        _add(parts, Path(path), separator, is_test)
    elif test is not None:
        if os.path.realpath(test) == os.path.realpath(path):
            raise InvalidValue("test is the file to train on: test figures would tell about private rows")
        _add(parts, Path(path), separator, lambda first, ids: np.zeros(len(ids), dtype=bool))
        _add(parts, Path(test), separator, None)
    with file_errors(Path(path), "a table"):
        return parts.splits(standardize=standardize)


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


def _add(parts: _Parts, path: Path, separator: str, is_test: Callable[[int, Ids], Mask] | None) -> None:
    size_of(path, "data file")
    if not is_table(path.name):
        raise InvalidValue(f"{shown_path(path)} is neither a .csv, .csv.gz nor a .parquet file")
    with file_errors(path, "a table"), _opened(path, separator) as table:
        parts.add(table, is_test)


def _opened(path: Path, separator: str) -> AbstractContextManager[OpenTable]:
    return open_parquet(path) if path.suffix.lower() == ".parquet" else open_csv(path, separator)


@dataclass
class _Parts:
    """The examples so far, and which columns of test rows had a readable value."""

    rules: Columns
    features: tuple[Feature, ...] = ()
    x: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # to train on, to test on
    y: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))
    people: list[int] = field(default_factory=list)  # whose each row to train on is
    numbers: dict[str, int] = field(default_factory=dict)  # of people, by their id
    read: set[str] = field(default_factory=set)
    bytes: int = 0

    def add(self, table: OpenTable, is_test: Callable[[int, Ids], Mask] | None) -> None:
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
            self.people += [
                self.numbers.setdefault(ids[place], len(self.numbers)) for place in np.flatnonzero(usable & ~tests)
            ]
            # A row without a target is left out for its own sake, whatever the others are: that is no release.
            for side, mine in enumerate((usable & ~tests, usable & tests)):
                x, readable = _examples(self.features, cells, mine)
                self.x[side].append(x)
                self.y[side].append(y[torch.from_numpy(mine)])
                self.bytes += x.nbytes
                self.read |= readable if side else set()
            if self.bytes > free_memory():  # all of it once more, when it is put together
                raise InvalidValue("it needs more memory than is free")
        if row == 0:
            raise InvalidValue("it has a header and no rows")

    def _targets(self, cells: Batch) -> tuple[Tensor, Mask]:
        """Every row's target, and whether it has one."""
        rule = self.rules.target_rule()
        if isinstance(rule, Number):
            scaled = _scaled(rule, numbers_of(cells[0]))
            return torch.from_numpy(scaled).float(), ~np.isnan(scaled)
        places = places_of(cells[0], rule.values)
        return torch.from_numpy(places), places >= 0

    def splits(self, *, standardize: bool) -> Splits:
        """All of it, as training takes it."""
        (x_train, x_test), (y_train, y_test) = ([torch.cat(side) for side in both] for both in (self.x, self.y))
        rule = self.rules.target_rule()
        for side, tensor in (("train", x_train), ("test", x_test)):
            if len(tensor) == 0:
                raise InvalidValue(
                    f"no row to {side} on has a target that the rules allow; do target, its {_rule_keys(rule)} and the "
                    "separator fit the file?"
                )
        unread = [each.name for each in self.features if each.name not in self.read]
        if unread:
            kind = "is one of its categories" if isinstance(self._feature(unread[0]), Category) else "is a number"
            raise InvalidValue(
                f"no value in the test rows of the column {shown(line(unread[0], 40))} {kind} (numbers have a decimal "
                "point); correct the file, its bounds or categories, or drop the column"
            )
        if isinstance(rule, Category):
            splits = Splits.of(x_train, y_train, x_test, y_test, len(rule.values))
        else:
            splits = replace(Splits.of(x_train, y_train, x_test, y_test), unit=rule.unit)
        numeric = tuple(place for place, each in enumerate(_layout(self.features)) if isinstance(each, Number))
        if standardize and not numeric:
            raise InvalidValue('scaling = "private" is for numeric columns, and no column has bounds')
        people = None if self.rules.person is None else torch.tensor(self.people)
        return replace(splits, standardize=numeric if standardize else (), people=people)

    def _feature(self, name: str) -> Feature:
        return next(each for each in self.features if each.name == name)


def _layout(features: tuple[Feature, ...]) -> list[Feature]:
    """The feature that each number of an example belongs to."""
    return [each for each in features for _ in (each.values if isinstance(each, Category) else (0,))]


def _examples(features: tuple[Feature, ...], cells: Batch, chosen: Mask) -> tuple[Tensor, set[str]]:
    """The chosen rows as numbers [n, width], and the names of the columns in which any of them had a readable value."""
    rows = np.flatnonzero(chosen)
    x = np.zeros((len(rows), len(_layout(features))), np.float32)
    readable: set[str] = set()
    place = 0
    for each, column in zip(features, cells, strict=True):
        mine = [column[row] for row in rows.tolist()]
        if isinstance(each, Number):
            scaled = _scaled(each, numbers_of(mine))
            found = ~np.isnan(scaled)
            x[:, place] = np.where(found, scaled, 0.0)
            place += 1
        else:
            values = places_of(mine, each.values)
            found = values >= 0
            x[np.flatnonzero(found), place + values[found]] = 1.0
            place += len(each.values)
        if found.any():
            readable.add(each.name)
    return torch.from_numpy(x), readable


def _scaled(rule: Number, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return (np.clip(values, rule.low, rule.high) - rule.middle) / rule.unit


def _rule_keys(rule: Feature) -> str:
    return "target_bounds" if isinstance(rule, Number) else "classes or labels"
