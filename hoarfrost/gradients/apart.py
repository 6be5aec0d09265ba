"""Whether losses that are said to be one per example are: whether the gradient of one reaches another example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, combine
from hoarfrost.gradients.contributions.rounding import squares
from hoarfrost.gradients.loss_graph import Kinds, Start

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

BATCHES = 3  # that are looked at
ROWS = 4  # whose gradients are written out, of those that seem to have one


class Apart:
    """Differentiates the losses of a random half of the examples, of which the other half must get nothing."""

    def __init__(self) -> None:
        self._looks = 0
        self._kinds = Kinds()

    def check(self, engine: Engine, losses: Tensor) -> None:
        """Refuses losses through which examples meet, in the first batches and whenever a loss is a new one."""
        groups = engine.groups  # of the rows that the model ran on last
        examples = groups.count(len(losses))
        if examples < 2 or not losses.requires_grad:
            return
        new = self._kinds.is_new(Start([losses]))
        if self._looks >= BATCHES and not new:
            return
        self._looks += 1
        generator = torch.Generator().manual_seed(self._looks)  # of its own: the run's random numbers stay the same
        half = torch.zeros(examples)
        half[torch.randperm(examples, generator=generator)[: examples // 2]] = 1
        weights = groups.spread(half)
        if len(weights) != len(losses):
            return  # the pass itself refuses them
        tried = engine.tried(losses, weights.to(losses))
        with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
            for parts in tried:
                if _reaches_others(combine(parts), half):
                    raise NotPrivate(
                        "optimizer.backward(losses): an example's loss depends on other examples of the batch, which "
                        "get a gradient from it. Compute each loss from its own example alone: no comparison with the "
                        "rest of the batch, no [B, 1] against [B], nothing divided by a sum over examples."
                    )


def _reaches_others(found: Contribution, half: Tensor) -> bool:
    """Whether examples that are not in the half have a gradient."""
    squared = found.squared_norms()
    if len(squared) != len(half):
        return False
    least = 1e-12 * squared.nan_to_num().max()
    others = torch.where(half.to(squared) == 0, squared, 0).nan_to_num()
    largest, rows = others.topk(min(ROWS, len(others)))
    if not bool((largest > least).any()):
        return False
    # Norms are rounded up. Where no example has a gradient (LoRA begins with a matrix of zeros), that is all there is.
    return bool((squares(found.take(rows).instantiate().double()) > least).any())
