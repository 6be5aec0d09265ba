"""Convolutions, of any dimension, stride, padding, dilation and grouping, and their transposes."""

from typing import Any

from torch import Tensor

from hoarfrost.gradients.contributions import Dense, at_least_float32, live_window
from hoarfrost.gradients.rules.base import LayerRule, LiveMasks, NamedContributions


class ConvRule(LayerRule):
    """Conv1d, Conv2d and Conv3d, and their transposes."""

    def contributions(self, module: Any, x: Tensor, g: Tensor, live: LiveMasks, *saved: Tensor) -> NamedContributions:
        if "bias" in live:
            yield "bias", Dense(at_least_float32(g).sum((1, *range(3, g.dim()))))
        if "weight" in live:
            yield "weight", live_window(x, g, module, live["weight"])
