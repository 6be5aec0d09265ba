"""What a trained model is worth beyond its accuracy. First of all: whether its confidence can be believed."""

from hoarfrost.measure.bins import Bin as Bin
from hoarfrost.measure.bins import BinsOf as BinsOf
from hoarfrost.measure.calibration import Calibration as Calibration
from hoarfrost.measure.calibration import confidence_histogram as confidence_histogram
from hoarfrost.measure.calibration import ece as ece
from hoarfrost.measure.calibration import mce as mce
from hoarfrost.measure.calibration import per_class_calibration as per_class_calibration
from hoarfrost.measure.connectivity import Connectivity as Connectivity
from hoarfrost.measure.connectivity import connectivity as connectivity
from hoarfrost.measure.diagram import reliability_diagram as reliability_diagram
from hoarfrost.measure.directions import Directions as Directions
from hoarfrost.measure.directions import random_directions as random_directions
from hoarfrost.measure.ntk import Kernel as Kernel
from hoarfrost.measure.ntk import TangentKernels as TangentKernels
from hoarfrost.measure.ntk_table import ClippedFlow as ClippedFlow
from hoarfrost.measure.ntk_table import clipped_flows as clipped_flows
from hoarfrost.measure.run_file import read_calibration as read_calibration
from hoarfrost.measure.scores import brier as brier
from hoarfrost.measure.scores import nll as nll
from hoarfrost.measure.surface import Surface as Surface
from hoarfrost.measure.surface import loss_surface as loss_surface
from hoarfrost.measure.temperature import Temperature as Temperature
