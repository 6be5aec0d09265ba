"""The contract between gradients and noise: what a clipping style is handed, and what it must answer for."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor


class Clipper(ABC):
    """Turns per-example gradient norms into factors, and states how far one example can then move the sum.

    Guarantees:
        For every example, factor × norm is at most the group's sensitivity, whatever the norm (inf and NaN included).
        A clipper is the only place where a clipping norm is kept: the noise reads ``sensitivity``, which travels
        with the clipped sum.
    """

    @abstractmethod
    def groups(self, names: Sequence[str]) -> Sequence[int]:
        """The group of each parameter, by its name; groups are counted from 0."""

    @abstractmethod
    def factors(self, norms: Tensor) -> Tensor:
        """Factors in [0, 1] for ``norms``, both [examples, groups], float32."""

    @property
    @abstractmethod
    def sensitivity(self) -> tuple[float, ...]:
        """For each group: the most by which adding or removing one example moves its clipped sum, in Euclidean norm."""
