"""What one use of a parameter contributes: per-example gradients that are written out only when that is cheaper.

Letters, everywhere in `hoarfrost.gradients`: B examples, T positions of an example (all of its sequence, space and
views), p inputs and d outputs of a position. A contribution stands for a tensor ``[B, *parameter.shape]`` of
per-example gradients.
"""

from hoarfrost.gradients.contributions.base import Contribution, Masked
from hoarfrost.gradients.contributions.dense import Dense
from hoarfrost.gradients.contributions.masked import GatheredOuter, LiveOnly, MaskedOuter
from hoarfrost.gradients.contributions.outer import BesideOuter, Block, Outer
from hoarfrost.gradients.contributions.reused import Reused, combine
from hoarfrost.gradients.contributions.rounding import at_least_float32
from hoarfrost.gradients.contributions.rows import Rows
from hoarfrost.gradients.contributions.window import Window, live_window

__all__ = [
    "BesideOuter",
    "Block",
    "Contribution",
    "Dense",
    "GatheredOuter",
    "LiveOnly",
    "Masked",
    "MaskedOuter",
    "Outer",
    "Reused",
    "Rows",
    "Window",
    "at_least_float32",
    "combine",
    "live_window",
]
