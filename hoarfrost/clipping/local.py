"""Local clipping: every example's gradient is shortened to the clipping norm, if it is longer."""

from dataclasses import dataclass

from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.base import Shorten
from hoarfrost.clipping.flat import FlatStyle, Piece
from hoarfrost.registry import Positive, component


# Not 1 for the audits, or nobody would notice that it is left out somewhere.
@component("clip", "local", examples=lambda: [Local(0.7)])
@dataclass(frozen=True)
class Local(FlatStyle):
    """Gradients longer than ``norm`` are shortened to it: factor min(1, C/‖g‖).

    Args:
        norm: the clipping norm C, to which an example's gradient is shortened if it is longer.

    Guarantees:
        One example moves the clipped sum by at most ``norm``. An example whose norm is not finite contributes nothing.

    >>> import torch
    >>> Local(1.0).factors(torch.tensor([[0.5], [4.0]]))
    tensor([[1.0000],
            [0.2500]])
    """

    norm: Positive = 1.0

    def __post_init__(self) -> None:
        validate.positive(norm=self.norm)
        validate.finite(norm=self.norm)

    def piece(self) -> Piece:
        own = type(self).factors is not Local.factors  # a subclass has a rule of its own
        return Piece(self.norm, self.factors if own else Shorten((self.norm,)))

    def factors(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖) for every norm."""
        return Shorten((self.norm,))(norms)
