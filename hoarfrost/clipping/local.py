"""Local clipping: every example's gradient is shortened to the clipping norm, if it is longer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.base import Clipper
from hoarfrost.registry import Positive, component

# The clipped sum is formed in float32, whose rounding would overshoot the stated norm by parts in ten million.
MARGIN = 1e-5


# Not 1 for the audits, or nobody would notice that it is left out somewhere.
@component("clip", "local", examples=lambda: [Local(0.7)])
@dataclass(frozen=True)
class Local(Clipper):
    """Flat clipping of the whole gradient to length ``norm``: factor min(1, C/‖g‖).

    Args:
        norm: the clipping norm C, to which an example's gradient is shortened if it is longer.

    >>> Local(1.0).factors(torch.tensor([[0.5], [4.0]])).round(decimals=3)
    tensor([[1.0000],
            [0.2500]])

    Guarantees:
        One example moves the clipped sum by at most ``norm``. An example whose norm is not finite contributes nothing.
    """

    norm: Positive = 1.0

    def __post_init__(self) -> None:
        validate.positive(norm=self.norm)
        validate.finite(norm=self.norm)

    def groups(self, names: Sequence[str]) -> Sequence[int]:
        return [0] * len(names)

    def factors(self, norms: Tensor) -> Tensor:
        factors = (self.norm * (1 - MARGIN) / norms).clamp(max=1)
        return torch.where(norms.isfinite(), factors, 0.0)

    @property
    def sensitivity(self) -> tuple[float, ...]:
        return (self.norm,)
