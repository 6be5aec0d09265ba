"""Lengths and angles of gradients, whole and in parts: all of them follow from inner products by parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

Vector = Mapping[str, Tensor]
"""A gradient, by parameter name. A parameter that is not in it has zeros."""


@dataclass(frozen=True)
class Gram:
    """The inner products of some vectors, for each parameter.

    Args:
        names: of the vectors.
        products: for each parameter a table ⟨a, b⟩, by the vectors' numbers.

    >>> gram = Gram.of({"a": {"w": torch.tensor([1.0, 0.0])}, "b": {"w": torch.tensor([1.0, 1.0])}})
    >>> round(gram.norm("b"), 4), round(gram.angle("a", "b"), 4)
    (1.4142, 0.7854)
    """

    names: tuple[str, ...]
    products: Mapping[str, list[list[float]]]

    @classmethod
    def of(cls, vectors: Mapping[str, Vector]) -> Gram:
        """Computed in float64, so that squares of long gradients have room; the device is asked once."""
        names = tuple(vectors)
        parameters = list(dict.fromkeys(name for vector in vectors.values() for name in vector))
        tables: list[Tensor] = []
        for parameter in parameters:
            found = [vector.get(parameter) for vector in vectors.values()]
            like = next(t for t in found if t is not None)
            rows = [torch.zeros_like(like) if t is None else t.detach().to(like.device) for t in found]
            matrix = torch.stack([row.flatten().double() for row in rows])
            tables.append((matrix @ matrix.T).to(tables[0].device if tables else like.device))
        return cls(names, dict(zip(parameters, torch.stack(tables).tolist() if tables else (), strict=True)))

    def within(self, parameters: Iterable[str]) -> Gram:
        """The same for some parameters only."""
        return Gram(self.names, {name: self.products[name] for name in parameters if name in self.products})

    def layers(self) -> dict[str, Gram]:
        """The same for the parameters of each layer: those of one module, by its name.

        >>> list(Gram.of({"a": {"conv.weight": torch.ones(2), "conv.bias": torch.ones(1)}}).layers())
        ['conv']
        """
        return {layer: self.within(names) for layer, names in layers_of(self.products).items()}

    @cached_property
    def _total(self) -> list[list[float]]:
        numbers = range(len(self.names))
        return [[math.fsum(table[i][j] for table in self.products.values()) for j in numbers] for i in numbers]

    def inner(self, a: str, b: str) -> float:
        """⟨a, b⟩"""
        return self._total[self.names.index(a)][self.names.index(b)]

    def norm(self, a: str) -> float:
        """‖a‖; NaN if a has numbers that are none."""
        return math.sqrt(max(self.inner(a, a), 0.0)) if not math.isnan(self.inner(a, a)) else math.nan

    def distance(self, a: str, b: str) -> float:
        """‖a - b‖"""
        squared = self.inner(a, a) + self.inner(b, b) - 2 * self.inner(a, b)
        return math.sqrt(max(squared, 0.0)) if not math.isnan(squared) else math.nan

    def angle(self, a: str, b: str) -> float | None:
        """The angle between a and b in radians, from 0 to π; None where one of them is zero, or not finite."""
        lengths = self.norm(a) * self.norm(b)
        if not 0 < lengths < math.inf:
            return None
        return math.acos(max(-1.0, min(1.0, self.inner(a, b) / lengths)))


def layers_of(parameters: Iterable[str]) -> dict[str, list[str]]:
    """The parameters of each module; one of the model itself is a layer by its own name.

    >>> layers_of(["scale", "conv.weight", "conv.bias"])
    {'scale': ['scale'], 'conv': ['conv.weight', 'conv.bias']}
    """
    found: dict[str, list[str]] = {}
    for name in parameters:
        found.setdefault(name.rpartition(".")[0] or name, []).append(name)
    return found
