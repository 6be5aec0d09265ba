"""Which coordinates move: for each parameter everything, nothing, some rows, or some elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

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


class Part:
    """What is live of a parameter of which some is live and some rests; what follows from it is worked out once.

    >>> part = Part(torch.tensor([[True, False], [True, True]]))
    >>> part.count, part.places.tolist(), [each.tolist() for each in part.pattern]
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
    def places(self) -> Tensor:
        """The live coordinates' places in the flat parameter, ascending (int64)."""
        return self.mask.flatten().nonzero().squeeze(1)

    @cached_property
    def pattern(self) -> tuple[Tensor, Tensor]:
        """Where each row begins among the live coordinates (one more than there are rows), and each one's column."""
        matrix = self.mask.reshape(len(self.mask), -1)
        ends = matrix.sum(1).cumsum(0)
        return torch.cat([ends.new_zeros(1), ends]), self.places % matrix.shape[1]

    def cleared(self, t: Tensor) -> Tensor:
        """[..., *shape] with zeros at what rests, in place. Not by multiplication: 0 · inf is no zero."""
        return t.masked_fill_(self.resting, 0.0)

    @cached_property
    def resting(self) -> Tensor:
        """The opposite of the mask."""
        return ~self.mask

    @cached_property
    def longest_row(self) -> int:
        """The largest number of coordinates that are live in one row."""
        return int(self.pattern[0].diff().max())

    def scattered(self, values: Tensor) -> Tensor:
        """[..., live] → [..., *shape], with zeros at what rests."""
        flat = values.new_zeros(*values.shape[:-1], self.mask.numel())
        return flat.index_copy_(-1, self.places, values).view(*values.shape[:-1], *self.shape)


Masks = Mapping[nn.Parameter, bool | Part]
"""What is live of parameters that are not wholly live: False for nothing."""


def both(a: Mask, b: Mask, shape: torch.Size) -> Mask:
    """What is live in both.

    >>> both(True, Channels(torch.tensor([1])), torch.Size([3, 2])).index.tolist()
    [1]
    >>> both(Channels(torch.tensor([0, 1])), Channels(torch.tensor([1, 2])), torch.Size([3, 2])).index.tolist()
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


def part_of(mask: Mask, parameter: Tensor) -> bool | Part:
    """What a freezer says of a parameter: True or False if it is all or nothing. A mask that does not fit is refused.

    >>> part_of(Channels(torch.tensor([2, 0])), torch.zeros(3, 5)).count, part_of(torch.ones(2) > 0, torch.zeros(2))
    (10, True)
    """
    shape, device = parameter.shape, parameter.device
    check_fits(mask, shape)
    if isinstance(mask, bool):
        return mask
    rows = mask.index.to(device).unique() if isinstance(mask, Channels) else None  # ascending, each once
    part = Part(as_tensor(mask, shape).to(device), rows)
    return True if part.count == prod(shape) else False if part.count == 0 else part


def check_fits(mask: Mask, shape: torch.Size) -> None:
    """Refuses what is no mask for a parameter of that shape."""
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


def same(a: Live, b: Live) -> bool:
    """Whether two freezers, or one asked twice, say the same.

    >>> same({"a": torch.ones(2) > 0, "b": True}, {"a": torch.ones(2) > 0, "b": True})
    True
    """
    return a.keys() == b.keys() and all(_same(a[name], b[name]) for name in a)


def _same(a: Mask, b: Mask) -> bool:
    if isinstance(a, Channels) and isinstance(b, Channels):
        a, b = a.index, b.index
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.device == b.device and torch.equal(a, b)
    return a is b


def own(mask: Mask) -> Mask:
    """A copy that does not change when somebody writes into the original."""
    if isinstance(mask, Channels):
        return Channels(mask.index.clone())
    return mask.clone() if isinstance(mask, Tensor) else mask
