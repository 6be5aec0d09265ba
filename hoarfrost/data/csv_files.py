"""Tables from .csv and .tsv files. No line, field or file can take more memory or time than its size justifies."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Literal, cast

from hoarfrost.columns import check_separator
from hoarfrost.data.cells import MAX_COLUMNS, ROWS, Batch, OpenTable
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import size_of

MAX_LINE = 1 << 20  # bytes
MAX_TEXT = 16 << 20  # characters that are worked on at a time, and a line more
BOMB_SIZE, BOMB_RATIO = 64 << 20, 200  # above this size, no table compresses by this ratio; a zip bomb does by 1000


@contextmanager
def open_csv(path: Path, separator: str | None = None) -> Iterator[OpenTable]:
    """A table from text in UTF-8 with a header, zipped or not. Empty lines are no rows.

    A .tsv file has tabs between its fields, and quotation marks mean nothing in it, as the tools that write it do.
    """
    tabs = ".tsv" in path.suffixes[-2:]
    if tabs and separator not in (None, "\t"):
        raise InvalidValue("separator is for .csv files: the fields of a .tsv file are separated by tabs")
    separator = separator or ("\t" if tabs else ",")
    check_separator(separator)
    with open_lines(path) as lines:
        rows = _rows(lines, separator, csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL)
        names = tuple(name.strip() for name in next(rows, ()))
        if not names:
            raise InvalidValue("it is empty: the first line has the columns' names")
        if len(names) > MAX_COLUMNS:
            raise InvalidValue(f"it has more than {MAX_COLUMNS} columns")
        yield OpenTable(names, lambda wanted: _batches(rows, names, wanted))


def _batches(rows: Iterator[list[str]], names: Sequence[str], wanted: Sequence[str]) -> Iterator[Batch]:
    places = [names.index(name) for name in wanted]
    columns: list[list[str]] = [[] for _ in places]
    size = 0
    for row in rows:
        if len(row) != len(names):
            raise InvalidValue("a row has more or fewer fields than there are columns; is the separator right?")
        for column, place in zip(columns, places, strict=True):
            column.append(row[place])
            size += len(row[place])
        if len(columns[0]) == ROWS or size > MAX_TEXT:
            yield [*columns]
            columns, size = [[] for _ in places], 0
    if columns[0]:
        yield [*columns]


def _rows(lines: Iterator[str], separator: str, quoting: Literal[0, 3]) -> Iterator[list[str]]:
    try:
        yield from filter(None, csv.reader(lines, delimiter=separator, quoting=quoting, strict=True))
    except csv.Error as error:
        raise InvalidValue(f"it is not a CSV file: {error}") from error


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[str]]:
    """The lines of a text in UTF-8, zipped or not."""
    most = max(BOMB_SIZE, BOMB_RATIO * size_of(path, "data file"))
    with open(path, "rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        yield _lines(cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file, most)


def _lines(content: BinaryIO, most: int) -> Iterator[str]:
    left, first = most, True
    while raw := content.readline(MAX_LINE + 1):
        left -= len(raw)
        if len(raw) > MAX_LINE:
            raise InvalidValue(f"it has a line of more than {MAX_LINE >> 20} MiB: it is not a table")
        if left < 0:
            raise InvalidValue("it unzips to far more than a table would")
        if b"\0" in raw:
            raise InvalidValue("it has NUL bytes: it is not text in UTF-8")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            # Not Python's message, which tells bytes and where they are.
            raise InvalidValue("it is not text in UTF-8") from None
        yield text.removeprefix("\ufeff") if first else text  # which some programs put before the text
        first = False
