"""Which rows of a batch are whose."""

from __future__ import annotations

from collections.abc import Sequence

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

    def split(self, t: Tensor) -> Tensor:
        """[rows, ...] → [B, K, ...]; where a group has fewer rows than K, the others are zeros."""
        if self.sizes is None:
            return t.unflatten(0, (-1, self.most)) if t.shape[0] else t.reshape(0, self.most, *t.shape[1:])
        assert self._owner is not None
        before = (self.sizes.cumsum(0) - self.sizes)[self._owner]
        places = self._owner * self.most + torch.arange(self.rows) - before
        padded = t.new_zeros(len(self.sizes) * self.most, *t.shape[1:])
        found: Tensor = padded.index_copy_(0, places.to(t.device), t).unflatten(0, (-1, self.most))
        return found

    def spread(self, t: Tensor) -> Tensor:
        """[B, ...] → [rows, ...]: each group's entry, once for each of its rows. Can be differentiated."""
        if self._owner is not None:
            return t.index_select(0, self._owner.to(t.device))
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
