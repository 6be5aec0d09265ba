"""The gradient of a table: a few of its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from hoarfrost.gradients.contributions.base import Contribution
from hoarfrost.gradients.contributions.outer import Outer
from hoarfrost.gradients.contributions.rounding import at_least_float32
from hoarfrost.masks import PartialMask


class Rows(Contribution):
    """A table's gradient: ``values`` [M, p] are added to the rows ``index`` [M] of example ``owner`` [M].

    ``owner`` is sorted; ``even`` says that every example owns equally many entries.
    """

    def __init__(
        self, owner: Tensor, index: Tensor, values: Tensor, examples: int, height: int, even: bool = False,
        mask: Tensor | None = None,
    ):  # fmt: skip
        self.owner, self.index = owner, index
        # A mask is the same for every entry of a row, so that it can be applied before entries are added up.
        values = at_least_float32(values)
        self.values = values if mask is None else torch.where(mask[index], values, 0.0)
        self.examples, self.height, self.even = examples, height, even

    def squared_norms(self) -> Tensor:
        # Entries of the same example and row are added up first: an example that repeats a word counts it summed.
        key, order = (self.owner * self.height + self.index).sort()
        fresh = torch.ones_like(key)
        fresh[1:] = key[1:] != key[:-1]
        segment = fresh.cumsum(0) - 1
        summed = torch.zeros_like(self.values).index_add_(0, segment, self.values[order])
        owner = torch.zeros_like(segment).scatter_(0, segment, self.owner[order])
        found = torch.zeros(self.examples, dtype=torch.float64, device=summed.device)
        return found.index_add_(0, owner, summed.square().sum(1, dtype=torch.float64))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = self.values * weights.to(self.values.dtype)[self.owner].unsqueeze(1)
        return self.values.new_zeros(self.height, self.values.shape[1]).index_add_(0, self.index, scaled)

    def instantiate(self) -> Tensor:
        flat = self.values.new_zeros(self.examples * self.height, self.values.shape[1])
        flat.index_add_(0, self.owner * self.height + self.index, self.values)
        return flat.view(self.examples, self.height, -1)

    def take(self, index: Tensor) -> Contribution:
        place = torch.full((self.examples,), -1, device=self.owner.device).index_copy_(
            0, index, torch.arange(len(index), device=self.owner.device)
        )
        kept = place[self.owner] >= 0
        return Rows(place[self.owner[kept]], self.index[kept], self.values[kept], len(index), self.height, self.even)

    def masked(self, mask: PartialMask) -> Contribution:
        return Rows(self.owner, self.index, self.values, self.examples, self.height, self.even, mask.mask)

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        if not (isinstance(other, Outer) and self.even):
            return None
        # ⟨Σ_m e_{index_m} ⊗ v_m, Σ_t g_t ⊗ a_t⟩ = Σ_m Σ_t g_t[index_m] ⟨v_m, a_t⟩: a tied head never needs its table.
        index = self.index.view(self.examples, 1, -1).expand(-1, other.g.shape[1], -1)
        values = self.values.view(self.examples, -1, self.values.shape[1])
        terms = other.g.gather(2, index) * torch.bmm(other.a, values.mT)
        return terms.sum((1, 2)), terms.abs().sum((1, 2))
