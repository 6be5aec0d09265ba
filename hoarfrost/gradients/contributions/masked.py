"""Contributions of parameters of which only some coordinates are live, where there is a shorter way than `Masked`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hoarfrost.gradients import buffers, sparse
from hoarfrost.gradients.contributions.base import Contribution, Masked
from hoarfrost.gradients.contributions.rounding import squares
from hoarfrost.masks import PartialMask

if TYPE_CHECKING:
    from hoarfrost.gradients.contributions.outer import Outer


class LiveOnly(Contribution):
    """The live rows or elements of a parameter, and nothing else: frozen ones are not even computed."""

    def __init__(self, live: Contribution, mask: PartialMask):
        self.live, self.mask = live, mask
        self.examples = live.examples

    def squared_norms(self) -> Tensor:
        return self.live.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.mask.scatter(self.live.weighted_sum(weights).flatten())

    def instantiate(self) -> Tensor:
        return self.mask.scatter(self.live.instantiate().flatten(1))

    def take(self, index: Tensor) -> Contribution:
        return LiveOnly(self.live.take(index), self.mask)

    def masked(self, mask: PartialMask) -> Contribution:
        return self  # a rule has done it


class MaskedOuter(Masked):
    """Some elements of the matrix of an `Outer` without a sequence, whose norm needs no gradient to be written out."""

    whole: Outer

    def squared_norms(self) -> Tensor:
        # Σ_{i,j} M_ij g_i² a_j²
        a, g = self.whole.a[:, 0], self.whole.g[:, 0]
        inputs = a.square() @ self.mask.mask.to(a.dtype).T
        return self._rounded_up((inputs * g.square()).sum(1, dtype=torch.float64))

    def _rounded_up(self, squared: Tensor) -> Tensor:
        """With what rows of float32 numbers may have lost as they were added up, and squares that underflowed."""
        d, p = self.mask.shape
        numbers = torch.finfo(self.whole.a.dtype)
        a, g = squares(self.whole.a), squares(self.whole.g)
        lost = numbers.tiny * (p * g + d * a + p * d * numbers.tiny + d)
        return squared * (1 + numbers.eps * (self.mask.longest_row + 4)) + lost


class GatheredOuter(MaskedOuter):
    """The same where few elements are live: only they are computed. Features come first here, and examples second."""

    def __init__(self, whole: Outer, mask: PartialMask):
        super().__init__(whole, mask)
        self.a, self.g = (self._transposed(t[:, 0]) for t in (whole.a, whole.g))

    def _transposed(self, t: Tensor) -> Tensor:
        return buffers.lend(self, (t.shape[1], t.shape[0]), t).copy_(t.T)

    def squared_norms(self) -> Tensor:
        found, size = [], sparse.EXAMPLES_AT_ONCE
        for a, g in zip(self.a.split(size, 1), self.g.split(size, 1), strict=True):
            found.append(sparse.row_sums(a.square(), self.mask).mul_(g.square()).sum(0, dtype=torch.float64))
        return self._rounded_up(torch.cat(found))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = torch.mul(self.g, weights.to(self.g.dtype), out=buffers.lend(self, tuple(self.g.shape), self.g))
        return self.mask.scatter(sparse.sampled_products(scaled[None], (self.a,), self.mask)[0])
