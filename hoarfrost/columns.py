"""What the columns of a table mean: public rules, by which one row becomes numbers without a look at any other row."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from hoarfrost import validate
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown

Interval = tuple[float, float]
SEPARATED = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
JSON_LINES = (".jsonl", ".jsonl.gz")
TABLES = (*SEPARATED, *JSON_LINES, ".parquet")  # how the names of such files end
MOST_TEXTS = 2  # of an example: a sentence, or a pair of them
NAMED = 3  # columns that a message names
LONGEST_NAME = 30  # of a column, as a message shows it


def is_table(path: str) -> bool:
    """Whether a file of this name is a table. A name without an ending is that of a folder that `datasets` has saved.

    >>> is_table("wine.csv"), is_table("wine.npz"), is_table("imdb-1.0/train"), is_table("imdb-1.0")
    (True, False, True, True)
    """
    return ends_in(path, TABLES) or re.search(r"\.[a-zA-Z]\w*$", path.rstrip("/")) is None


def ends_in(path: str, endings: tuple[str, ...]) -> bool:
    """Whether the name of a file has one of these endings.

    >>> ends_in("Notes.JSONL", JSON_LINES)
    True
    """
    return path.lower().endswith(endings)


@dataclass(frozen=True)
class Number:
    """A numeric column: a value is clamped to its public bounds, then scaled to [-1, 1]. A missing one becomes 0."""

    name: str
    low: float
    high: float

    @property
    def middle(self) -> float:
        """What becomes 0."""
        return (self.low + self.high) / 2

    @property
    def unit(self) -> float:
        """How far apart, in the column's own units, are two values that are 1 apart after scaling."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class Category:
    """A categorical column: one number for each value of the public list, 1 for the row's own. Any other: all zeros."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Words:
    """A column of texts: what becomes of them is the tokenizer's business. A missing one is empty."""

    name: str


Feature = Number | Category | Words


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a table's columns become examples and targets.

    Args:
        target: the column that is predicted.
        bounds: the lowest and the highest value of each numeric column.
        categories: the values of each categorical column.
        classes: the target is a class, written as 0 to ``classes`` - 1.
        labels: instead of ``classes``: the target is one of these texts; its place in the list is its class.
        target_bounds: instead of ``classes``: the target is a real number; the lowest and the highest.
        columns: the columns to learn from; by default all but the target.
        drop: instead of ``columns``: columns to leave out.
        person: the column that says whose a row is, where a person may have several. It is not learned from.
        text: instead of ``bounds`` and ``categories``: the column of texts to learn from, or two, whose texts are a
            pair. No other column is learned from.

    Guarantees:
        All rules are stated, none is taken from rows. What a row becomes depends on the rules and that row alone, so
        that adding or removing a row changes no other example. Names of columns are public.

    >>> rules = Columns(target="quality", bounds={"pH": (2.5, 4.5)}, target_bounds=(0, 10))
    >>> rules.features(["pH", "quality"])
    (Number(name='pH', low=2.5, high=4.5),)
    >>> rules.features(["pH", "alcohol", "quality"])
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: no public range for 'alcohol': one taken from private data is a release that is not \
charged. Give bounds (wide ones, and scaling = "private" to standardise within them), or categories, or drop it
    """

    target: str
    bounds: Mapping[str, Interval] = field(default_factory=dict)
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    classes: int | None = None
    labels: Sequence[str] | None = None
    target_bounds: Interval | None = None
    columns: Sequence[str] | None = None
    drop: Sequence[str] | None = None
    person: str | None = None
    text: Sequence[str] = ()

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.classes, self.labels, self.target_bounds)) != 1:
            raise InvalidValue(
                "target needs one of classes = N (written as 0 to N - 1), labels = [...] and target_bounds = [low, "
                "high]: taken from private data, they would be a release that is not charged"
            )
        if self.columns is not None and self.drop is not None:
            raise InvalidValue("columns or drop is given, not both")
        if self.classes is not None:
            validate.whole(classes=self.classes)
        if self.labels is not None:
            _check_values("labels", self.labels)
        if self.target_bounds is not None:
            _check_interval("target_bounds", self.target_bounds)
        for name, interval in self.bounds.items():
            _check_interval(f"bounds of {_name(name)}", interval)
        for name, values in self.categories.items():
            _check_values(f"categories of {_name(name)}", values)
        both = [name for name in self.bounds if name in self.categories]
        if both:
            raise InvalidValue(f"bounds and categories are both given for {_names(both)}")
        if any(self.target in each for each in (self.bounds, self.categories, self.columns or (), self.drop or ())):
            raise InvalidValue(
                f"target {_name(self.target)} is no column to learn from: its rule is classes, labels or target_bounds"
            )

        if self.person == self.target or any(self.person in each for each in (self.bounds, self.categories)):
            raise InvalidValue(f"person {_name(self.person or '')} is no column to learn from, nor the target")
        if self.person in (self.columns or ()):
            raise InvalidValue(f"person {_name(self.person or '')} is no column to learn from: take it out of columns")
        if self.text:
            self._check_text()

    def _check_text(self) -> None:
        if len(self.text) > MOST_TEXTS or len(set(self.text)) < len(self.text) or not all(self.text):
            raise InvalidValue(f"text is one column, or two different ones for pairs of texts, got {shown(self.text)}")
        for key in ("bounds", "categories", "columns", "drop"):
            if getattr(self, key):
                raise InvalidValue(
                    f"{key} is for columns of numbers and categories: with text, no other is learned from"
                )
        if self.target in self.text or self.person in self.text:
            other = "target" if self.target in self.text else "person"
            raise InvalidValue(f"text {_names(self.text)} is learned from: it cannot be the {other}, too")

    def check_header(self, header: Sequence[str]) -> None:
        """Refuses what is no header, and columns that cannot be told apart.

        Guarantees:
            Names are quoted only once it is clear that they are names: the first line may be a row of private values.

        >>> Columns(target="y", classes=2).check_header(["y", "a", "a"])
        Traceback (most recent call last):
            ...
        hoarfrost.errors.InvalidValue: it has two columns 'a'
        """
        if {self.target, *self.bounds, *self.categories, *self.text}.isdisjoint(header):
            raise InvalidValue(
                "it has none of the columns that the rules name: does its first line have their names, and is the "
                "separator right?"
            )
        if not all(name.strip() for name in header):
            raise InvalidValue("it has a column without a name; write it without an index, and name every column")
        names: set[str] = set()
        for name in header:
            if name in names:
                raise InvalidValue(f"it has two columns {_name(name)}")
            names.add(name)

    def features(self, header: Sequence[str]) -> tuple[Feature, ...]:
        """The columns to learn from, in the order of the header, which is public and checked."""
        for key, said in (
            ("target", [self.target]), ("columns", self.columns), ("drop", self.drop), ("bounds", self.bounds),
            ("categories", self.categories), ("person", [self.person] if self.person is not None else ()),
            ("text", self.text),
        ):  # fmt: skip
            check_known(key, said or (), header)
        if self.text:
            return tuple(map(Words, self.text))
        left_out = {self.target, self.person, *(self.drop or ())}
        chosen = [name for name in header if name not in left_out and (self.columns is None or name in self.columns)]
        if not chosen:
            raise InvalidValue("no column is left to learn from")
        without = [name for name in chosen if name not in self.bounds and name not in self.categories]
        if without:
            raise InvalidValue(
                f"no public range for {_names(without)}: one taken from private data is a release that is not charged. "
                'Give bounds (wide ones, and scaling = "private" to standardise within them), or categories, or drop '
                f"{'it' if len(without) == 1 else 'them'}"
            )
        return tuple(
            Number(name, *map(float, self.bounds[name]))
            if name in self.bounds
            else Category(name, _stripped(self.categories[name]))
            for name in chosen
        )

    def target_rule(self) -> Number | Category:
        """As one of a feature: a row whose target is missing, or is not what the rule allows, is no example."""
        if self.target_bounds is not None:
            return Number(self.target, *map(float, self.target_bounds))
        return Category(self.target, _stripped(self.labels or map(str, range(self.classes or 0))))


def check_known(key: str, said: Collection[str], header: Sequence[str]) -> None:
    """Refuses names that a table has no column for.

    >>> check_known("target", ["qualty"], ["pH", "quality"])
    Traceback (most recent call last):
        ...
    hoarfrost.errors.InvalidValue: target names 'qualty', which it has no column for; did you mean 'quality'?
    """
    unknown = [name for name in said if name not in header]
    if unknown:
        close = get_close_matches(unknown[0], header, n=1)
        advice = f"did you mean {_name(close[0])}?" if close else f"its columns: {_names(header)}"
        raise InvalidValue(f"{key} names {_names(unknown)}, which it has no column for; {advice}")


def check_separator(separator: str) -> None:
    """Refuses what cannot separate the fields of a CSV file.

    >>> check_separator(";")
    """
    if len(separator) != 1 or separator in '"\r\n\0 ':
        raise InvalidValue(f"separator is one character, such as ; or a tab, got {shown(separator)}")


def _check_interval(what: str, interval: Sequence[float]) -> None:
    if len(interval) != 2 or not all(map(math.isfinite, interval)) or not interval[0] < interval[1]:
        raise InvalidValue(f"{what} must be two numbers, the lower one first, got {shown(tuple(interval))}")


def _check_values(what: str, values: Iterable[str]) -> None:
    found = _stripped(values)
    if not found or not all(found) or len(set(found)) < len(found):
        raise InvalidValue(f"{what} must be a list of different texts, none of them empty")


def _stripped(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value.strip() for value in values)


def _name(name: str) -> str:
    return repr(line(name, LONGEST_NAME))


def _names(names: Sequence[str]) -> str:
    told = ", ".join(map(_name, names[:NAMED]))
    return told if len(names) <= NAMED else f"{told} and {len(names) - NAMED} more"
