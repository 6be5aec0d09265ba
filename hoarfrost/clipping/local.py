"""Local clipping: every example's gradient is shortened to the clipping norm, if it is longer."""

from dataclasses import dataclass
from functools import lru_cache

from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping.base import Clipper, Clipping
from hoarfrost.info import RunInfo
from hoarfrost.registry import Positive, component


# Not 1 for the audits, or nobody would notice that it is left out somewhere.
@component("clip", "local", examples=lambda: [Local(0.7)])
@dataclass(frozen=True)
class Local(Clipper):
    """Flat clipping of the whole gradient to length ``norm``: factor min(1, C/‖g‖).

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

    def begin(self, step: int, info: RunInfo) -> Clipping:
        return _every_step(self, tuple(info.shapes))

    def factors(self, norms: Tensor) -> Tensor:
        """min(1, C/‖g‖) for every norm."""
        return (self.norm / norms).clamp(max=1)


@lru_cache(maxsize=16)  # the same in every step: for a small model it takes a noticeable part of one to make it anew
def _every_step(style: Local, parameters: tuple[str, ...]) -> Clipping:
    return Clipping.flat(parameters, style.norm, style.factors)
