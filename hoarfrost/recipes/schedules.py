"""How the learning rate changes: the schedules that a recipe can name. They know nothing of torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from hoarfrost.recipes import schema
from hoarfrost.registry import Positive, Rate, Share, component
from hoarfrost.registry.types import Label

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LambdaLR

Unit = Annotated[float, Field(ge=0, le=1), Label("number from 0 to 1")]


class Schedule(ABC):
    """What the learning rate is multiplied by in each step. One of your own needs `multiplier` alone."""

    @abstractmethod
    def multiplier(self, step: int, steps: int, sample_rate: float) -> float:
        """For step ``step`` (from 0) of ``steps``, each of which draws the share ``sample_rate`` of the examples."""


def _falling(step: int, steps: int, warmup: float, final: float, left: Callable[[float], float]) -> float:
    """A rise in a straight line, and then a fall, of which ``left`` says what is left after which share of it."""
    rising = warmup * steps
    if step < rising:
        return (step + 1) / (math.floor(rising) + 1)
    return final + (1 - final) * left(min(1.0, (step - rising) / (steps - rising)))


@component("schedule", "cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """The learning rate falls from its full value along half a cosine over the whole run.

    Args:
        warmup: the share of the steps in which it first rises in a straight line.
        final: what is left of it in the end, as a share of the full value.

    >>> [round(Cosine().multiplier(step, 4, 0.5), 2) for step in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]
    """

    warmup: Share = 0.0
    final: Unit = 0.0

    def multiplier(self, step: int, steps: int, sample_rate: float) -> float:
        return _falling(step, steps, self.warmup, self.final, lambda share: (1 + math.cos(math.pi * share)) / 2)


@component("schedule", "linear")
@dataclass(frozen=True)
class Linear(Schedule):
    """The learning rate falls from its full value in a straight line over the whole run.

    Args:
        warmup: the share of the steps in which it first rises in a straight line.
        final: what is left of it in the end, as a share of the full value.

    >>> [Linear(warmup=0.2).multiplier(step, 5, 0.5) for step in range(6)]
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    warmup: Share = 0.0
    final: Unit = 0.0

    def multiplier(self, step: int, steps: int, sample_rate: float) -> float:
        return _falling(step, steps, self.warmup, self.final, lambda share: 1 - share)


@component("schedule", "step")
@dataclass(frozen=True)
class Step(Schedule):
    """The learning rate falls in steps.

    Args:
        every: the number of epochs after which it falls.
        factor: what it is multiplied by then, at most 1.

    >>> [Step(every=1, factor=0.5).multiplier(step, 4, 0.5) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    every: Positive
    factor: Rate = 0.1

    def multiplier(self, step: int, steps: int, sample_rate: float) -> float:
        # Steps at rate q make step·q epochs; the margin is for floating point just below a whole number.
        return self.factor ** int(step * sample_rate / self.every + 1e-9)


def build(
    wanted: schema.ComponentTable | None, optimizer: torch.optim.Optimizer, *, steps: int, sample_rate: float
) -> LambdaLR | None:
    """The learning rate's schedule, to be stepped once after every optimizer step."""
    if wanted is None:
        return None
    from torch.optim.lr_scheduler import LambdaLR

    schedule: Schedule = schema.build(wanted, "schedule")
    return LambdaLR(optimizer, lambda step: schedule.multiplier(step, steps, sample_rate))
