"""How much of each example's gradient is kept, and how far one example can then move the sum."""

from hoarfrost.clipping.base import Block as Block
from hoarfrost.clipping.base import Clipper as Clipper
from hoarfrost.clipping.base import Clipping as Clipping
from hoarfrost.clipping.base import Statistic as Statistic
from hoarfrost.clipping.local import Local as Local
