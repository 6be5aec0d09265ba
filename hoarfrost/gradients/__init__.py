"""Per-example norms and clipped sums in one backward pass."""

from hoarfrost.gradients.clipped_sum import ClippedSum
from hoarfrost.gradients.engine import Engine, Reduction

__all__ = ["ClippedSum", "Engine", "Reduction"]
