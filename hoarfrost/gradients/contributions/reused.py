"""A parameter that is used more than once in one run of the model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from hoarfrost.gradients.contributions.base import Contribution
from hoarfrost.gradients.contributions.outer import Outer
from hoarfrost.gradients.contributions.rounding import in_pieces, rounded_up, squares
from hoarfrost.masks import PartialMask


class Reused(Contribution):
    """Several uses of one parameter: the norm is that of the *summed* gradient."""

    def __init__(self, uses: Sequence[Contribution]):
        self.uses = list(uses)
        self.examples = uses[0].examples

    def squared_norms(self) -> Tensor:
        each = torch.stack([use.squared_norms() for use in self.uses])
        products = self._inner_products()
        if products is not None:
            # ‖Σ u‖² = Σ ‖u‖² + 2 Σ_{i<j} ⟨u_i, u_j⟩
            return rounded_up(each.sum(0) + 2 * products[0], each.sqrt().sum(0) + (2 * products[1]).sqrt())
        everyone = torch.arange(self.examples, device=each.device)
        one = self.take(everyone[:1]).instantiate().numel()
        found = in_pieces(everyone, one, lambda some: squares(self.take(some).instantiate()))
        return found + self.hidden_rounding()

    def hidden_rounding(self) -> Tensor | float:
        return sum((use.hidden_rounding() for use in self.uses), 0.0)

    def _inner_products(self) -> tuple[Tensor, Tensor] | None:
        """Summed over all pairs of uses, if each pair knows a short way."""
        pairs = [left.inner_products(right) or right.inner_products(left) for left, right in combinations(self.uses, 2)]
        known = [pair for pair in pairs if pair is not None]
        if len(known) < len(pairs):
            return None
        return torch.stack([value for value, _ in known]).sum(0), torch.stack([scale for _, scale in known]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self.uses[0].weighted_sum(weights)
        for use in self.uses[1:]:
            total = total + use.weighted_sum(weights)
        return total

    def instantiate(self) -> Tensor:
        return torch.stack([use.instantiate() for use in self.uses]).sum(0)

    def take(self, index: Tensor) -> Contribution:
        return Reused([use.take(index) for use in self.uses])

    def masked(self, mask: PartialMask) -> Contribution:
        return Reused([use.masked(mask) for use in self.uses])


def combine(uses: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter in one backward pass, as one contribution."""
    if len(uses) == 1:
        return uses[0]
    outers = [use for use in uses if isinstance(use, Outer)]
    others = [use for use in uses if not isinstance(use, Outer)]
    if outers:
        # A matrix used twice is a matrix used once on a sequence twice as long.
        joined = Outer(torch.cat([use.a for use in outers], 1), torch.cat([use.g for use in outers], 1))
        return Reused([joined, *others]) if others else joined
    return Reused(others)
