"""The checks every entrance shares. Each takes the value under its own name, so the message can say it.

>>> positive(steps=3)
>>> positive(steps=0)
Traceback (most recent call last):
    ...
hoarfrost.errors.InvalidValue: steps must be above 0, got 0
"""

import math

from hoarfrost.errors import InvalidValue


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise InvalidValue(f"{name} must be a number, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(
            f"{name} must be a number that fits a float, not one of {int(value).bit_length()} bits"
        ) from None


def positive(**values: object) -> None:
    """Each value is a number above zero."""
    for name, value in values.items():
        if not _number(name, value) > 0:
            raise InvalidValue(f"{name} must be above 0, got {value}")


def not_negative(**values: object) -> None:
    """Each value is a number, zero or above."""
    for name, value in values.items():
        if not _number(name, value) >= 0:
            raise InvalidValue(f"{name} must not be negative, got {value}")


def finite(**values: object) -> None:
    """Each value is a finite number."""
    for name, value in values.items():
        if not math.isfinite(_number(name, value)):
            raise InvalidValue(f"{name} must be finite, got {value}")


def rate(**values: object) -> None:
    """Each value lies in (0, 1]: a share of the data that is sampled."""
    for name, value in values.items():
        if not 0 < _number(name, value) <= 1:
            raise InvalidValue(f"{name} must lie in (0, 1], got {value}")


def probability(**values: object) -> None:
    """Each value lies strictly between 0 and 1: a delta."""
    for name, value in values.items():
        if not 0 < _number(name, value) < 1:
            raise InvalidValue(f"{name} must lie strictly between 0 and 1, got {value}")


def share(**values: object) -> None:
    """Each value lies from 0 to below 1."""
    for name, value in values.items():
        if not 0 <= _number(name, value) < 1:
            raise InvalidValue(f"{name} must lie from 0 to below 1, got {value}")


def flag(**values: object) -> None:
    """Each value is True or False."""
    for name, value in values.items():
        if not isinstance(value, bool):
            raise InvalidValue(f"{name} must be True or False, got {value!r}")


def count(**values: object) -> None:
    """Each value is an integer, zero or above."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidValue(f"{name} must be a whole number, 0 or above, got {value!r}")


def whole(**values: object) -> None:
    """Each value is an integer, one or above."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidValue(f"{name} must be a whole number, 1 or above, got {value!r}")


def is_id(value: object) -> bool:
    """Whether a value tells whose something is: not None, NaN, an empty text, or what libraries write in their place.

    >>> [is_id(value) for value in ("ann", 7, 0, None, float("nan"), " ", "NaN")]
    [True, True, True, False, False, False, False]
    """
    if isinstance(value, str):
        return value.strip().lower() not in ("", "nan", "none", "null", "<na>", "nat")
    try:
        return value is not None and bool(value == value)
    except (TypeError, ValueError):  # a library's own sign for what is missing, which equals nothing
        return False
