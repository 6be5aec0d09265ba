"""What a trained model is worth beyond its accuracy. First of all: whether its confidence can be believed."""

from hoarfrost.measure.attacks import Logistic as Logistic
from hoarfrost.measure.attacks import label_log_odds as label_log_odds
from hoarfrost.measure.attacks import lira as lira
from hoarfrost.measure.attacks import loss_threshold as loss_threshold
from hoarfrost.measure.bins import Bin as Bin
from hoarfrost.measure.bins import BinsOf as BinsOf
from hoarfrost.measure.calibration import Calibration as Calibration
from hoarfrost.measure.calibration import confidence_histogram as confidence_histogram
from hoarfrost.measure.calibration import ece as ece
from hoarfrost.measure.calibration import mce as mce
from hoarfrost.measure.calibration import per_class_calibration as per_class_calibration
from hoarfrost.measure.diagram import reliability_diagram as reliability_diagram
from hoarfrost.measure.membership import Membership as Membership
from hoarfrost.measure.membership_figure import membership_figures as membership_figures
from hoarfrost.measure.roc import Interval as Interval
from hoarfrost.measure.roc import Roc as Roc
from hoarfrost.measure.roc import RocPoint as RocPoint
from hoarfrost.measure.run_file import read_calibration as read_calibration
from hoarfrost.measure.scores import brier as brier
from hoarfrost.measure.scores import nll as nll
from hoarfrost.measure.temperature import Temperature as Temperature
from hoarfrost.measure.tradeoff import Tradeoff as Tradeoff
