"""The gradient of a matrix: a sum of outer products."""

from __future__ import annotations

import torch
from torch import Tensor

from hoarfrost.gradients import buffers, costs, sparse
from hoarfrost.gradients.contributions.base import Contribution, Masked
from hoarfrost.gradients.contributions.dense import Dense
from hoarfrost.gradients.contributions.masked import GatheredOuter, LiveOnly, MaskedOuter
from hoarfrost.gradients.contributions.rounding import (
    at_least_float32,
    gram_norms,
    lost_to_underflow,
    squares,
)
from hoarfrost.masks import PartialMask


class Outer(Contribution):
    """A matrix's gradient Σ_t g_t ⊗ a_t, [d, p], from inputs ``a`` [B, T, p] and output gradients ``g`` [B, T, d]."""

    def __init__(self, a: Tensor, g: Tensor):
        self.a, self.g = at_least_float32(a), at_least_float32(g)
        self.examples = a.shape[0]
        self._written: Tensor | None = None
        self._g_squares: Tensor | None = None

    def squared_norms(self) -> Tensor:
        _, positions, p = self.a.shape
        if positions == 1:
            return squares(self.a, upwards=True).mul_(self.g_squares)
        d = self.g.shape[2]
        if costs.cheapest(costs.outer(self.examples, positions, p, d, self.a.device.type)) == "gram":
            return gram_norms(torch.bmm(self.a, self.a.mT), torch.bmm(self.g, self.g.mT), p, d)
        written = buffers.lend(self, (self.examples, d, p), self.a)
        self._written = torch.bmm(self.g.mT, self.a, out=written)
        return squares(self._written)

    @property
    def g_squares(self) -> Tensor:
        """‖g‖² of each example, which are a bias's squared norms, too, where there is one position."""
        if self._g_squares is None:  # no cached_property, which takes a lock
            self._g_squares = squares(self.g, upwards=True)
        return self._g_squares

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._written is not None:
            return Dense(self._written).weighted_sum(weights)
        a, g = self.a, self.g
        if weights.dtype is not a.dtype:
            weights = weights.to(a.dtype)
        column, p, d = weights.view(-1, 1, 1), a.shape[2], g.shape[2]
        if p < d:
            a = a * column
        else:
            g = g * column
        return torch.mm(g.reshape(-1, d).t(), a.reshape(-1, p))

    def instantiate(self) -> Tensor:
        return torch.bmm(self.g.mT, self.a)

    def hidden_rounding(self) -> Tensor | float:
        positions, p, d = self.a.shape[1], self.a.shape[2], self.g.shape[2]
        return lost_to_underflow(squares(self.a.double()), squares(self.g.double()), self.a, positions, p, d)

    def take(self, index: Tensor) -> Contribution:
        return Outer(self.a[index], self.g[index])

    def masked(self, mask: PartialMask) -> Contribution:
        if mask.rows is not None:
            return LiveOnly(Outer(self.a, self.g.index_select(2, mask.rows)), mask)
        positions, p, d = self.a.shape[1], self.a.shape[2], self.g.shape[2]
        method = costs.cheapest(
            costs.masked_outer(self.examples, positions, p, d, mask.count / (p * d), self.a.device.type)
        )
        if method == "picked":
            return LiveOnly(Dense(sparse.sampled_products(self.g.mT, self.a.mT, mask)), mask)
        if method == "pieces":
            return Masked(self, mask)
        return GatheredOuter(self, mask) if method == "gathered" else MaskedOuter(self, mask)


class BesideOuter(Dense):
    """A bias's gradients, which are the output gradients of ``weight`` at its one position: squared once for both."""

    def __init__(self, weight: Outer):
        super().__init__(weight.g.select(1, 0))
        self.weight = weight

    def squared_norms(self) -> Tensor:
        return self.weight.g_squares


class Block(Contribution):
    """An `Outer` about the rows from ``start`` on, of a matrix that has ``height`` rows."""

    def __init__(self, a: Tensor, g: Tensor, start: int, height: int):
        self.outer = Outer(a, g)
        self.examples, self.start, self.stop, self.height = len(a), start, start + g.shape[2], height

    def squared_norms(self) -> Tensor:
        return self.outer.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._padded(self.outer.weighted_sum(weights))

    def instantiate(self) -> Tensor:
        return self._padded(self.outer.instantiate())

    def hidden_rounding(self) -> Tensor | float:
        return self.outer.hidden_rounding()

    def take(self, index: Tensor) -> Contribution:
        return Block(self.outer.a[index], self.outer.g[index], self.start, self.height)

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        if not isinstance(other, Block) or (self.start < other.stop and other.start < self.stop):
            return None
        # The three projections of one call have no row in common.
        zeros = self.outer.g.new_zeros(self.examples)
        return zeros, zeros

    def _padded(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows, (0, 0, self.start, self.height - self.stop))
