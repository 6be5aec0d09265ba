"""Which coordinates move: for each parameter everything, nothing, some rows, or some elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from hoarfrost.errors import InvalidValue


@dataclass(frozen=True, eq=False)
class Channels:
    """Some rows (output channels) of a parameter, by their numbers, ascending: the others need not even be computed."""

    index: Tensor  # int64 [live]


Mask = bool | Tensor | Channels
"""True for everything, False for nothing, a boolean tensor in the parameter's shape, or `Channels`."""

Live = Mapping[str, Mask]
"""The live coordinates of every parameter that the optimizer moves, by name."""


def both(a: Mask, b: Mask, shape: torch.Size) -> Mask:
    """What is live in both.

    >>> both(True, Channels(torch.tensor([1])), torch.Size([3, 2])).index.tolist()
    [1]
    >>> both(Channels(torch.tensor([0, 1])), Channels(torch.tensor([1, 2])), torch.Size([3, 2])).index.tolist()
    [1]
    """
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


def count(mask: Mask, shape: torch.Size) -> int:
    """How many coordinates are live.

    >>> count(Channels(torch.tensor([0, 2])), torch.Size([3, 5])), count(True, torch.Size([3, 5]))
    (10, 15)
    """
    if isinstance(mask, bool):
        return prod(shape) * mask
    return len(mask.index) * prod(shape[1:]) if isinstance(mask, Channels) else int(mask.sum())


def simplest(mask: Mask, shape: torch.Size) -> Mask:
    """The same, as True or False if it is all or nothing; a mask that does not fit is refused."""
    if isinstance(mask, bool):
        return mask
    if isinstance(mask, Channels):
        fits = len(shape) > 0 and mask.index.dim() == 1 and mask.index.dtype == torch.int64
    else:
        fits = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.shape == shape
    if not fits:
        raise InvalidValue(
            f"live coordinates are True, False, Channels, or a boolean tensor in the parameter's shape {tuple(shape)}"
        )
    live = count(mask, shape)
    return True if live == prod(shape) else False if live == 0 else mask
