"""What one use of a parameter contributes: per-example gradients that are written out only when that is cheaper.

Letters, everywhere in this room: B examples, T positions of an example (all of its sequence, space and views), p inputs
and d outputs of a position. A contribution stands for a tensor ``[B, *parameter.shape]`` of per-example gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from hoarfrost.gradients import costs

# A squared norm taken as a sum of products can lose digits where the products cancel. What is lost is at most this
# share of (Σ_t ‖a_t‖‖g_t‖)²; adding it rounds the norm up, so that an example built to cancel is clipped too much
# rather than too little.
ROUNDING = 1e-6
# A tied parameter's gradients are written out for as many examples at a time as fit into this many numbers.
WRITTEN_AT_ONCE = 1 << 24


class Contribution(ABC):
    """Per-example gradients of one use of one parameter."""

    examples: int

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖gradient‖² of each example, [B]; never below the truth by more than rounding."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Σ_b weights[b] · gradient_b, in the parameter's shape."""

    @abstractmethod
    def instantiate(self) -> Tensor:
        """The gradients themselves, [B, *parameter.shape]."""

    @abstractmethod
    def take(self, index: Tensor) -> Contribution:
        """The same for the examples of ``index`` only."""

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        """⟨gradient, other's gradient⟩ of each example and its rounding scale, or None where no short way is known."""
        return None


def working(t: Tensor) -> Tensor:
    """Half-precision numbers become float32: a sum of squares in float16 overflows at 65504."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


class Dense(Contribution):
    """Gradients that are simply there: biases, scales, and whatever a fallback wrote out. ``rows`` is [B, *shape]."""

    def __init__(self, rows: Tensor):
        self.rows = working(rows)
        self.examples = rows.shape[0]

    def squared_norms(self) -> Tensor:
        return _squares(self.rows)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.rows.flatten(1) if self.rows.dim() > 1 else self.rows[:, None]
        return (weights.to(flat.dtype) @ flat).view(self.rows.shape[1:])

    def instantiate(self) -> Tensor:
        return self.rows

    def take(self, index: Tensor) -> Contribution:
        return Dense(self.rows[index])


class Outer(Contribution):
    """A matrix's gradient Σ_t g_t ⊗ a_t, [d, p], from inputs ``a`` [B, T, p] and output gradients ``g`` [B, T, d]."""

    def __init__(self, a: Tensor, g: Tensor):
        self.a, self.g = working(a), working(g)
        self.examples = a.shape[0]
        self._written: Tensor | None = None

    def squared_norms(self) -> Tensor:
        positions, p, d = self.a.shape[1], self.a.shape[2], self.g.shape[2]
        method = costs.cheapest(costs.outer(self.examples, positions, p, d, self.a.device.type))
        if method == "product":
            return _squares(self.a) * _squares(self.g)
        if method == "gram":
            inputs, outputs = torch.bmm(self.a, self.a.mT), torch.bmm(self.g, self.g.mT)
            scale = (inputs.diagonal(dim1=1, dim2=2) * outputs.diagonal(dim1=1, dim2=2)).clamp(min=0).sqrt().sum(1)
            return rounded_up(inputs.mul_(outputs).sum((1, 2)), scale)
        self._written = self.instantiate()
        return _squares(self._written)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._written is not None:
            return Dense(self._written).weighted_sum(weights)
        column = weights.to(self.a.dtype).view(-1, 1, 1)
        a, g = self.a, self.g
        if a.shape[2] < g.shape[2]:
            a = a * column
        else:
            g = g * column
        return g.reshape(-1, g.shape[2]).T @ a.reshape(-1, a.shape[2])

    def instantiate(self) -> Tensor:
        return torch.bmm(self.g.mT, self.a)

    def take(self, index: Tensor) -> Contribution:
        return Outer(self.a[index], self.g[index])


class Rows(Contribution):
    """A table's gradient: ``values`` [M, p] are added to the rows ``index`` [M] of example ``owner`` [M].

    ``owner`` is sorted; ``even`` says that every example owns equally many entries.
    """

    def __init__(self, owner: Tensor, index: Tensor, values: Tensor, examples: int, height: int, even: bool = False):
        self.owner, self.index, self.values = owner, index, working(values)
        self.examples, self.height, self.even = examples, height, even

    def squared_norms(self) -> Tensor:
        # Entries of the same example and row are added up first: an example that repeats a word counts it summed.
        key, order = (self.owner * self.height + self.index).sort()
        fresh = torch.ones_like(key)
        fresh[1:] = key[1:] != key[:-1]
        segment = fresh.cumsum(0) - 1
        summed = torch.zeros_like(self.values).index_add_(0, segment, self.values[order])
        owner = torch.zeros_like(segment).scatter_(0, segment, self.owner[order])
        return self.values.new_zeros(self.examples).index_add_(0, owner, summed.square().sum(1))

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

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        if not (isinstance(other, Outer) and self.even):
            return None
        # ⟨Σ_m e_{index_m} ⊗ v_m, Σ_t g_t ⊗ a_t⟩ = Σ_m Σ_t g_t[index_m] ⟨v_m, a_t⟩: a tied head never needs its table.
        index = self.index.view(self.examples, 1, -1).expand(-1, other.g.shape[1], -1)
        values = self.values.view(self.examples, -1, self.values.shape[1])
        terms = other.g.gather(2, index) * torch.bmm(other.a, values.mT)
        return terms.sum((1, 2)), terms.abs().sum((1, 2))


class Together(Contribution):
    """Several uses of one parameter: the norm is that of the *summed* gradient."""

    def __init__(self, parts: Sequence[Contribution]):
        self.parts = list(parts)
        self.examples = parts[0].examples

    def squared_norms(self) -> Tensor:
        short = self._by_inner_products()
        if short is not None:
            return short
        size = max(1, WRITTEN_AT_ONCE // max(1, self.parts[0].take(_range(self.parts[0], 0, 1)).instantiate().numel()))
        pieces = []
        for start in range(0, self.examples, size):
            index = _range(self.parts[0], start, min(start + size, self.examples))
            pieces.append(_squares(Together([part.take(index) for part in self.parts]).instantiate()))
        return torch.cat(pieces)

    def _by_inner_products(self) -> Tensor | None:
        # ‖Σ u‖² = Σ ‖u‖² + 2 Σ_{i<j} ⟨u_i, u_j⟩
        squares = [part.squared_norms() for part in self.parts]
        total, scale = torch.stack(squares).sum(0), torch.stack(squares).sqrt().sum(0)
        for i, left in enumerate(self.parts):
            for right in self.parts[i + 1 :]:
                pair = left.inner_products(right) or right.inner_products(left)
                if pair is None:
                    return None
                total, scale = total + 2 * pair[0], scale + (2 * pair[1]).sqrt()
        return rounded_up(total, scale)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self.parts[0].weighted_sum(weights)
        for part in self.parts[1:]:
            total = total + part.weighted_sum(weights)
        return total

    def instantiate(self) -> Tensor:
        return torch.stack([part.instantiate() for part in self.parts]).sum(0)

    def take(self, index: Tensor) -> Contribution:
        return Together([part.take(index) for part in self.parts])


def combine(parts: Sequence[Contribution]) -> Contribution:
    """All uses of one parameter in one backward pass, as one contribution."""
    if len(parts) == 1:
        return parts[0]
    outers = [part for part in parts if isinstance(part, Outer)]
    others = [part for part in parts if not isinstance(part, Outer)]
    if outers:
        # A matrix used twice is a matrix used once on a sequence twice as long.
        joined = Outer(torch.cat([part.a for part in outers], 1), torch.cat([part.g for part in outers], 1))
        return Together([joined, *others]) if others else joined
    return Together(others)


def rounded_up(squares: Tensor, scale: Tensor) -> Tensor:
    """Squared norms that were summed from signed products of total size ``scale``², rounded up by what may be lost."""
    return squares.clamp(min=0) + ROUNDING * scale.square()


def _squares(t: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(t.flatten(1) if t.dim() > 1 else t[:, None], dim=1)
    return norms.square()


def _range(part: Contribution, start: int, stop: int) -> Tensor:
    device = next(v.device for v in vars(part).values() if isinstance(v, Tensor))
    return torch.arange(start, stop, device=device)
