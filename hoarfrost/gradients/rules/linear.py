"""Linear layers: torch's, and the transposed one of transformers (Conv1D)."""

from typing import Any

from torch import Tensor

from hoarfrost.gradients.contributions import Dense, Outer, working
from hoarfrost.gradients.rules.base import LayerRule, Parts, positions


class LinearRule(LayerRule):
    """y = x Wᵀ + b on any number of leading dimensions: gradients Σ_t g_t ⊗ x_t and Σ_t g_t."""

    transposed = False

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: set[str]) -> Parts:
        x, g = positions(x), positions(g)
        if "weight" in live:
            yield "weight", Outer(g, x) if self.transposed else Outer(x, g)
        if "bias" in live:
            yield "bias", Dense(working(g).sum(1))


class TransposedLinearRule(LinearRule):
    """The same with the weight stored as [inputs, outputs]."""

    transposed = True
