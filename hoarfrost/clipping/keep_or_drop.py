"""Global clipping: an example's gradient is kept whole, or dropped."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.flat import FlatStyle, Piece
from hoarfrost.errors import InvalidValue
from hoarfrost.registry import Positive, Share, component


@component("clip", "global", examples=lambda: [Global(0.7)])
@dataclass(frozen=True)
class Global(FlatStyle):
    """Gradients up to ``norm`` are kept as they are, longer ones are dropped: the factor falls from 1 to 0 below it.

    After "On the Convergence and Calibration of Deep Learning with Differential Privacy", whose factor is the indicator
    of ‖g‖ ≤ R. It jumps at R, and under rounding one example could carry others across. Here the factor falls in a
    straight line from 1 at (1 - edge)·R to 0 at R.

    Args:
        norm: the clipping norm R, from which on nothing is kept.
        edge: the width over which the factor falls, as a share of ``norm``. 0 is the paper's jump, for analysis.

    Guarantees:
        One example moves the clipped sum by at most (1 - edge)·R (with an edge above 1/2, by R/(4·edge)); noise is made
        for R. What lies between absorbs what rounding does to the other examples: with relative rounding δ of their
        norms, n of them at the edge move the sum by n·δ·R/edge, which stays below edge·R for n·δ ≤ edge² (0.0025 by
        default: 25,000 examples in float32). With ``edge=0`` this is lost: examples that lie at R may all change sides
        when one other comes or goes, and the stated epsilon holds in exact arithmetic alone.

    >>> import torch
    >>> Global(1.0, edge=0.1).factors(torch.tensor([0.5, 0.9, 0.95, 1.0, 4.0])).round(decimals=3)
    tensor([1.0000, 1.0000, 0.5000, 0.0000, 0.0000])
    """

    norm: Positive = 1.0
    edge: Share = 0.05

    def __post_init__(self) -> None:
        validate.positive(norm=self.norm)
        validate.finite(norm=self.norm)
        validate.share(edge=self.edge)
        if 0 < self.edge < 0.01:
            raise InvalidValue(f"edge must be 0, for analysis, or from 0.01 to below 1, got {self.edge}")

    def piece(self) -> Piece:
        return Piece(self.norm, self.factors, jumps=self.edge == 0)

    def factors(self, norms: Tensor) -> Tensor:
        """1 up to (1 - edge)·R, then falling to 0 at R."""
        if self.edge == 0:
            return (norms <= self.norm).to(norms.dtype)
        return ((self.norm - norms) / (self.edge * self.norm)).clamp(0, 1)
