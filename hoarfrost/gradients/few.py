"""The few examples that a model is looked at with: picked, replaced one by one, left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hoarfrost.gradients.arguments import ArgumentDims, map_examples, pick


@dataclass(frozen=True)
class Few:
    """The examples that are looked at: so many, each in ``views`` rows along ``dims`` of the arguments."""

    count: int
    views: int
    dims: ArgumentDims
    arguments: Any

    @property
    def rows(self) -> int:
        return self.count * self.views

    def rows_of(self, examples: Iterable[int]) -> list[int]:
        return [example * self.views + view for example in examples for view in range(self.views)]

    def pick(self, examples: Sequence[int]) -> Few:
        """Some of them, in this order."""
        arguments = pick(self.arguments, self.dims, self.rows_of(examples))
        return Few(len(examples), self.views, self.dims, arguments)

    def ways(self, example: int) -> Iterator[Few]:
        """With ``example`` replaced, by what stands out most first; a model may insist on sensible inputs."""
        donor = self._most_different(example)
        strength = (100.0, -3.0, -100.0)[example % 3]
        yield self._replaced(example, lambda t: _standing_out(t, strength), donor)
        yield self._replaced(example, lambda t: _standing_out(t, strength), None)
        yield self._replaced(example, None, donor)

    def _replaced(self, example: int, floats: Callable[[Tensor], Tensor] | None, donor: int | None) -> Few:
        rows = slice(example * self.views, (example + 1) * self.views)

        def changed(t: Tensor, dim: int | None) -> Tensor:
            if dim is None or (t.is_complex() and donor is None):
                return t
            by_row = t.detach().movedim(dim, 0).clone()
            if t.is_floating_point() and floats is not None:
                by_row[rows] = floats(by_row)[rows]
            elif donor is not None:
                by_row[rows] = by_row[donor * self.views : (donor + 1) * self.views].clone()
            return by_row.movedim(0, dim)

        return Few(self.count, self.views, self.dims, map_examples(changed, self.arguments, self.dims))

    def _most_different(self, example: int) -> int:
        """Whole numbers are words, masks or lengths: only what another example has is known to be allowed."""
        others = [other for other in range(self.count) if other != example]
        far = dict.fromkeys(others, 0.0)

        def compare(t: Tensor, dim: int | None) -> Tensor:
            if dim is not None and not t.is_floating_point() and not t.is_complex():
                sums = t.movedim(dim, 0).reshape(self.count, -1).double().sum(1)
                for other in others:
                    far[other] += float((sums[other] - sums[example]).abs())
            return t

        map_examples(compare, self.arguments, self.dims)
        return max(others, key=lambda other: (far[other], (other - example) % self.count))


@dataclass(frozen=True)
class Part:
    """Some of the examples of a run, in an order."""

    examples: Sequence[int]
    run: Few

    def rows(self, t: Tensor, dim: int) -> Tensor | None:
        """Their rows of a tensor whose dimension ``dim`` counts rows, or examples."""
        if t.dim() > dim and t.shape[dim] in (self.run.rows, self.run.count):
            numbers = self.run.rows_of(self.examples) if t.shape[dim] == self.run.rows else self.examples
            return t.movedim(dim, 0)[list(numbers)]
        return None


def _standing_out(t: Tensor, strength: float) -> Tensor:
    finite = t[t.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 1.0
    scale = min(abs(strength) * (size or 1.0), torch.finfo(t.dtype).max / 100)
    pattern = 0.75 + 0.25 * torch.arange(t.numel(), device=t.device, dtype=torch.float32).mul(1.7).sin()
    return (pattern.view(t.shape) * scale * (1 if strength > 0 else -1)).to(t.dtype)
