"""What can go wrong, as advice: every message says what was given, why it cannot be, and what to write instead."""


class HoarfrostError(Exception):
    """Everything Hoarfrost raises on purpose. The command line prints it as one line and exits with code 2."""


class InvalidValue(HoarfrostError, ValueError):
    """A value outside the range that makes sense."""


class NotPrivate(HoarfrostError):
    """Something that cannot be trained privately as it stands; the message names it and the fix."""


class BudgetSpent(HoarfrostError):
    """The step asked for would exceed what the run was calibrated for."""


class MissingExtra(HoarfrostError, ImportError):
    """An optional dependency is not installed; the message names the extra that brings it."""
