"""Styles that clip one norm to one bound, and how several of them make the clipping of a batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor

from hoarfrost.clipping.base import Block, Clipper, Clipping, Shorten, Statistic
from hoarfrost.info import RunInfo

NoiseLevels = Literal["equal", "proportional"]
ALL = "all parameters"


@dataclass(frozen=True)
class Piece:
    """How one norm is clipped in one step.

    Args:
        bound: factor × norm is at most this.
        factors: from norms, of any shape, to factors of the same shape.
        count: from norms to numbers from -1/2 to 1/2, whose noisy sum `FlatStyle.follow` is told; None for none.
        cost: the share of the step's privacy that the count takes, if this norm is the only one.
        jumps, alike: as for a `Clipping`.
    """

    bound: float
    factors: Callable[[Tensor], Tensor]
    count: Callable[[Tensor], Tensor] | None = None
    cost: float = 0.0
    jumps: bool = False
    alike: Hashable = None


class FlatStyle(Clipper):
    """A style that clips one norm: of the whole gradient, or of a layer or group (`PerLayer`, `PerGroup`).

    One of your own needs `piece` alone.

    >>> from hoarfrost.info import RunInfo
    >>> class Halving(FlatStyle):
    ...     '''Half of every gradient, and at most length 1.'''
    ...     def piece(self):
    ...         return Piece(1.0, lambda norms: (1 / norms).clamp(max=0.5))
    >>> Halving().begin(0, RunInfo({"weight": (2, 2)})).bounds
    (1.0,)
    """

    @abstractmethod
    def piece(self) -> Piece:
        """How the norm is clipped in the coming step."""

    def follow(self, count: float, info: RunInfo) -> None:
        """Sees the noisy sum of the step's count. What a style keeps across steps comes from here."""

    def fresh(self) -> FlatStyle:
        return self

    def check(self, info: RunInfo) -> None:
        self.begin(0, info)

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return compose(((ALL, tuple(info.shapes), self.piece()),))

    def observe(self, step: int, statistics: Mapping[str, float], info: RunInfo) -> None:
        if count_of(ALL) in statistics:
            self.follow(statistics[count_of(ALL)], info)


def count_of(block: str) -> str:
    """The name of the statistic that belongs to a block."""
    return f"count of {block}"


@lru_cache(maxsize=16)  # most styles do the same in every step: for a small model it takes a part of one to make anew
def compose(parts: tuple[tuple[str, tuple[str, ...], Piece], ...], noise: NoiseLevels = "equal") -> Clipping:
    """The clipping whose blocks, each a name, its parameters and a piece, are clipped apart from each other.

    Args:
        noise: "equal": one level of noise everywhere, σ·√(ΣS²) for bounds S. "proportional": in each of G blocks in
            proportion to its bound, σ·√G·S. Either way the joint release has the noise multiplier σ.

    Guarantees:
        Counts are part of the same joint release: each of G takes its cost / G of the step's privacy, and the noise on
        gradients grows by 1/√(1 - their sum), so that the noise multiplier of the whole is the stated one.
    """
    pieces = [piece for _, _, piece in parts]
    weights = [1.0 if noise == "equal" else piece.bound for piece in pieces]
    blocks = tuple(
        Block(name, parameters, piece.bound, weight)
        for (name, parameters, piece), weight in zip(parts, weights, strict=True)
    )
    gradient = math.fsum((piece.bound / weight) ** 2 for piece, weight in zip(pieces, weights, strict=True))
    shares = [piece.cost / len(pieces) if piece.count else 0.0 for piece in pieces]
    rest = 1 - math.fsum(shares)
    statistics = tuple(
        Statistic(count_of(name), _of_column(piece.count, column), 0.5, 0.5 / math.sqrt(gradient * share / rest), name)
        for column, ((name, _, piece), share) in enumerate(zip(parts, shares, strict=True))
        if piece.count is not None
    )
    known = all(piece.alike is not None for piece in pieces)
    return Clipping(
        blocks, _rule(pieces), statistics, jumps=any(piece.jumps for piece in pieces),
        alike=tuple(piece.alike for piece in pieces) if known else None,
    )  # fmt: skip


def _rule(pieces: list[Piece]) -> Callable[[Tensor], Tensor]:
    first, rules = pieces[0].factors, [piece.factors for piece in pieces]
    shortening = [rule for rule in rules if isinstance(rule, Shorten)]
    if len(shortening) == len(pieces) > 1:
        return Shorten(tuple(bound for rule in shortening for bound in rule.bounds))
    if all(rule == first for rule in rules):
        return first
    return lambda norms: torch.stack([piece.factors(norms[:, at]) for at, piece in enumerate(pieces)], 1)


def _of_column(count: Callable[[Tensor], Tensor], column: int) -> Callable[[Tensor], Tensor]:
    return lambda norms: count(norms[:, column])
