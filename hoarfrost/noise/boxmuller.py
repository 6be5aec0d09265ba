"""Uniform bits to Gaussian numbers, on any device.

Box and Muller: a point of the plane with r² = -2 ln u and a uniform angle has two independent N(0, 1)
coordinates.
"""

import math

import torch
from torch import Tensor

WORD = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The random word behind each number: as wide as the number."""


def box_muller(words: Tensor, scratch: Tensor, out: Tensor) -> None:
    """Fill `out` with standard Gaussian numbers, one for each random word.

    Args:
        words: `[2h]` signed random integers, 32 or 64 bit.
        scratch: `[h]`, floating, as wide as the words. Overwritten.
        out: `[2h]`, like `scratch`; it may be the memory of `words`, number by number.

    Guarantees:
        With b-bit words, u = |k + 1/2| / 2^(b-1) is uniform over 2^(b-1) equally spaced values in (0, 1): the
        logarithm never meets 0 and is never positive, r reaches 6.66 (b = 32) or 9.42 (b = 64). Small u,
        which make the tails, keep all of their bits in floating point.

    >>> words = torch.tensor([0, 1 << 30, 0, -(1 << 30)], dtype=torch.int32)
    >>> out = torch.empty(4)
    >>> box_muller(words, torch.empty(2), out)
    >>> [round(x, 3) for x in out.tolist()]
    [6.66, -0.0, 0.0, -1.177]
    """
    unit = 0.5 ** (8 * words.element_size() - 1)
    half = words.numel() // 2
    angle, radius = scratch, out[half:]
    angle.copy_(words[half:])  # before the radius takes its place
    radius.copy_(words[:half])
    # -2 ln |x| = -ln x², which spares a pass for the absolute value
    radius.mul_(unit).add_(unit / 2).square_().log_().neg_().sqrt_()
    angle.mul_(math.pi * unit)
    torch.cos(angle, out=out[:half]).mul_(radius)
    radius.mul_(angle.sin_())
