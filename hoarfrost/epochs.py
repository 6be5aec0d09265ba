"""The one place that turns epochs into steps, steps into epochs, and batch sizes into sampling rates."""

from hoarfrost import validate
from hoarfrost.errors import InvalidValue

MOST_STEPS = 10**9
"""The most that can be accounted for: the one limit on the length of a run."""


def first_step(epoch: float, sample_rate: float) -> int:
    """The step (from 0) that an epoch (from 0) begins with, to the nearest whole number.

    Epoch e consists of the steps from `first_step(e)` up to `first_step(e + 1)`. Epochs differ by one step where
    1/sample_rate is not whole, and no step is lost, however many epochs there are.

    >>> [first_step(epoch, sample_rate=0.3) for epoch in range(5)]
    [0, 3, 7, 10, 13]
    """
    validate.not_negative(epochs=epoch)
    validate.finite(epochs=epoch)
    validate.rate(sample_rate=sample_rate)
    return round(epoch / sample_rate)


def epoch_of(step: int, sample_rate: float) -> int:
    """The epoch (from 0) that a step (from 0) belongs to.

    >>> [epoch_of(step, sample_rate=0.3) for step in (0, 2, 3, 6, 7)]
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
        validate.rate(sample_rate=sample_rate)
        return sample_rate
    if batch_size is None:
        raise InvalidValue("the expected batch size is missing: give batch_size or sample_rate")
    validate.positive(batch_size=batch_size)
    if batch_size > size:
        raise InvalidValue(
            f"batch_size {batch_size} is more than the {size} {of} there are: none of them takes part more than once "
            f"in a step, so choose a batch_size of at most {size}"
        )
    return batch_size / size


def check_steps(steps: object) -> None:
    """Refuses what is not a number of steps, or more than can be accounted for."""
    validate.whole(steps=steps)
    if steps > MOST_STEPS:  # type: ignore[operator] # a whole number
        raise InvalidValue(f"{steps} steps are more than the {MOST_STEPS} that can be accounted for")
