"""Tables from .jsonl files: a JSON object in each line, whose keys are the columns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

from hoarfrost.data.cells import MAX_COLUMNS, ROWS, Batch, Cell, OpenTable
from hoarfrost.data.csv_files import MAX_TEXT, open_lines
from hoarfrost.errors import InvalidValue
from hoarfrost.untrusted import line, shown


@contextmanager
def open_json_lines(path: Path) -> Iterator[OpenTable]:
    """A table from text in UTF-8, zipped or not. Empty lines are no rows.

    The first line has every column. A key that a later one lacks is a missing value; one that it has besides is
    ignored.
    """
    with open_lines(path) as lines:
        rows = (_row(text) for text in lines if not text.isspace())
        first = next(rows, None)
        if first is None:
            raise InvalidValue("it is empty: every line has a JSON object")
        if len(first) > MAX_COLUMNS:
            raise InvalidValue(f"it has more than {MAX_COLUMNS} columns")
        yield OpenTable(tuple(first), lambda wanted: _batches(chain([first], rows), wanted))


def _row(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):  # not Python's message, which tells what stands there, and where
        raise InvalidValue("a line is not JSON: it should have an object of its own, such as {...}") from None
    if not isinstance(row, dict):
        raise InvalidValue(
            f"a line is {_KINDS[type(row)]}: it should be a JSON object with the names and values of the columns"
        )
    return row


def _batches(rows: Iterator[dict[str, Any]], wanted: Sequence[str]) -> Iterator[Batch]:
    columns: list[list[Cell]] = [[] for _ in wanted]
    size = 0
    for row in rows:
        for column, name in zip(columns, wanted, strict=True):
            cell = row.get(name)
            if isinstance(cell, dict | list):
                raise InvalidValue(
                    f"its column {shown(line(name, 40))} holds {_KINDS[type(cell)]}: numbers, text, true and false can "
                    "be used"
                )
            column.append(cell)
            size += len(cell) if isinstance(cell, str) else 1
        if len(columns[0]) == ROWS or size > MAX_TEXT:
            yield [*columns]
            columns, size = [[] for _ in wanted], 0
    if columns[0]:
        yield [*columns]


_KINDS = {
    list: "a list", dict: "an object", str: "a text", int: "a number", float: "a number", bool: "true or false",
    type(None): "null",
}  # fmt: skip
