"""An optimizer that never changes the weights."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer


class NoOpOptimizer(Optimizer):
    """Leaves the weights as they are, so that every batch sees the same ones.

    (A learning rate of 0 would not: 0 x inf is NaN.)

    >>> import torch
    >>> weight = nn.Parameter(torch.ones(2))
    >>> weight.grad = torch.full((2,), torch.inf)
    >>> NoOpOptimizer([weight]).step()
    >>> weight.tolist()
    [1.0, 1.0]
    """

    def __init__(self, parameters: Iterable[nn.Parameter]):
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""
