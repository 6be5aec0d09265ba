"""A first layer that standardises some of an example's numbers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Standardize(nn.Module):
    """(x - mean) / std for the numbers [B, width] at some places; the others stay as they are.

    It learns nothing by itself: mean and std are set from outside, and are part of the model's state.

    Args:
        places: which of the numbers.
        width: how many numbers an example has.

    >>> layer = Standardize([1], width=2)
    >>> layer.set(torch.tensor([3.0]), torch.tensor([2.0]))
    >>> layer(torch.tensor([[5.0, 5.0]])).tolist()
    [[5.0, 1.0]]
    """

    mean: Tensor
    std: Tensor

    def __init__(self, places: Sequence[int], width: int) -> None:
        super().__init__()
        self.places = list(places)
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("std", torch.ones(width))

    @torch.no_grad()
    def set(self, mean: Tensor, std: Tensor) -> None:
        """What is subtracted at the places, and what the difference is divided by."""
        self.mean[self.places] = mean.to(self.mean)
        self.std[self.places] = std.to(self.std)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std
