"""What one backward pass brings to all parameters: the norms of its examples, and their clipped sums."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.gradients.contributions import Contribution


class _Part(NamedTuple):
    name: str
    use: Contribution
    block: int
    device: torch.device


class Uses:
    """Per-example gradients by name, in the blocks of a clipping.

    Args:
        uses: what each parameter gets.
        clipping: its blocks are what norms are taken over.
        like: a tensor for each, on its device.
        device: where norms and factors are.
    """

    def __init__(
        self, uses: Mapping[str, Contribution], clipping: Clipping, like: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.clipping, self.device = clipping, device
        self.longest = math.inf  # of all norms, once they are known
        self.examples = next(iter(uses.values())).examples
        self._parts = [_Part(name, use, clipping.block_of[name], like[name].device) for name, use in uses.items()]

    def norms(self) -> Tensor:
        """[examples, blocks], float64; the largest of them is `longest` from then on."""
        squares = self._squares()
        longest = float(squares.amax()) if self.examples else 0.0
        if longest < math.inf:
            self.longest = math.sqrt(longest)
            return squares.sqrt()
        # Squares overflow in float32 long before gradients do, and under a mean loss the number of examples decides
        # where. Norms that can be told exactly are: whether an example counts must not hang on the others.
        lost = (~squares.isfinite().all(1)).nonzero().squeeze(1)
        exact = torch.zeros((len(lost), squares.shape[1]), dtype=torch.float64, device=self.device)
        for part in self._parts:
            exact[:, part.block] += part.use.exact_squared_norms(lost.to(part.device)).to(exact)
        norms = squares.index_copy(0, lost, exact).sqrt_()
        self.longest = float(norms.amax())
        return norms

    def _squares(self) -> Tensor:
        """As far as float32 has room for them."""
        blocks: list[Tensor | None] = [None] * len(self.clipping.blocks)
        for part in self._parts:
            found, before = part.use.squared_norms(), blocks[part.block]
            if found.dtype != torch.float64 or part.device != self.device:
                found = found.to(self.device, torch.float64)
            blocks[part.block] = found if before is None else before + found
        if len(blocks) == 1 and blocks[0] is not None:
            return blocks[0].unsqueeze(1)
        nothing = torch.zeros(self.examples, dtype=torch.float64, device=self.device)
        return torch.stack([nothing if block is None else block for block in blocks], 1)

    def take(self, index: Tensor) -> None:
        """From now on there are the examples of ``index`` only."""
        self.examples = len(index)
        self._parts = [part._replace(use=part.use.take(index.to(part.device))) for part in self._parts]

    def sums(self, weights: Tensor, *, last: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Σ_b weights[b] · gradient_b of each parameter, with the weights of its block, [examples, blocks].

        Args:
            last: nothing more is asked for: what was summed may go.
        """
        columns = weights.unbind(1)
        todo = self._parts[::-1]
        if last:
            self._parts = []
        while todo:
            name, use, block, device = todo.pop()
            column = columns[block]
            yield name, use.weighted_sum(column if device == self.device else column.to(device))
            del use
