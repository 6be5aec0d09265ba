"""Your own table of numbers and categories: a data set from a file, by rules that are public."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hoarfrost.columns import Category, Columns, Feature, Number
from hoarfrost.data.cells import Batch, numbers_of, places_of
from hoarfrost.data.reading import Mask, Reader, scaled
from hoarfrost.data.splits import Splits
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown


def from_table(
    path: str | Path,
    columns: Columns,
    *,
    test: str | Path | None = None,
    test_share: float | None = None,
    split_seed: int = 0,
    separator: str | None = None,
    standardize: bool = False,
) -> Splits:
    """The data set in a table: every row is an example.

    Args:
        path: a file that ends in .csv, .tsv, .jsonl (any of them also zipped: .csv.gz) or .parquet; or a folder that
            `datasets.Dataset.save_to_disk` has written.
        columns: what the columns mean.
        test: another table with the same columns, to test on.
        test_share: instead of ``test``: the share of the rows to test on (`rows_to_test`), or of the people with all
            their rows (`people_to_test`) if the rules have a person.
        split_seed: a public number that decides which rows these are.
        separator: of the fields of a CSV file; by default a comma.
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
    if columns.text:
        raise InvalidValue("text is for hoarfrost.data.from_texts, which needs a tokenizer")
    return _Numbers(columns, standardize=standardize).read(
        Path(path), test=None if test is None else Path(test), test_share=test_share, split_seed=split_seed,
        separator=separator,
    )  # fmt: skip


@dataclass
class _Numbers(Reader):
    """The examples so far, and which columns of test rows had a readable value."""

    x: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # to train on, to test on
    readable: set[str] = field(default_factory=set)
    standardize: bool = False

    def take(self, cells: Batch, y: Tensor, chosen: Mask, side: int) -> int:
        x, readable = _examples(self.features, cells, chosen)
        self.x[side].append(x)
        self.readable |= readable if side else set()
        return x.nbytes

    def splits(self) -> Splits:
        unread = [each for each in self.features if each.name not in self.readable]
        if unread:
            kind = "is one of its categories" if isinstance(unread[0], Category) else "is a number"
            raise InvalidValue(
                f"no value in the test rows of the column {shown(line(unread[0].name, 40))} {kind} (numbers have a "
                "decimal point); correct the file, its bounds or categories, or drop the column"
            )
        (x_train, x_test), (y_train, y_test) = map(torch.cat, self.x), map(self.targets, (0, 1))
        splits = Splits.of(x_train, y_train, x_test, y_test, self.classes)
        numeric = tuple(place for place, each in enumerate(_layout(self.features)) if isinstance(each, Number))
        if self.standardize and not numeric:
            raise InvalidValue('scaling = "private" is for numeric columns, and no column has bounds')
        return replace(splits, standardize=numeric if self.standardize else ())


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
            values = scaled(each, numbers_of(mine))
            found = ~np.isnan(values)
            x[:, place] = np.where(found, values, 0.0)
            place += 1
        elif isinstance(each, Category):
            places = places_of(mine, each.values)
            found = places >= 0
            x[np.flatnonzero(found), place + places[found]] = 1.0
            place += len(each.values)
        if found.any():
            readable.add(each.name)
    return torch.from_numpy(x), readable
