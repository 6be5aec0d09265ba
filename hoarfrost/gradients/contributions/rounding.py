"""Squared norms that rounding cannot make too small: no example is clipped too little, however it was built."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# A squared norm taken as a sum of products can lose digits where the products cancel. What is lost is at most this
# share of (Σ_t ‖a_t‖‖g_t‖)²; adding it rounds the norm up, so that an example built to cancel is clipped too much
# rather than too little.
ROUNDING = 1e-6
# Where gradients are written out just for their norm, it is for as many examples at a time as fit into so many numbers.
WRITTEN_AT_ONCE = 1 << 24
SHORT = 1024  # numbers that are squared and added up in float32
FEW = 1 << 14  # numbers that are squared in float64, which needs a copy, but fewer calls
_BUT_THE_FIRST = [tuple(range(1, dims)) for dims in range(32)]
TINY = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}


def at_least_float32(t: Tensor) -> Tensor:
    """Half-precision numbers become float32: a sum of squares in float16 overflows at 65504."""
    return t.float() if t.dtype in (torch.float16, torch.bfloat16) else t


def squares(t: Tensor, *, upwards: bool = False) -> Tensor:
    """‖t_b‖² of each row, in float64.

    A long sum in float32 loses small numbers beside a large one: an example made for that would be clipped too little.
    Short sums are added up in float64. What underflows when it is squared in float32 is lost.

    Args:
        upwards: with the most that can have been lost so.
    """
    if t.numel() <= FEW and t.dim() > 1:
        few: Tensor = torch.linalg.vector_norm(t, dim=_BUT_THE_FIRST[t.dim()], dtype=torch.float64)
        return few.square_()
    rows = t.flatten(1) if t.dim() > 1 else t[:, None]
    whole = rows.shape[1] // SHORT * SHORT
    total: Tensor = torch.linalg.vector_norm(rows[:, whole:] if whole else rows, dim=1).double().square_()
    if whole:
        short = torch.linalg.vector_norm(rows[:, :whole].unflatten(1, (-1, SHORT)), dim=2).double()
        total += short.square_().sum(1)
    return total + rows.shape[1] * TINY[t.dtype] if upwards else total


def gram_norms(inputs: Tensor, outputs: Tensor, p: int, d: int) -> Tensor:
    """‖Σ_t g_t ⊗ a_t‖² = Σ_{t,t'} ⟨a_t, a_t'⟩⟨g_t, g_t'⟩, from both Gram matrices [B, T, T]; ``inputs`` is overwritten.

    Squares below the smallest normal number are lost, which matters where huge gradients meet tiny inputs: what they
    can have amounted to is added, in float64, which has room for it.
    """
    a = inputs.diagonal(dim1=1, dim2=2).double().clamp(min=0)
    g = outputs.diagonal(dim1=1, dim2=2).double().clamp(min=0)
    lost = lost_to_underflow(a.sum(1), g.sum(1), inputs, inputs.shape[1], p, d)
    scale = (a * g).sqrt().sum(1)
    return rounded_up(inputs.mul_(outputs).sum((1, 2)).double(), scale) + lost


def rounded_up(squares: Tensor, scale: Tensor) -> Tensor:
    """Squared norms that were summed from signed products of total size ``scale``², rounded up by what may be lost."""
    return squares.clamp(min=0) + ROUNDING * scale.square()


def lost_to_underflow(a: Tensor, g: Tensor, like: Tensor, positions: int, p: int, d: int) -> Tensor:
    """What squares below the smallest normal number can have amounted to, where ‖a‖² and ‖g‖² are all that is known."""
    lost: Tensor = positions * torch.finfo(like.dtype).tiny * (p * g + d * a)
    return lost


def in_pieces(examples: Tensor, numbers: int, squared: Callable[[Tensor], Tensor]) -> Tensor:
    """``squared`` of a few examples at a time, each of which takes so many ``numbers`` written out."""
    pieces = examples.split(max(1, WRITTEN_AT_ONCE // max(1, numbers)))
    return torch.cat([squared(piece) for piece in pieces])
