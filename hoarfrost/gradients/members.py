"""Batches of some examples: picked from a batch that is there, or collated anew from a data set."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate

from hoarfrost.errors import InvalidValue
from hoarfrost.gradients.arguments import examples_in, tensors_in
from hoarfrost.nested import map_tensors, parts, rebuild


@dataclass(frozen=True)
class StandIn:
    """An example that is put in the place of another: that of this number, and its numbers ``changed`` or not."""

    number: int
    changed: bool


Member = int | StandIn


class Members(ABC):
    """The examples of a batch, of which others can be made."""

    count: int
    views = 1  # rows of an example

    @abstractmethod
    def batch(self, members: Sequence[Member], device: torch.device, dtype: torch.dtype | None) -> Any:
        """A batch of these examples, in this order; floating-point numbers are cast to ``dtype``, if there is one."""

    def stand_ins(self, number: int) -> Iterator[StandIn]:
        """What can be put in the place of an example, and stands out; the next one where a model refuses the first."""
        other = self.unlike(number)
        yield StandIn(other, changed=True)
        yield StandIn(other, changed=False)

    def unlike(self, number: int) -> int:
        """An example that differs from this one."""
        return (number + self.count // 2) % self.count


class Picked(Members):
    """Rows of a batch that is there; with ``most``, of so many of its examples, spread over it."""

    def __init__(
        self, batch: Any, batch_first: bool = True, rows: int | None = None, views: int = 1, most: int | None = None
    ) -> None:
        self._all, self._first = batch, batch_first
        self._rows = rows or examples_in(tensors_in(batch), None, batch_first).rows
        self.views = views
        self._examples = spread(self._rows // views, most or self._rows)
        self.count = len(self._examples)
        # What is one whole number for each example: labels, and lengths.
        self._columns = [t for t in tensors_of(batch) if t.shape == (self._rows,) and not t.is_floating_point()]

    def unlike(self, number: int) -> int:
        """One with another label, if there is one, and as far away as can be."""
        others = [(number + self.count // 2 + k) % self.count for k in range(self.count)]
        labels = [tuple(int(t[k * self.views]) for t in self._columns) for k in self._examples]
        return next((k for k in others if labels[k] != labels[number]), others[0])

    def batch(self, members: Sequence[Member], device: torch.device, dtype: torch.dtype | None) -> Any:
        numbers = [self._examples[m if isinstance(m, int) else m.number] for m in members]
        rows = [number * self.views + view for number in numbers for view in range(self.views)]
        changed = [
            at * self.views + view
            for at, m in enumerate(members)
            if isinstance(m, StandIn) and m.changed
            for view in range(self.views)
        ]

        def picked(t: Tensor) -> Tensor:
            dim = example_dim(t, self._rows, self._first)
            if dim is not None:
                found = t.index_select(dim, torch.tensor(rows, device=t.device)).movedim(dim, 0)
                if changed:
                    found[changed] = _standing_out(found[changed], t)
                t = found.movedim(0, dim)
            return t.to(device, dtype if dtype is not None and t.is_floating_point() else None)

        return _walk(self._all, picked, self._rows, rows)


class Collated(Members):
    """Examples of a data set, collated anew for each batch."""

    def __init__(self, dataset: Any, indices: Any, collate: Callable[[list[Any]], Any] | None, views: int = 1) -> None:
        if isinstance(indices, int):
            indices = spread(len(dataset), indices)
        if not isinstance(indices, list | tuple | range) or not all(isinstance(i, int) for i in indices):
            raise InvalidValue("with dataset=, batch is a list of indices of examples, or how many to take")
        # Once: augmentation may draw others the next time.
        self._examples = [[dataset[i] for _ in range(views)] for i in indices]
        self._collate = collate or default_collate
        self.count, self.views = len(self._examples), views

    def batch(self, members: Sequence[Member], device: torch.device, dtype: torch.dtype | None) -> Any:
        # Copies, because some collate functions take their input apart.
        examples = [copy.deepcopy(self._examples[m if isinstance(m, int) else m.number]) for m in members]
        for at, m in enumerate(members):
            if isinstance(m, StandIn) and m.changed:
                examples[at] = map_tensors(lambda t: _standing_out(t, t), examples[at])

        def moved(t: Tensor) -> Tensor:
            return t.to(device, dtype if dtype is not None and t.is_floating_point() else None)

        return map_tensors(moved, self._collate([view for each in examples for view in each]))

    def leave_out_dropped(self, batch_first: bool) -> None:
        """Leaves out examples of which the collate function makes no rows, as of what cannot be read."""
        self._examples = [each for each in self._examples if self._has_rows(each, batch_first)]
        self.count = len(self._examples)

    def _has_rows(self, example: list[Any], batch_first: bool) -> bool:
        try:
            batch = self._collate(copy.deepcopy(example))
        except Exception:
            return False
        return any(example_dim(t, self.views, batch_first) is not None for t in tensors_of(batch))


def spread(count: int, most: int) -> list[int]:
    """At most so many of 0, 1, ..., count - 1, first and last among them.

    >>> spread(11, 3), spread(2, 3)
    ([0, 5, 10], [0, 1])
    """
    return sorted({round(k * (count - 1) / max(1, most - 1)) for k in range(most)} if count > most else range(count))


def tensors_of(item: Any) -> Iterator[Tensor]:
    """The tensors in a model's output or a batch, however it is nested."""
    if isinstance(item, Tensor):
        yield item
    for child in (parts(item) or {}).values():
        yield from tensors_of(child)


def example_dim(t: Tensor, rows: int, batch_first: bool) -> int | None:
    """The dimension that counts examples, if one does."""
    dim = 0 if batch_first or t.dim() < 2 else 1
    return dim if t.dim() > dim and t.shape[dim] == rows else None


def _standing_out(rows: Tensor, batch: Tensor) -> Tensor:
    """Numbers that no example has; where all examples have the same label, another one."""
    if rows.is_floating_point():
        return rows * 3 + 1
    label = batch.flatten()[0] if batch.dim() == 1 and len(batch) > 1 and rows.dtype != torch.bool else None
    if label is None or label < 0 or (batch != label).any():
        return rows
    return rows - 1 if label > 0 else rows + 1 if batch.device.type == "cpu" else rows


def _walk(item: Any, picked: Callable[[Tensor], Tensor], count: int, rows: Sequence[int]) -> Any:
    if isinstance(item, Tensor):
        return picked(item)
    children = parts(item)
    if children is None:
        return item
    if (
        isinstance(item, list | tuple)
        and len(item) == count
        and not any(isinstance(t, Tensor) for t in tensors_of(item))
    ):
        return type(item)(item[row] for row in rows)  # names, or lengths, of examples
    return rebuild(item, {key: _walk(child, picked, count, rows) for key, child in children.items()})
