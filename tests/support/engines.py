"""Drives an engine by hand, as the loader and the optimizer do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.clipping import Local
from hoarfrost.gradients import Engine
from hoarfrost.sampling import Chunk


def engine_for(model: nn.Module, clip_norm: float = 1.0, **options: Any) -> Engine:
    """An engine for every parameter of the model that is live; the loss is a sum unless said otherwise."""
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return Engine(model, live, Local(clip_norm), **{"loss_reduction": "sum", **options})


def announce(engine: Engine, examples: int, *, first: bool = True, last: bool = True) -> None:
    """What the loader does when it hands a chunk over."""
    engine.sums.tickets.hand_over(Chunk(examples=examples, first=first, last=last))


def clipped_sums(engine: Engine, batch: Tensor, loss: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """One whole step up to the noise, by parameter name."""
    announce(engine, len(batch))
    loss(engine.model(batch)).backward()
    sums = sums_so_far(engine)
    assert engine.release() is not None
    return sums


def sums_so_far(engine: Engine) -> dict[str, Tensor]:
    """What the batch under way adds up to, by parameter name."""
    return {} if engine.sums.total is None else dict(engine.sums.total.sums)


def flat(sums: dict[str, Tensor]) -> Tensor:
    """All sums as one vector."""
    return torch.cat([sums[name].flatten().double() for name in sorted(sums)])
