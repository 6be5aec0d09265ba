"""Automatic clipping: every gradient is brought to nearly the same length, short ones too."""

from dataclasses import dataclass

from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.flat import FlatStyle, Piece
from hoarfrost.registry import NotNegative, Positive, component

STEADY = 1e-3  # a stability below which rounding, of about 1e-6, is lengthened to what counts


@component("clip", "automatic", examples=lambda: [Automatic(0.7)])
@dataclass(frozen=True)
class Automatic(FlatStyle):
    """Every gradient is brought to nearly length ``norm``: factor R/(‖g‖ + γ).

    After Bu et al., "Automatic Clipping: Differentially Private Deep Learning Made Easier and Stronger" (2022). The
    norm only scales the learning rate, so that there is one setting less to tune (of adaptive optimizers, two less).

    Args:
        norm: R, the length that long gradients are brought to.
        stability: γ, the norm at which half of that length is left: what is much shorter is kept short. 0 normalises
            every gradient; below 0.001 is for analysis.

    Guarantees:
        One example moves the clipped sum by at most ``norm``. An example whose norm is not finite contributes nothing.
        With a ``stability`` below 0.001, gradients that should be zero and consist of rounding are lengthened too much,
        in a direction that another example's presence can turn: the stated epsilon then holds in exact arithmetic alone
        (with 1e-6, one example more moved the sum of a hundred such ones by 20 times the norm).

    >>> import torch
    >>> Automatic(1.0).factors(torch.tensor([0.01, 0.99, 3.99]))
    tensor([50.0000,  1.0000,  0.2500])
    """

    norm: Positive = 1.0
    stability: NotNegative = 0.01

    def __post_init__(self) -> None:
        validate.positive(norm=self.norm)
        validate.finite(norm=self.norm, stability=self.stability)
        validate.not_negative(stability=self.stability)

    def piece(self) -> Piece:
        return Piece(self.norm, self.factors, jumps=self.stability < STEADY)

    def factors(self, norms: Tensor) -> Tensor:
        """R/(‖g‖ + γ) for every norm."""
        return self.norm / (norms + self.stability)
