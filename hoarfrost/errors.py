"""What can go wrong, as advice: every message says what was given, why it cannot be, and what to write instead."""


class HoarfrostError(Exception):
    """Everything Hoarfrost raises on purpose. The command line prints it as one line and exits with code 2."""


class InvalidValue(HoarfrostError, ValueError):
    """A value outside the range that makes sense."""


class NotPrivate(HoarfrostError):
    """Something that cannot be trained privately as it stands; the message names it and the fix."""


class BudgetSpent(HoarfrostError):
    """What is asked for would exceed what the run was calibrated for, or what its ledger allows."""


class LedgerDamaged(HoarfrostError):
    """A ledger was changed or cut by something else than a ledger's own appending."""


class Diverged(HoarfrostError):
    """The weights are no longer finite numbers, so that further steps would spend budget on nothing."""


class MissingExtra(HoarfrostError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class ContractBroken(HoarfrostError, AssertionError):
    """A check of `hoarfrost.testing` has found something; the message lists all of it, with how to mend it."""

    def __init__(self, message: str, findings: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.findings = findings
