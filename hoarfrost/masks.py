"""Masks: which coordinates of a parameter are live (trained). All, none, some rows, or some elements.

Freezers make them, the gradient engine and the optimizer obey them, and none of the three needs another for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class Channels:
    """Some rows (output channels) of a parameter, by their numbers: the others need not even be computed.

    >>> Channels([2, 0]).index.tolist()
    [2, 0]
    """

    index: Tensor  # int64 [live]

    def __post_init__(self) -> None:
        if not isinstance(self.index, Tensor):
            object.__setattr__(self, "index", torch.tensor(self.index, dtype=torch.int64))


Mask = bool | Tensor | Channels
"""True for everything, False for nothing, a boolean tensor in the parameter's shape, or `Channels`."""

Live = Mapping[str, Mask]
"""The live coordinates of every parameter that the optimizer moves, by name."""


class PartialMask:
    """A mask that is neither all live nor all frozen. What is derived from it is computed once, when first asked for.

    >>> mask = PartialMask(torch.tensor([[True, False], [True, True]]))
    >>> mask.count, mask.indices.tolist(), [each.tolist() for each in mask.csr]
    (3, [0, 2, 3], [[0, 1, 3], [0, 0, 1]])
    """

    def __init__(self, mask: Tensor, rows: Tensor | None = None) -> None:
        self.mask = mask  # boolean, in the parameter's shape
        self.rows = rows  # the numbers of the live rows, ascending (int64), where whole rows are live

    @property
    def shape(self) -> torch.Size:
        """The parameter's."""
        return self.mask.shape

    @cached_property
    def count(self) -> int:
        """How many coordinates are live."""
        return int(self.mask.sum())

    @cached_property
    def indices(self) -> Tensor:
        """Where the live coordinates are in the flattened parameter, ascending (int64)."""
        return self.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def csr(self) -> tuple[Tensor, Tensor]:
        """(row starts, columns) of the live coordinates, as `torch.sparse_csr_tensor` takes them."""
        matrix = self.mask.reshape(len(self.mask), -1)
        ends = matrix.sum(1).cumsum(0)
        return torch.cat([ends.new_zeros(1), ends]), self.indices % matrix.shape[1]

    def zero_frozen_(self, t: Tensor) -> Tensor:
        """[..., *shape], set to zero in place where it is frozen. Not by multiplication: 0 · inf is no zero."""
        return t.masked_fill_(self.frozen, 0.0)

    @cached_property
    def frozen(self) -> Tensor:
        """The opposite of the mask."""
        return ~self.mask

    @cached_property
    def longest_row(self) -> int:
        """The largest number of coordinates that are live in one row."""
        return int(self.csr[0].diff().max())

    def scatter(self, values: Tensor) -> Tensor:
        """[..., live] → [..., *shape], with zeros where it is frozen."""
        flat = values.new_zeros(*values.shape[:-1], self.mask.numel())
        return flat.index_copy_(-1, self.indices, values).view(*values.shape[:-1], *self.shape)


Masks = Mapping[str, bool | PartialMask]
"""Masks of the parameters that are not wholly live: False where all of one is frozen."""


def intersect(a: Mask, b: Mask, shape: torch.Size) -> Mask:
    """The mask of what is live in both masks.

    >>> intersect(True, Channels(torch.tensor([1])), torch.Size([3, 2])).index.tolist()
    [1]
    >>> intersect(Channels(torch.tensor([0, 1])), Channels(torch.tensor([1, 2])), torch.Size([3, 2])).index.tolist()
    [1]
    """
    for mask in (a, b):
        check_fits(mask, shape)
    if a is False or b is False:
        return False
    if a is True or b is True:
        return b if a is True else a
    if isinstance(a, Channels) and isinstance(b, Channels):
        return Channels(a.index[torch.isin(a.index, b.index)])
    return as_tensor(a, shape) & as_tensor(b, shape)


def as_tensor(mask: Mask, shape: torch.Size) -> Tensor:
    """The mask written out, in the parameter's shape."""
    if isinstance(mask, bool):
        return torch.full(shape, mask)
    if isinstance(mask, Channels):
        out = torch.zeros(shape, dtype=torch.bool, device=mask.index.device)
        out[mask.index] = True
        return out
    return mask


def resolve_mask(mask: Mask, parameter: Tensor) -> bool | PartialMask:
    """A mask checked against its parameter and moved to its device: True if all is live, False if nothing is.

    Raises `InvalidValue` if the mask does not fit the parameter.

    >>> resolve_mask(Channels(torch.tensor([2, 0])), torch.zeros(3, 5)).count
    10
    >>> resolve_mask(torch.ones(2) > 0, torch.zeros(2))
    True
    """
    shape, device = parameter.shape, parameter.device
    check_fits(mask, shape)
    if isinstance(mask, bool):
        return mask
    rows = mask.index.to(device).unique() if isinstance(mask, Channels) else None  # ascending, each once
    partial = PartialMask(as_tensor(mask, shape).to(device), rows)
    return True if partial.count == prod(shape) else False if partial.count == 0 else partial


def check_fits(mask: Mask, shape: torch.Size) -> None:
    """Raises `InvalidValue` for what is no mask of a parameter of that shape."""
    if isinstance(mask, bool):
        return
    if isinstance(mask, Channels):
        fits = len(shape) > 0 and mask.index.dim() == 1 and mask.index.dtype == torch.int64
        fits = fits and bool(((mask.index >= 0) & (mask.index < shape[0])).all())
    else:
        fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == shape
    if not fits:
        got = f"{mask.dtype} of shape {tuple(mask.shape)}" if isinstance(mask, Tensor) else f"{mask!r}"
        raise InvalidValue(
            f"live coordinates are True, False, Channels (numbers of its rows), or a boolean tensor in the parameter's "
            f"shape, which is {tuple(shape)}; got {got}"
        )


def same_masks(a: Live, b: Live) -> bool:
    """Whether both say the same of every parameter.

    >>> same_masks({"a": torch.ones(2) > 0, "b": True}, {"a": torch.ones(2) > 0, "b": True})
    True
    """
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _same(a: Mask, b: Mask) -> bool:
    if isinstance(a, Channels) and isinstance(b, Channels):
        a, b = a.index, b.index
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.device == b.device and torch.equal(a, b)
    return a is b


def copy_mask(mask: Mask) -> Mask:
    """A copy that does not change when somebody writes into the original."""
    if isinstance(mask, Channels):
        return Channels(mask.index.clone())
    return mask.clone() if isinstance(mask, Tensor) else mask
