"""Slow, obvious versions of what `hoarfrost.measure` computes about models: one example, one number at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Examples = Sequence[tuple[Tensor, Tensor]]


def loss_of(model: nn.Module, examples: Examples) -> float:
    """The mean loss of a model in evaluation mode, one example after the other."""
    model = copy.deepcopy(model).eval()
    losses = [F.cross_entropy(model(x[None]), y[None]).item() for x, y in examples]
    return math.fsum(losses) / len(losses)


def moved(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> nn.Module:
    """A copy whose parameters are what ``change`` makes of them; buffers stay."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(change(name, p.clone()))
    return model


def line(first: nn.Module, second: nn.Module, examples: Examples, points: int) -> list[float]:
    """The losses between two models."""
    other = dict(second.named_parameters())
    losses = []
    for number in range(points):
        a = number / (points - 1)
        between = moved(first, lambda name, p, a=a: (1 - a) * p + a * other[name])  # type: ignore[misc]
        losses.append(loss_of(between, examples))
    return losses


def filter_normalised(drawn: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Filter by filter."""
    if weight.ndim < 2:
        return np.zeros_like(drawn)
    rows = [row / math.sqrt((row**2).sum()) * math.sqrt((own**2).sum()) for row, own in zip(drawn, weight, strict=True)]
    return np.stack(rows)
