"""Whether a collate function hands over the rows of the examples that were drawn, each by itself.

One that leaves out what cannot be read does no harm: such an example contributes nothing. One that leaves out examples
because of others (what is left over of a round number, what makes a batch too long) lets one example move others in or
out of a step. The two are told apart by how many rows come of examples together, and one by one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors

LOOKS = 3  # batches of other rows than were drawn that are looked at
MOST = 256  # examples of such a batch that are collated one by one

Collate = Callable[[list[Any]], Any]


def rows_in(batch: Any, expected: int, batch_first: bool = True) -> int | None:
    """How many rows a batch has: ``expected``, if any tensor or list has so many, else the first's; None without one.

    >>> import torch
    >>> rows_in({"words": torch.zeros(12), "label": torch.zeros(4)}, expected=4)
    4
    >>> rows_in(((torch.zeros(9), torch.zeros(9)), (torch.tensor(1), torch.tensor(0))), expected=3)  # a list of each
    2
    """
    sizes: list[int] = _lengths(batch)

    def note(t: Tensor) -> Tensor:
        if not t.is_nested:
            dim = 0 if batch_first or t.dim() < 2 else 1
            sizes.extend(t.shape[dim : dim + 1])
        return t

    map_tensors(note, batch)
    return expected if expected in sizes else next(iter(sizes), None)


def _lengths(item: Any, *, inside: bool = False) -> list[int]:
    """Of lists that hold an entry for each row, as a list of examples does; a batch is mostly a tuple of such."""
    if isinstance(item, Mapping):
        return [length for each in item.values() for length in _lengths(each, inside=True)]
    if not isinstance(item, list | tuple):
        return []
    kinds = (Tensor,) if isinstance(item, list) else (Tensor, list, tuple)
    if inside or not any(isinstance(each, kinds) for each in item[:1]):
        return [len(item)]
    return [length for each in item for length in _lengths(each, inside=True)]


class Rows:
    """Looks at what a collate function makes of the examples that were drawn.

    Args:
        together: the most rows that an example (its views) or a person has: they are known by their place, so that none
            may be missing.

    Guarantees:
        Where an example has several rows, a batch of another number of rows than were drawn is refused. Where it has
        one, so is, in the first such batches, one whose examples do not come to as many rows one by one.
    """

    def __init__(self, collate: Collate, dataset: Any, together: int, batch_first: bool) -> None:
        self._collate, self._dataset, self._together, self._first = collate, dataset, together, batch_first
        self._looks = 0 if collate is default_collate else LOOKS

    def check(self, batch: Any, drawn: Sequence[int]) -> None:
        """Refuses a batch that was made of the examples with these numbers, if some of them had a say in others."""
        if not self._looks or rows_in(batch, len(drawn), self._first) in (None, len(drawn)):
            return
        if self._together > 1:
            raise NotPrivate(
                "the collate function hands over other rows than were drawn: one that drops rows puts views of "
                "different examples (views=), or rows of different people (person=), together, which are known by "
                "their place. Let the data set return something constant for what cannot be read, and weigh it with 0 "
                "in optimizer.backward(losses)."
            )
        self._looks -= 1
        with torch.random.fork_rng(devices=[]):
            examples = [self._dataset[index] for index in drawn[:MOST]]
            whole, one_by_one = self._rows(examples), sum(self._rows([example]) or 0 for example in examples)
        if whole not in (None, one_by_one):
            raise NotPrivate(
                "the collate function hands over other rows than were drawn, and an example has a say in whether "
                "others are there (it drops what is left over of a round number, what makes a batch too long, or what "
                "is there already): one example more moves others in or out of a step. Drop an example for what it "
                "holds itself alone; or hand over all rows, and weigh with 0 what shall not count, in "
                "optimizer.backward(losses). For batches that are too large, use max_physical_batch=."
            )

    def _rows(self, examples: list[Any]) -> int | None:
        """How many rows come of them; None where nothing does, or where they cannot be collated."""
        try:  # copies, because some collate functions take their input apart
            return rows_in(self._collate(copy.deepcopy(examples)), len(examples), self._first)
        except Exception:
            return None
