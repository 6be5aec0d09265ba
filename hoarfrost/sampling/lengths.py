"""Chunks of examples of like length: a text is padded to the longest of its chunk, and little of that is in vain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hoarfrost.errors import InvalidValue
from hoarfrost.sampling.people import as_list


class Lengths:
    """How long each row of a data set is.

    Args:
        lengths: a number for each row (a list, tensor, array or column), or a function of a row, which is called once
            for each.
        dataset: where the rows are.

    Guarantees:
        Lengths say in which order the examples of one logical batch are worked on, and nothing else: which are drawn,
        how each is clipped and what is added to their sum is the same without them. They are private, like the rows:
        they are kept in memory, and are in no message, file or log.

    >>> Lengths([5, 1, 3, 1], dataset=range(4)).in_order([[0], [1], [2, 3]])
    [[1], [2, 3], [0]]
    """

    def __init__(self, lengths: Any, dataset: Any) -> None:
        self._of_rows = numbers_of(lengths, dataset)

    def in_order(self, drawn: Sequence[list[int]]) -> list[list[int]]:
        """The rows of each example, or person, the shortest first; a person is as long as their longest row."""
        return sorted(drawn, key=lambda rows: float(self._of_rows[rows].max()))


def lengths_of(lengths: Any, dataset: Any, max_physical_batch: int | None) -> Lengths | None:
    """The lengths, if there are any and they matter."""
    if lengths is None:
        return None
    if max_physical_batch is None:
        raise InvalidValue(
            "lengths= puts examples of like length into the same chunk, and without max_physical_batch= a batch is one "
            "chunk: say how many rows a chunk may have"
        )
    return Lengths(lengths, dataset)


def numbers_of(lengths: Any, dataset: Any) -> npt.NDArray[np.float64]:
    """A number for each row. Messages tell no length, and not which row is meant."""
    if callable(lengths):
        lengths = [lengths(dataset[row]) for row in range(len(dataset))]
    if isinstance(lengths, str | bytes) or not isinstance(lengths, Iterable):
        raise InvalidValue(
            "lengths is a number for each row (a list, tensor, array or column), or a function of a row, such as "
            f'lambda row: len(row["input_ids"]); not one {type(lengths).__name__}'
        )
    try:
        found = np.array(as_list(lengths), dtype=np.float64)
    except (TypeError, ValueError):
        found = np.array(np.nan)
    if found.ndim != 1 or not np.isfinite(found).all():
        raise InvalidValue("lengths is one finite number for each row: of each text, how many words it has")
    if len(found) != len(dataset):
        raise InvalidValue(
            f"lengths has {len(found)} numbers, and the data set {len(dataset)} rows: give one for each row, in order"
        )
    return found
