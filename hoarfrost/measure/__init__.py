"""What a trained model is worth beyond its accuracy, and what clipping, noise and freezing did to it on the way."""

from hoarfrost.measure.bins import Bin as Bin
from hoarfrost.measure.bins import BinsOf as BinsOf
from hoarfrost.measure.bounds import MomentumScale as MomentumScale
from hoarfrost.measure.bounds import alignment_bound as alignment_bound
from hoarfrost.measure.bounds import clip_norm_for as clip_norm_for
from hoarfrost.measure.bounds import gradient_ratio as gradient_ratio
from hoarfrost.measure.bounds import momentum_scale as momentum_scale
from hoarfrost.measure.bounds import mse_bound as mse_bound
from hoarfrost.measure.calibration import Calibration as Calibration
from hoarfrost.measure.calibration import confidence_histogram as confidence_histogram
from hoarfrost.measure.calibration import ece as ece
from hoarfrost.measure.calibration import mce as mce
from hoarfrost.measure.calibration import per_class_calibration as per_class_calibration
from hoarfrost.measure.clipped import Clipped as Clipped
from hoarfrost.measure.diagram import reliability_diagram as reliability_diagram
from hoarfrost.measure.distortion import Distortion as Distortion
from hoarfrost.measure.freeze_counts import FreezeCounts as FreezeCounts
from hoarfrost.measure.frozen import Frozen as Frozen
from hoarfrost.measure.gram import Gram as Gram
from hoarfrost.measure.measurement import Measurement as Measurement
from hoarfrost.measure.outside import Outside as Outside
from hoarfrost.measure.run_file import read_calibration as read_calibration
from hoarfrost.measure.scores import brier as brier
from hoarfrost.measure.scores import nll as nll
from hoarfrost.measure.temperature import Temperature as Temperature
from hoarfrost.measure.truth import Truth as Truth
