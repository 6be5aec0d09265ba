"""The cells of a table: what counts as a number, what counts as a text, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hoarfrost import validate

Cell = str | float | bool | None  # None is a missing one
Batch = list[Sequence[Cell]]  # a few rows, column by column

ROWS = 4096  # that are worked on at a time
MAX_COLUMNS = 10_000

_BOOLEANS = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class OpenTable:
    """A table that is open: its columns' names, and what reads some of them, a few rows at a time."""

    names: tuple[str, ...]
    read: Callable[[Sequence[str]], Iterator[Batch]]


def number_of(cell: Cell) -> float:
    """The number in a cell; NaN for one that is missing, not a number or not finite.

    >>> [number_of(cell) for cell in ("7.5", " 1e3 ", True, "false", 2, "?", "1_000", "inf", None)]
    [7.5, 1000.0, 1.0, 0.0, 2.0, nan, nan, nan, nan]
    """
    if cell is None:
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        return _BOOLEANS.get(str(cell).strip().lower(), math.nan)
    except OverflowError:  # a whole number with hundreds of digits
        return math.nan
    if not math.isfinite(value) or (isinstance(cell, str) and "_" in cell):  # Python's own way to write 1000
        return math.nan
    return value


def text_of(cell: Cell) -> str:
    """The text in a cell, without space around it; empty for one that is missing. A whole number has no point.

    >>> [text_of(cell) for cell in (" red ", 3, 3.0, 0.5, True, None)]
    ['red', '3', '3', '0.5', 'true', '']
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def numbers_of(cells: Sequence[Cell]) -> npt.NDArray[np.float64]:
    """Every cell's number [n], NaN where there is none."""
    return np.fromiter(map(number_of, cells), np.float64, len(cells))


def places_of(cells: Sequence[Cell], values: Sequence[str]) -> npt.NDArray[np.int64]:
    """Every cell's place in the list of values [n], -1 where it is not in it. A number is found however it is written.

    >>> places_of(["b", "c", None, " a"], ["a", "b"]).tolist(), places_of(["1.0", 0, "01"], ["0", "1"]).tolist()
    ([1, -1, -1, 0], [1, 0, -1])
    """
    place = {value: index for index, value in enumerate(values)}
    texts = [text_of(cell) for cell in cells]
    # "1.0" is how a class is written that some tool took for a real number.
    found = (place.get(text, place.get(_whole(text), -1)) for text in texts)
    return np.fromiter(found, np.int64, len(cells))


def ids_of(cells: Sequence[Cell]) -> list[str]:
    """Every cell as an id; empty for one that is missing. A number is the same id however it is written.

    >>> ids_of([" ann ", 7, "7.0", None, float("nan")])
    ['ann', '7', '7', '', '']
    """
    return [_whole(text_of(cell)) if validate.is_id(cell) else "" for cell in cells]


def _whole(text: str) -> str:
    whole = text.removesuffix(".0")
    return whole if whole.isdecimal() else text
