"""Which coordinates move, step by step."""

from hoarfrost.freezing.base import Freezer as Freezer
from hoarfrost.freezing.chosen import Chosen as Chosen
from hoarfrost.freezing.frost import Frost as Frost
from hoarfrost.freezing.largest import Largest as Largest
from hoarfrost.freezing.layers import Layers as Layers
from hoarfrost.freezing.param import Param as Param
from hoarfrost.freezing.pruned import Pruned as Pruned
from hoarfrost.freezing.pruned import prune_from as prune_from
from hoarfrost.freezing.random import Random as Random
from hoarfrost.freezing.random import RandomTensors as RandomTensors
from hoarfrost.freezing.ranked import Ranked as Ranked
from hoarfrost.freezing.scaling import PrivateScaling as PrivateScaling
from hoarfrost.info import RunInfo as RunInfo
from hoarfrost.masks import Channels as Channels
from hoarfrost.masks import Live as Live
