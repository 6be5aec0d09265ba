"""The one place that turns epochs into steps, steps into epochs, and batch sizes into sampling rates."""

import math

from hoarfrost import validate
from hoarfrost.errors import InvalidValue

MOST_STEPS = 10**9
"""The most that can be accounted for: the one limit on the length of a run."""


def steps_in(epochs: float, sample_rate: float) -> int:
    """How many steps so many epochs are, to the nearest whole number.

    >>> [steps_in(epochs, sample_rate=0.3) for epochs in (0.5, 1, 2, 3)]
    [2, 3, 7, 10]
    """
    return round(_quotient(epochs, sample_rate))


def steps_of(epochs: float | None, steps: int | None, sample_rate: float) -> int | None:
    """How long a run is, by either of them; None without a limit.

    >>> steps_of(2, None, sample_rate=0.3), steps_of(None, 5, sample_rate=0.3)
    (7, 5)
    """
    if epochs is None:
        return steps
    validate.positive(epochs=epochs)
    return max(1, steps_in(epochs, sample_rate))


def first_step(epoch: float, sample_rate: float) -> int:
    """The step (from 0) that an epoch (from 0) begins with, rounded up.

    Epoch e consists of the steps from `first_step(e)` up to `first_step(e + 1)`. Epochs differ by one step where
    1/sample_rate is not whole, and no step is lost, however many epochs there are. The first one is never shorter than
    others: so many steps for each epoch are enough for a schedule that must not run out.

    >>> [first_step(epoch, sample_rate=0.3) for epoch in range(5)]
    [0, 4, 7, 10, 14]
    """
    steps = _quotient(epoch, sample_rate)
    nearest = round(steps)  # 1/q may be whole but for rounding
    return nearest if math.isclose(steps, nearest, rel_tol=1e-12) else math.ceil(steps)


def _quotient(epochs: float, sample_rate: float) -> float:
    validate.not_negative(epochs=epochs)
    validate.finite(epochs=epochs)
    _check_rate(sample_rate)
    return epochs / sample_rate


def _check_rate(sample_rate: float) -> None:
    validate.rate(sample_rate=sample_rate)
    if sample_rate * MOST_STEPS < 1:
        raise InvalidValue(
            f"a sampling rate of {sample_rate} is too small: an epoch would have 1/rate steps, more than the "
            f"{MOST_STEPS} that can be accounted for. Choose the expected batch size / the number of examples"
        )


def epoch_of(step: int, sample_rate: float) -> int:
    """The epoch (from 0) that a step (from 0) belongs to.

    >>> [epoch_of(step, sample_rate=0.3) for step in (0, 3, 4, 6, 7)]
    [0, 0, 1, 1, 2]
    """
    epoch = int(step * sample_rate)
    while first_step(epoch + 1, sample_rate) <= step:
        epoch += 1
    while first_step(epoch, sample_rate) > step:
        epoch -= 1
    return epoch


def rate_of(size: int, batch_size: float | None, sample_rate: float | None, of: str = "examples") -> float:
    """The sampling rate, from the one of both that was given; ``of`` says what there are so many of.

    >>> rate_of(99, batch_size=10, sample_rate=None) == 10 / 99
    True
    """
    validate.whole(size=size)
    if batch_size is not None and sample_rate is not None:
        raise InvalidValue(
            f"batch_size={batch_size} and sample_rate={sample_rate} say one thing twice: give one of them"
        )
    if sample_rate is not None:
        _check_rate(sample_rate)
        return sample_rate
    if batch_size is None:
        raise InvalidValue("the expected batch size is missing: give batch_size or sample_rate")
    validate.positive(batch_size=batch_size)
    if batch_size > size:
        raise InvalidValue(
            f"batch_size {batch_size} is more than the {size} {of} there are: none of them takes part more than once "
            f"in a step, so choose a batch_size of at most {size}"
        )
    _check_rate(batch_size / size)
    return batch_size / size


def check_steps(steps: object) -> None:
    """Refuses what is not a number of steps, or more than can be accounted for."""
    validate.whole(steps=steps)
    if steps > MOST_STEPS:  # type: ignore[operator] # a whole number
        raise InvalidValue(f"{steps} steps are more than the {MOST_STEPS} that can be accounted for")
