"""Frozen coordinates do not move, whatever the optimizer does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from hoarfrost.masks import PartialMask

OWN_START = {"step_size"}  # state that does not begin at zero: Rprop's, which a gradient of zero leaves as it is


class FrozenGuard:
    """While it is entered, frozen coordinates of these parameters, and of their optimizer state, do not change.

    Whatever the optimizer does to them (momentum, weight decay) is undone, bit for bit.

    Args:
        masks: of parameters of which some is live and some frozen; others need no guard, since a parameter without a
            gradient is not touched.
    """

    def __init__(self, optimizer: Optimizer, masks: Mapping[nn.Parameter, bool | PartialMask]) -> None:
        self.optimizer = optimizer
        self.masks = {p: mask.mask for p, mask in masks.items() if isinstance(mask, PartialMask)}
        self._before: dict[nn.Parameter, dict[Any, Tensor]] = {}

    def __enter__(self) -> None:
        for p in self.masks:
            self._before[p] = {name: t.clone() for name, t in self._tensors(p).items()}

    def __exit__(self, *_: object) -> None:
        for p, mask in self.masks.items():
            for name, t in self._tensors(p).items():
                # State that did not exist before begins at zero where the coordinate is frozen.
                before = self._before[p].get(name)
                if before is None and name in OWN_START:
                    continue
                torch.where(_in_shape_of(t, mask), t, torch.zeros_like(t) if before is None else before, out=t)

    def _tensors(self, p: nn.Parameter) -> dict[Any, Tensor]:
        """The parameter, and every state tensor that has entries for its coordinates, or for rows or columns."""
        state = {n: t for n, t in self.optimizer.state.get(p, {}).items() if isinstance(t, Tensor)}
        return {None: p.data} | {name: t for name, t in state.items() if _is_like(t, p)}


def zero_moves_nothing(optimizer: Optimizer) -> bool:
    """Whether it is plain SGD: w + (−lr) · 0 is w, bit for bit, and there is no state.

    >>> zero_moves_nothing(SGD([nn.Parameter(torch.ones(1))], lr=0.1))
    True
    """
    if type(optimizer) is not SGD:
        return False
    plain = (not (group["momentum"] or group["weight_decay"] or group["maximize"]) for group in optimizer.param_groups)
    return all(plain) and all(math.isfinite(group["lr"]) for group in optimizer.param_groups)


def _is_like(state: Tensor, p: Tensor) -> bool:
    """Whether it has an entry for every coordinate, or one for all that lie along a dimension."""
    return state.dim() == p.dim() and all(a in (1, b) for a, b in zip(state.shape, p.shape, strict=True))


def _in_shape_of(state: Tensor, mask: Tensor) -> Tensor:
    """The mask in the state's shape: an entry for several coordinates is live if any of them is."""
    for dim, (a, b) in enumerate(zip(state.shape, mask.shape, strict=True)):
        mask = mask if a == b else mask.any(dim, keepdim=True)
    return mask
