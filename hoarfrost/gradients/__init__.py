"""Per-example norms and clipped sums in one backward pass."""

from hoarfrost.gradients.batch import ClippedSum
from hoarfrost.gradients.engine import Engine
from hoarfrost.gradients.engine import Reduction
from hoarfrost.gradients.engine import detach

__all__ = ["ClippedSum", "Engine", "Reduction", "detach"]
