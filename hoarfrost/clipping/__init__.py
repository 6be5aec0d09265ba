"""How much of each example's gradient is kept, and how far one example can then move the sum."""

from hoarfrost.clipping.adaptive import Adaptive as Adaptive
from hoarfrost.clipping.automatic import Automatic as Automatic
from hoarfrost.clipping.base import Block as Block
from hoarfrost.clipping.base import Clipper as Clipper
from hoarfrost.clipping.base import Clipping as Clipping
from hoarfrost.clipping.base import Statistic as Statistic
from hoarfrost.clipping.flat import FlatStyle as FlatStyle
from hoarfrost.clipping.flat import Piece as Piece
from hoarfrost.clipping.keep_or_drop import Global as Global
from hoarfrost.clipping.local import Local as Local
from hoarfrost.clipping.schedule import Schedule as Schedule
from hoarfrost.clipping.scopes import PerGroup as PerGroup
from hoarfrost.clipping.scopes import PerLayer as PerLayer
