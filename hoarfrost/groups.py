"""Which rows of a batch are whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Groups:
    """Whose the rows of a batch are: those of an example (its views), or of a person, lie one after the other.

    Args:
        most: K, the most rows that one of them may have: a public constant.
        sizes: how many rows each of them has; None where all have K.

    Guarantees:
        What a group becomes depends on its own rows alone, and its shape on K alone: how a norm is computed (and
        rounded) is chosen by shapes, and must not depend on how many rows others have.

    >>> Groups(2, sizes=[2, 1]).split(torch.tensor([1.0, 2.0, 3.0]))
    tensor([[1., 2.],
            [3., 0.]])
    >>> Groups(2).split(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    tensor([[1., 2.],
            [3., 4.]])
    """

    def __init__(self, most: int, sizes: Sequence[int] | None = None) -> None:
        self.most = most
        self.sizes = None if sizes is None else torch.tensor(sizes, dtype=torch.int64)
        self.rows = 0 if sizes is None else sum(sizes)  # of all of them, where sizes are given
        self._owner = None if self.sizes is None else torch.arange(len(self.sizes)).repeat_interleave(self.sizes)

    def count(self, rows: int) -> int:
        """How many groups so many rows are."""
        return rows // self.most if self.sizes is None else len(self.sizes)

    def rows_of(self, groups: int) -> int:
        """How many rows so many groups are; all of them, where they have different numbers of rows."""
        return groups * self.most if self.sizes is None else self.rows

    def split(self, t: Tensor, *, again: bool = False) -> Tensor:
        """[rows, ...] → [B, K, ...]. Where a group has fewer rows than K, what is missing is zeros.

        Args:
            again: it is the group's last row once more. What is to be multiplied by a gradient of zero must be a number
                like any other: a rule may divide by it.
        """
        if self.sizes is None and self.most == 1:
            return t.unsqueeze(1)
        if self.sizes is None:
            return t.unflatten(0, (-1, self.most)) if t.shape[0] else t.reshape(0, self.most, *t.shape[1:])
        places = torch.arange(self.most).expand(len(self.sizes), -1)
        start = (self.sizes.cumsum(0) - self.sizes).unsqueeze(1)
        row = start + torch.minimum(places, self.sizes.unsqueeze(1) - 1)
        found: Tensor = t.index_select(0, row.flatten().to(t.device)).unflatten(0, (-1, self.most))
        if again:
            return found
        there = (places < self.sizes.unsqueeze(1)).to(t.device)
        return torch.where(there.view(*there.shape, *[1] * (t.dim() - 1)), found, 0)

    def spread(self, t: Tensor) -> Tensor:
        """[B, ...] → [rows, ...]: each group's entry, once for each of its rows. Can be differentiated."""
        if self._owner is not None:
            spread: Tensor = _Spread.apply(t, self._owner.to(t.device))
            return spread
        return t if self.most == 1 else t.repeat_interleave(self.most, 0)

    def owner(self, rows: Tensor) -> Tensor:
        """The group that each of these rows belongs to."""
        return rows // self.most if self._owner is None else self._owner.to(rows.device)[rows]

    def scale(self, groups: int, mean: bool, device: torch.device) -> float | Tensor:
        """What makes the sum of a group's row gradients the mean of them; a number, or [B, 1].

        Args:
            groups: B.
            mean: the loss divided every row's gradient by the number of all rows, which is taken back.
        """
        if self.sizes is None:
            return float(groups) if mean else 1 / self.most
        return ((self.rows if mean else 1) / self.sizes.to(device, torch.float64)).unsqueeze(1)


class _Spread(torch.autograd.Function):
    """`index_select`, without a saved tensor: a checkpoint may run the model again as it is, and counts them."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, owner: Tensor) -> Tensor:
        ctx.owner, ctx.groups = owner, len(t)
        return t.index_select(0, owner)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_zeros(ctx.groups, *gradient.shape[1:]).index_add_(0, ctx.owner, gradient), None
