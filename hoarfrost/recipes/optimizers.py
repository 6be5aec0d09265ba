"""A recipe's optimizer, and how its learning rate changes."""

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from hoarfrost.recipes import schema

KINDS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}


def build(wanted: schema.Optimizer, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """The torch optimizer; the recipe's keys are its arguments.

    >>> type(build(schema.Sgd(kind="sgd", lr=0.1, momentum=0.9), [nn.Parameter(torch.zeros(2))])).__name__
    'SGD'
    """
    return KINDS[wanted.kind](parameters, **wanted.model_dump(exclude={"kind"}))


def schedule(
    wanted: schema.Schedule | None, optimizer: torch.optim.Optimizer, *, steps: int, sample_rate: float
) -> LambdaLR | None:
    """The learning rate's schedule, to be stepped once after every optimizer step."""
    if wanted is None:
        return None
    return LambdaLR(optimizer, lambda step: factor(wanted, step, steps, sample_rate))


def factor(wanted: schema.Schedule, step: int, steps: int, sample_rate: float) -> float:
    """What the learning rate is multiplied by in step ``step`` (from 0) of ``steps``.

    >>> [round(factor(schema.Cosine(kind="cosine"), step, 4, 0.5), 2) for step in range(5)]
    [1.0, 0.85, 0.5, 0.15, 0.0]
    >>> [factor(schema.Step(kind="step", every=1, factor=0.5), step, 4, 0.5) for step in range(5)]
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    match wanted:
        case schema.Step():
            # Steps at rate q make step·q epochs; the margin is for floating point just below a whole number.
            return wanted.factor ** int(step * sample_rate / wanted.every + 1e-9)
        case schema.Cosine():
            rising = wanted.warmup * steps
            if step < rising:
                return (step + 1) / (math.floor(rising) + 1)
            share = min(1.0, (step - rising) / (steps - rising))
            return wanted.final + (1 - wanted.final) * (1 + math.cos(math.pi * share)) / 2
