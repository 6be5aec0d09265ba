"""What one use of a parameter contributes: per-example gradients that are written out only when that is cheaper.

Letters, everywhere in this room: B examples, T positions of an example (all of its sequence, space and views), p inputs
and d outputs of a position. A contribution stands for a tensor ``[B, *parameter.shape]`` of per-example gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from hoarfrost.gradients import buffers, costs, sparse
from hoarfrost.masks import PartialMask

# A squared norm taken as a sum of products can lose digits where the products cancel. What is lost is at most this
# share of (Σ_t ‖a_t‖‖g_t‖)²; adding it rounds the norm up, so that an example built to cancel is clipped too much
# rather than too little.
ROUNDING = 1e-6
# A tied parameter's gradients are written out for as many examples at a time as fit into this many numbers.
WRITTEN_AT_ONCE = 1 << 24
SHORT = 1024  # numbers that are squared and added up in float32


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

    def cut(self, part: PartialMask) -> Contribution:
        """The same with zeros at what rests."""
        return Masked(self, part)

    def unseen(self) -> Tensor | float:
        """What a norm of written gradients cannot see of numbers that `weighted_sum` will multiply, squared.

        Factors scale one side of a product before it is formed: there, what is huge overflows and what is tiny is
        rounded, although the product itself may be of any size.
        """
        return 0.0


def working(t: Tensor) -> Tensor:
    """Half-precision numbers become float32: a sum of squares in float16 overflows at 65504."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


class Dense(Contribution):
    """Gradients [B, *shape] that are simply there: biases, scales, and whatever a fallback wrote out."""

    def __init__(self, gradients: Tensor):
        self.gradients = working(gradients)
        self.examples = gradients.shape[0]

    def squared_norms(self) -> Tensor:
        return squares(self.gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.gradients.flatten(1) if self.gradients.dim() > 1 else self.gradients[:, None]
        return (weights.to(flat.dtype) @ flat).view(self.gradients.shape[1:])

    def instantiate(self) -> Tensor:
        return self.gradients

    def take(self, index: Tensor) -> Contribution:
        return Dense(self.gradients[index])

    def cut(self, part: PartialMask) -> Contribution:
        return Chosen(Dense(self.gradients.flatten(1).index_select(1, part.indices)), part)


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
            tiny = torch.finfo(self.a.dtype).tiny
            return (squares(self.a) + p * tiny) * (squares(self.g) + d * tiny)
        if method == "gram":
            return gram_norms(torch.bmm(self.a, self.a.mT), torch.bmm(self.g, self.g.mT), p, d)
        written = buffers.lend(self, (self.examples, d, p), self.a)
        self._written = torch.bmm(self.g.mT, self.a, out=written)
        return squares(self._written)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._written is not None:
            return Dense(self._written).weighted_sum(weights)
        column = weights.to(self.a.dtype).view(-1, 1, 1)
        a, g = (self.a * column, self.g) if self.a.shape[2] < self.g.shape[2] else (self.a, self.g * column)
        return g.reshape(-1, g.shape[2]).T @ a.reshape(-1, a.shape[2])

    def instantiate(self) -> Tensor:
        return torch.bmm(self.g.mT, self.a)

    def unseen(self) -> Tensor | float:
        return vanished(squares(self.a), squares(self.g), self.a, self.a.shape[1], self.a.shape[2], self.g.shape[2])

    def take(self, index: Tensor) -> Contribution:
        return Outer(self.a[index], self.g[index])

    def cut(self, part: PartialMask) -> Contribution:
        if part.rows is not None:
            return Chosen(Outer(self.a, self.g.index_select(2, part.rows)), part)
        positions, p, d = self.a.shape[1], self.a.shape[2], self.g.shape[2]
        method = costs.cheapest(
            costs.masked_outer(self.examples, positions, p, d, part.count / (p * d), self.a.device.type)
        )
        if method == "picked":
            return Chosen(Dense(sparse.each_product(self.g.mT, self.a.mT, part)), part)
        if method == "pieces":
            return Masked(self, part)
        return GatheredOuter(self, part) if method == "gathered" else MaskedOuter(self, part)


class Masked(Contribution):
    """Some elements of any contribution: written out for a few examples at a time, and forgotten again."""

    def __init__(self, whole: Contribution, part: PartialMask):
        self.whole, self.part = whole, part
        self.examples = whole.examples

    def squared_norms(self) -> Tensor:
        everyone = torch.arange(self.examples, device=self.part.mask.device)
        found = in_pieces(everyone, self.part.mask.numel(), lambda some: squares(self.take(some).instantiate()))
        return found + self.unseen()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.part.zero_frozen_(self.whole.weighted_sum(weights))

    def unseen(self) -> Tensor | float:
        return self.whole.unseen()

    def instantiate(self) -> Tensor:
        return self.part.zero_frozen_(self.whole.instantiate())

    def take(self, index: Tensor) -> Contribution:
        return type(self)(self.whole.take(index), self.part)


class MaskedOuter(Masked):
    """Some elements of the matrix of an `Outer` without a sequence, whose norm needs no gradient to be written out."""

    whole: Outer

    def squared_norms(self) -> Tensor:
        # Σ_{i,j} M_ij g_i² a_j²
        a, g = self.whole.a[:, 0], self.whole.g[:, 0]
        inputs = a.square() @ self.part.mask.to(a.dtype).T
        return self._rounded_up((inputs * g.square()).sum(1, dtype=torch.float64))

    def _rounded_up(self, squared: Tensor) -> Tensor:
        """With what rows of float32 numbers may have lost as they were added up, and squares that vanished."""
        d, p = self.part.shape
        numbers = torch.finfo(self.whole.a.dtype)
        a, g = squares(self.whole.a), squares(self.whole.g)
        lost = numbers.tiny * (p * g + d * a + p * d * numbers.tiny + d)
        return squared * (1 + numbers.eps * (self.part.longest_row + 4)) + lost


class GatheredOuter(MaskedOuter):
    """The same where few elements are live: only they are computed. Features come first here, and examples second."""

    def __init__(self, whole: Outer, part: PartialMask):
        super().__init__(whole, part)
        self.a, self.g = (self._turned(t[:, 0]) for t in (whole.a, whole.g))

    def _turned(self, t: Tensor) -> Tensor:
        return buffers.lend(self, (t.shape[1], t.shape[0]), t).copy_(t.T)

    def squared_norms(self) -> Tensor:
        found = []
        for a, g in zip(self.a.split(sparse.AT_ONCE, 1), self.g.split(sparse.AT_ONCE, 1), strict=True):
            found.append(sparse.row_sums(a.square(), self.part).mul_(g.square()).sum(0, dtype=torch.float64))
        return self._rounded_up(torch.cat(found))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scaled = torch.mul(self.g, weights.to(self.g.dtype), out=buffers.lend(self, tuple(self.g.shape), self.g))
        return self.part.scatter(sparse.each_product(scaled[None], (self.a,), self.part)[0])


class Chosen(Contribution):
    """What is live of a parameter, rows or elements: nothing else is computed."""

    def __init__(self, live: Contribution, part: PartialMask):
        self.live, self.part = live, part
        self.examples = live.examples

    def squared_norms(self) -> Tensor:
        return self.live.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self.part.scatter(self.live.weighted_sum(weights).flatten())

    def instantiate(self) -> Tensor:
        return self.part.scatter(self.live.instantiate().flatten(1))

    def take(self, index: Tensor) -> Contribution:
        return Chosen(self.live.take(index), self.part)

    def cut(self, part: PartialMask) -> Contribution:
        return self  # a rule has done it


class Block(Contribution):
    """An `Outer` about the rows from ``start`` on, of a matrix that has ``height`` rows."""

    def __init__(self, a: Tensor, g: Tensor, start: int, height: int):
        self.outer = Outer(a, g)
        self.examples, self.start, self.stop, self.height = len(a), start, start + g.shape[2], height

    def squared_norms(self) -> Tensor:
        return self.outer.squared_norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._placed(self.outer.weighted_sum(weights))

    def instantiate(self) -> Tensor:
        return self._placed(self.outer.instantiate())

    def unseen(self) -> Tensor | float:
        return self.outer.unseen()

    def take(self, index: Tensor) -> Contribution:
        return Block(self.outer.a[index], self.outer.g[index], self.start, self.height)

    def inner_products(self, other: Contribution) -> tuple[Tensor, Tensor] | None:
        if not isinstance(other, Block) or (self.start < other.stop and other.start < self.stop):
            return None
        # The three projections of one call have no row in common.
        zeros = self.outer.g.new_zeros(self.examples)
        return zeros, zeros

    def _placed(self, rows: Tensor) -> Tensor:
        return torch.nn.functional.pad(rows, (0, 0, self.start, self.height - self.stop))


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
        self.values = working(values) if mask is None else torch.where(mask[index], working(values), 0.0)
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

    def cut(self, part: PartialMask) -> Contribution:
        return Rows(self.owner, self.index, self.values, self.examples, self.height, self.even, part.mask)

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
        parts = torch.stack([part.squared_norms() for part in self.parts])
        products = self._inner_products()
        if products is not None:
            # ‖Σ u‖² = Σ ‖u‖² + 2 Σ_{i<j} ⟨u_i, u_j⟩
            return rounded_up(parts.sum(0) + 2 * products[0], parts.sqrt().sum(0) + (2 * products[1]).sqrt())
        everyone = torch.arange(self.examples, device=parts.device)
        one = self.take(everyone[:1]).instantiate().numel()
        found = in_pieces(everyone, one, lambda some: squares(self.take(some).instantiate()))
        return found + self.unseen()

    def unseen(self) -> Tensor | float:
        return sum((part.unseen() for part in self.parts), 0.0)

    def _inner_products(self) -> tuple[Tensor, Tensor] | None:
        """Summed over all pairs of parts, if each pair knows a short way."""
        pairs = [
            left.inner_products(right) or right.inner_products(left) for left, right in combinations(self.parts, 2)
        ]
        known = [pair for pair in pairs if pair is not None]
        if len(known) < len(pairs):
            return None
        return torch.stack([value for value, _ in known]).sum(0), torch.stack([scale for _, scale in known]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self.parts[0].weighted_sum(weights)
        for part in self.parts[1:]:
            total = total + part.weighted_sum(weights)
        return total

    def instantiate(self) -> Tensor:
        return torch.stack([part.instantiate() for part in self.parts]).sum(0)

    def take(self, index: Tensor) -> Contribution:
        return Together([part.take(index) for part in self.parts])

    def cut(self, part: PartialMask) -> Contribution:
        return Together([use.cut(part) for use in self.parts])


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


def gram_norms(inputs: Tensor, outputs: Tensor, p: int, d: int) -> Tensor:
    """‖Σ_t g_t ⊗ a_t‖² = Σ_{t,t'} ⟨a_t, a_t'⟩⟨g_t, g_t'⟩, from both Gram matrices [B, T, T]; ``inputs`` is used up.

    Squares below the smallest normal number are lost, which matters where huge gradients meet tiny inputs: what they
    can have amounted to is added, in float64, which has room for it.
    """
    a = inputs.diagonal(dim1=1, dim2=2).double().clamp(min=0)
    g = outputs.diagonal(dim1=1, dim2=2).double().clamp(min=0)
    lost = vanished(a.sum(1), g.sum(1), inputs, inputs.shape[1], p, d)
    scale = (a * g).sqrt().sum(1)
    return rounded_up(inputs.mul_(outputs).sum((1, 2)).double(), scale) + lost


def vanished(a: Tensor, g: Tensor, like: Tensor, positions: int, p: int, d: int) -> Tensor:
    """What squares below the smallest normal number can have amounted to, where ‖a‖² and ‖g‖² are all that is known."""
    lost: Tensor = positions * torch.finfo(like.dtype).tiny * (p * g + d * a)
    return lost


def in_pieces(examples: Tensor, numbers: int, squared: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``squared`` says of a few examples at a time, each of which takes so many ``numbers`` written out."""
    pieces = examples.split(max(1, WRITTEN_AT_ONCE // max(1, numbers)))
    return torch.cat([squared(piece) for piece in pieces])


def rounded_up(squares: Tensor, scale: Tensor) -> Tensor:
    """Squared norms that were summed from signed products of total size ``scale``², rounded up by what may be lost."""
    return squares.clamp(min=0) + ROUNDING * scale.square()


def squares(t: Tensor) -> Tensor:
    """‖t_b‖² of each row, in float64.

    A long sum in float32 loses small numbers beside a large one: an example made for that would be clipped too little.
    Short sums are added up in float64.
    """
    rows = t.flatten(1) if t.dim() > 1 else t[:, None]
    whole = rows.shape[1] // SHORT * SHORT
    short = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, SHORT)), dim=2).double()
    rest = torch.linalg.vector_norm(rows[:, whole:], dim=1).double()
    total: Tensor = short.square().sum(1) + rest.square()
    return total
