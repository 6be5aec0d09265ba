"""Audits: empirical lower bounds on epsilon, and checks for faults that a lower bound does not detect."""

from hoarfrost.audit.battery import configurations as configurations
from hoarfrost.audit.canaries import Freezing as Freezing
from hoarfrost.audit.ledger_audit import LedgerAudit as LedgerAudit
from hoarfrost.audit.ledger_audit import ledger as ledger
from hoarfrost.audit.noise_audit import NoiseAudit as NoiseAudit
from hoarfrost.audit.noise_audit import noise as noise
from hoarfrost.audit.one_run_audit import one_run as one_run
from hoarfrost.audit.one_run_bound import OneRunAudit as OneRunAudit
from hoarfrost.audit.sampling_audit import SamplingAudit as SamplingAudit
from hoarfrost.audit.sampling_audit import sampling as sampling
from hoarfrost.audit.sensitivity_audit import SensitivityAudit as SensitivityAudit
from hoarfrost.audit.sensitivity_audit import sensitivity as sensitivity
from hoarfrost.audit.step_audit import StepAudit as StepAudit
from hoarfrost.audit.step_audit import step as step
