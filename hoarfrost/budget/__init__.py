"""What training costs: releases as data, the epsilon they spend, and the noise or the steps that a budget allows."""

from hoarfrost.budget.account import Account as Account
from hoarfrost.budget.accountant import Accountant as Accountant
from hoarfrost.budget.accountant import epsilon as epsilon
from hoarfrost.budget.accountant import privacy_filter as privacy_filter
from hoarfrost.budget.allowance import Allowance as Allowance
from hoarfrost.budget.calibration import noise_multiplier as noise_multiplier
from hoarfrost.budget.calibration import steps as steps
from hoarfrost.budget.events import Event as Event
from hoarfrost.budget.events import Gaussian as Gaussian
from hoarfrost.budget.events import Release as Release
from hoarfrost.budget.events import Unprotected as Unprotected
from hoarfrost.budget.events import as_gaussian as as_gaussian
from hoarfrost.budget.events import noisy as noisy
from hoarfrost.budget.key import make_key as make_key
from hoarfrost.budget.key import read_key as read_key
from hoarfrost.budget.ledger import Ledger as Ledger
from hoarfrost.budget.plan import Plan as Plan
from hoarfrost.budget.privacy_profile import profile as profile
from hoarfrost.budget.readout import Readout as Readout
from hoarfrost.budget.shares import PlannedRelease as PlannedRelease
from hoarfrost.budget.shares import PlannedShare as PlannedShare
from hoarfrost.budget.shares import Wanted as Wanted
from hoarfrost.budget.snapshot import Counters as Counters
from hoarfrost.budget.snapshot import Snapshot as Snapshot
from hoarfrost.budget.statement import Statement as Statement
