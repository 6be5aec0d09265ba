"""The table [data] of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from hoarfrost.columns import MOST_TEXTS, Columns, check_separator, is_table
from hoarfrost.errors import InvalidValue
from hoarfrost.recipes.base import Table
from hoarfrost.registry import FilePath, Natural, Positive, Probability, Real, Text, Whole
from hoarfrost.registry.types import MOST_ENTRIES, Label

_MOST_COLUMNS = 500
_Column = Annotated[str, Field(min_length=1, max_length=200)]
_Texts = Annotated[tuple[_Column, ...], Field(strict=False, max_length=_MOST_COLUMNS), Label("list of: text")]
_TextColumns = Annotated[
    tuple[_Column, ...],
    Field(strict=False, min_length=1, max_length=MOST_TEXTS),
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    Label("text, or list of 2: text"),
]
_Interval = Annotated[tuple[Real, Real], Field(strict=False), Label("list of 2: number")]


class Data(Table):
    """The data set: one that Hoarfrost knows by name, or a file of one's own: arrays, or a table.

    Examples become (x − mean) / std. Both are public constants: what the private examples themselves are like on
    average would tell about them.

    A table is a file in which every row is an example ([tables.md](tables.md)): .csv, .tsv, .jsonl (any of them also
    zipped, as .csv.gz), .parquet, or a folder that the ``save_to_disk`` of `datasets` has written. ``target`` and the
    keys below it are for tables alone. All of them are public: none is taken from the private rows. With ``text``, a
    model learns from texts: [text-recipes.md](text-recipes.md).

    Args:
        name: the name of a data set that Hoarfrost knows.
        path: instead of ``name``: the path of a table, or of a .safetensors or .npz file with x_train, y_train, x_test
            and y_test. It is relative to the recipe's own file, and stays below that
            file's folder. For a built-in recipe, this is the current folder.
        classes: the number of classes of data from a path. Of arrays, by default one more than the largest label. Of a
            table, the targets are then written as 0 to ``classes`` - 1.
        mean: what is subtracted from an example: a number for every channel, or one for all.
        std: what the difference is divided by: a number for every channel, or one for all.
        target: the column that is predicted. A row whose target is missing, or not allowed, is no example.
        labels: instead of ``classes``: the texts of the target, in the order of the classes.
        target_bounds: instead of ``classes``: the lowest and the highest target, a real number. Targets are clamped to
            them, then scaled to [-1, 1].
        bounds: the lowest and the highest value of each numeric column. Values are clamped to them, then scaled to
            [-1, 1]. A missing or unreadable one becomes 0, the middle.
        categories: the values of each categorical column. One number for each of them is 1 or 0; for any other value
            all are 0.
        columns: the columns to learn from; by default all but the target.
        drop: instead of ``columns``: the columns to leave out.
        text: instead of ``bounds`` and ``categories``: the column of the texts to learn from, or two, whose texts make
            a pair. They are cut into tokens by the model's own tokenizer.
        max_length: with ``text``: how many tokens a text, or a pair, has at most; 128 by default, or as
            many as the model reads. What is longer is cut.
        person: the column that says whose a row is, where a person may have several. The unit of privacy is then one
            person with all their rows: people are drawn, not rows (``privacy.per_person``), and tested on with all
            their rows or not at all. It is not learned from.
        scaling: "private" standardises numeric columns within their bounds, by a noisy release that is charged before
            training. By default they stay as the bounds scale them.
        scaling_noise: the noise multiplier of this release.
        test: the path of a table with the same columns, to test on.
        test_share: instead of ``test``: the share of the rows to test on, drawn by their places in the file.
        split_seed: the public number that decides which rows these are; 0 by default.
        separator: the character between the fields of a .csv file; a comma by default.
    """

    _one_of = (("name", "path"),)
    _at_most_one = (("classes", "labels", "target_bounds"), ("columns", "drop"), ("test", "test_share"))

    name: Text | None = None
    path: FilePath | None = None
    classes: Whole | None = None
    mean: Annotated[tuple[Real, ...], Field(strict=False, min_length=1, max_length=MOST_ENTRIES)] = (0.0,)
    std: Annotated[tuple[Positive, ...], Field(strict=False, min_length=1, max_length=MOST_ENTRIES)] = (1.0,)

    target: _Column | None = None
    labels: _Texts | None = None
    target_bounds: _Interval | None = None
    bounds: (
        Annotated[
            dict[_Column, _Interval], Field(max_length=_MOST_COLUMNS), Label("table of: column = [lowest, highest]")
        ]
        | None
    ) = None
    categories: (
        Annotated[dict[_Column, _Texts], Field(max_length=_MOST_COLUMNS), Label("table of: column = list of texts")]
        | None
    ) = None
    columns: _Texts | None = None
    drop: _Texts | None = None
    text: _TextColumns | None = None
    max_length: Whole | None = None
    person: _Column | None = None
    scaling: Literal["private"] | None = None
    scaling_noise: Positive | None = None
    test: FilePath | None = None
    test_share: Probability | None = None
    split_seed: Natural | None = None
    separator: Annotated[str, Field(max_length=1), Label("text")] | None = None

    @property
    def is_table(self) -> bool:
        """Whether it is a table of one's own."""
        return self.path is not None and is_table(self.path)

    def rules(self) -> Columns:
        """What a table's columns mean."""
        assert self.target is not None  # the recipe is refused without
        return Columns(
            target=self.target, bounds=self.bounds or {}, categories=self.categories or {}, classes=self.classes,
            labels=self.labels, target_bounds=self.target_bounds, columns=self.columns, drop=self.drop,
            person=self.person, text=self.text or (),
        )  # fmt: skip

    @model_validator(mode="after")
    def _keys_fit_the_source(self) -> Data:
        if self.name is not None and self.classes is not None:
            raise InvalidValue("classes is for data from a path; a data set with a name knows its own")
        if not self.is_table:
            said = [key for key, value in self if value is not None and key in _OF_TABLES]
            if said:
                raise InvalidValue(f"{said[0]} is for a table: a path that ends in {_ENDINGS}")
            return self
        if self.target is None:
            raise InvalidValue("target is missing: which column of the table is predicted?")
        if (self.mean, self.std) != ((0.0,), (1.0,)):
            raise InvalidValue("mean and std are not for tables: bounds says how each column is scaled")
        if self.test is None and self.test_share is None:
            raise InvalidValue("test or test_share is missing: what is the model tested on?")
        if self.test_share is None and self.split_seed is not None:
            raise InvalidValue("split_seed is for test_share")
        if (self.scaling is None) != (self.scaling_noise is None):
            raise InvalidValue('scaling = "private" and scaling_noise belong together')
        if self.test is not None and not is_table(self.test):
            raise InvalidValue(f"test must be a table: a path that ends in {_ENDINGS}")
        if self.max_length is not None and self.text is None:
            raise InvalidValue("max_length is for text: how many tokens of it are read")
        if self.scaling is not None and self.text is not None:
            raise InvalidValue("scaling is for numeric columns, and text is learned from")
        check_separator(self.separator or ",")
        self.rules()
        return self


_ENDINGS = ".csv, .tsv, .jsonl or .parquet, or a folder of datasets"
_OF_TABLES = {*Data.model_fields} - {"name", "path", "classes", "mean", "std"}
