"""Gradients that are written out."""

from __future__ import annotations

import torch
from torch import Tensor

from hoarfrost.gradients.contributions.base import Contribution
from hoarfrost.gradients.contributions.masked import LiveOnly
from hoarfrost.gradients.contributions.rounding import at_least_float32, squares
from hoarfrost.masks import PartialMask


class Dense(Contribution):
    """Gradients [B, *shape] that are simply there: biases, scales, and whatever a fallback wrote out."""

    def __init__(self, gradients: Tensor):
        self.gradients = at_least_float32(gradients)
        self.examples = gradients.shape[0]

    def squared_norms(self) -> Tensor:
        return squares(self.gradients)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        written = self.gradients
        weights = weights if weights.dtype == written.dtype else weights.to(written.dtype)
        if written.dim() == 2:
            return torch.mv(written.t(), weights)
        flat = written.flatten(1) if written.dim() > 1 else written[:, None]
        return (weights @ flat).view(written.shape[1:])

    def instantiate(self) -> Tensor:
        return self.gradients

    def take(self, index: Tensor) -> Contribution:
        return Dense(self.gradients[index])

    def masked(self, mask: PartialMask) -> Contribution:
        return LiveOnly(Dense(self.gradients.flatten(1).index_select(1, mask.indices)), mask)
