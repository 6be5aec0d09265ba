"""Empirical lower bounds on epsilon, and the checks that find what a lower bound cannot."""

from hoarfrost.audit.accounts import BooksAudit as BooksAudit
from hoarfrost.audit.accounts import books as books
from hoarfrost.audit.batches import SamplingAudit as SamplingAudit
from hoarfrost.audit.batches import sampling as sampling
from hoarfrost.audit.battery import configurations as configurations
from hoarfrost.audit.blank import NoiseAudit as NoiseAudit
from hoarfrost.audit.blank import noise as noise
from hoarfrost.audit.canaries import Freezing as Freezing
from hoarfrost.audit.guesses import OneRunAudit as OneRunAudit
from hoarfrost.audit.neighbours import SensitivityAudit as SensitivityAudit
from hoarfrost.audit.neighbours import sensitivity as sensitivity
from hoarfrost.audit.one_training import one_run as one_run
from hoarfrost.audit.release import StepAudit as StepAudit
from hoarfrost.audit.release import step as step
