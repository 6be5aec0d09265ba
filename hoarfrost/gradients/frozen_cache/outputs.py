"""What a module returns, taken apart into one row for each example and put together again for another batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.gradients.frozen_cache.inputs import Inputs
from hoarfrost.nested import map_tensors, parts

Three = tuple[Inputs, Inputs, Inputs | None]  # some rows, fewer of them, and some cut to another width


@dataclass(frozen=True)
class Layout:
    """Where the rows of a tensor are.

    Args:
        rows: the dimension that counts them.
        places: the dimensions that are as long as the rows with their padding.
        shape: of the tensor in some batch; other dimensions than these always have that size.
    """

    rows: int
    places: tuple[int, ...]
    shape: tuple[int, ...]

    def take(self, t: Tensor, row: int, length: int | None) -> Tensor:
        """One row, without its padding."""
        for dim in self.places:
            t = t.narrow(dim, 0, length or 0)
        return t.select(self.rows, row).detach().clone()

    def sizes(self, inputs: Inputs) -> list[int]:
        """The tensor's shape in this batch."""
        sizes = list(self.shape)
        for dim in self.places:
            sizes[dim] = inputs.width or 0
        sizes[self.rows] = inputs.rows
        return sizes

    def together(self, rows: Sequence[Tensor], inputs: Inputs) -> Tensor:
        """The tensor whose rows these are; zero where they are padded."""
        if not self.places:
            return torch.stack(list(rows), self.rows)
        whole = rows[0].new_zeros(self.sizes(inputs))
        for row, t in enumerate(rows):
            whole.select(self.rows, row)[tuple(slice(size) for size in t.shape)] = t
        return whole


@dataclass(frozen=True)
class Output:
    """What one module returns.

    Args:
        template: the structure, with tensors that hold nothing.
        layouts: of its tensors.
        dtypes: of its tensors.
        kept: which of them are stored; of the others nobody reads the numbers.
    """

    module: nn.Module
    template: Any
    layouts: tuple[Layout, ...]
    dtypes: tuple[torch.dtype, ...]
    device: torch.device
    kept: frozenset[int] = field(default_factory=frozenset)

    def keeping(self, kept: frozenset[int]) -> Output:
        """The same with other tensors stored."""
        return replace(self, kept=kept)

    def shaped(self, other: Any) -> Output:
        """The same with the shapes that its tensors have in ``other``."""
        pairs = zip(self.layouts, tensors_of(other), strict=True)
        return replace(self, layouts=tuple(replace(layout, shape=tuple(t.shape)) for layout, t in pairs))

    def rows_of(self, returned: Any, inputs: Inputs) -> list[list[Tensor]]:
        """Of what the module returned for these inputs: for each row, what is stored of it."""
        tensors = tensors_of(returned)
        lengths: Sequence[int | None] = inputs.lengths or [None] * inputs.rows
        return [
            [self.layouts[k].take(tensors[k], row, lengths[row]) for k in sorted(self.kept)]
            for row in range(inputs.rows)
        ]

    def served(self, rows: Sequence[Sequence[Tensor]], inputs: Inputs) -> Any:
        """What the module would return for these inputs, made of their stored rows; NaN in what is not stored."""
        stored = dict(zip(sorted(self.kept), zip(*rows, strict=True), strict=True))
        tensors = iter(
            layout.together(stored[k], inputs)
            if k in stored
            else torch.full(layout.sizes(inputs), torch.nan, dtype=dtype, device=self.device)
            for k, (layout, dtype) in enumerate(zip(self.layouts, self.dtypes, strict=True))
        )
        return map_tensors(lambda _: next(tensors), self.template)


def described(
    module: nn.Module, returned: Any, fewer: Any, cut: Any, inputs: tuple[Inputs, Inputs, Inputs | None]
) -> Output | None:
    """What a module returns, as seen from runs on some rows, on fewer of them and on rows cut to another width.

    None where a part of it has no rows, or something else than tensors and plain values is in it.
    """
    if not _is_plain(returned):
        return None
    tensors, others, cuts = tensors_of(returned), tensors_of(fewer), tensors_of(returned if cut is None else cut)
    if not tensors or not len(tensors) == len(others) == len(cuts):
        return None
    layouts = []
    for t, other, narrow in zip(tensors, others, cuts, strict=True):
        layout = _layout(t, other, None if cut is None else narrow, inputs)
        if layout is None:
            return None
        layouts.append(layout)
    return Output(
        module, map_tensors(lambda t: t.new_empty(0), returned), tuple(layouts), tuple(t.dtype for t in tensors),
        tensors[0].device, frozenset(range(len(tensors))),
    )  # fmt: skip


def _layout(
    t: Tensor, fewer: Tensor, cut: Tensor | None, inputs: tuple[Inputs, Inputs, Inputs | None]
) -> Layout | None:
    many, few, narrow = inputs
    if t.dim() != fewer.dim() or (cut is not None and t.dim() != cut.dim()):
        return None
    moved = [dim for dim in range(t.dim()) if t.shape[dim] != fewer.shape[dim]]
    if len(moved) != 1 or (t.shape[moved[0]], fewer.shape[moved[0]]) != (many.rows, few.rows):
        return None
    places: list[int] = []
    if cut is not None and narrow is not None:
        changed = [dim for dim in range(t.dim()) if dim != moved[0] and t.shape[dim] != cut.shape[dim]]
        if any((t.shape[dim], cut.shape[dim]) != (many.width, narrow.width) for dim in changed):
            return None
        places = changed
    return Layout(moved[0], tuple(places), tuple(t.shape))


def tensors_of(returned: Any) -> list[Tensor]:
    """All tensors in what a module returns."""
    found: list[Tensor] = []
    map_tensors(found.append, returned)
    return found


def _is_plain(item: Any) -> bool:
    inside = parts(item)
    if inside is None:
        return item is None or isinstance(item, Tensor | str | int | float)
    return all(map(_is_plain, inside.values()))
