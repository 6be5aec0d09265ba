"""Batches that hold one example several times: what one more copy moves."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hoarfrost.clipping import Clipper, Clipping, Local, PerLayer
from hoarfrost.gradients import Engine
from tests.support.engines import announce
from tests.support.every_way import MODELS


class Bench:
    """Clipped sums of batches that hold one example several times, for any style."""

    def __init__(self, kind: str, reduction: str) -> None:
        torch.manual_seed(0)
        make, shape = MODELS[kind]
        model = make()
        self.reduction = reduction
        self.example = torch.randn(1, *shape)
        self.engine = Engine(model, dict(model.named_parameters()), Local(1.0), loss_reduction=reduction)

    def sums(
        self, style: Clipper, copies: int, scale: float = 1.0, inputs: float = 1.0
    ) -> tuple[Clipping, list[Tensor]]:
        """Of each block and each statistic; the loss is linear, and times ``scale``."""
        engine = self.engine
        engine.clipper, engine.clipping = style, None
        announce(engine, copies)
        output = engine.model(self.example.expand(copies, *self.example.shape[1:]) * inputs)
        total = output.flatten(1).sum(1) * scale
        (total.mean() if self.reduction == "mean" else total.sum()).backward()
        found = engine.sums.total
        assert found is not None
        clipping = found.clipping
        blocks: list[list[Tensor]] = [[torch.zeros(1)] for _ in clipping.blocks]
        for name, value in found.sums.items():
            blocks[clipping.block_of[name]].append(value.flatten().double())
        counts = [torch.as_tensor(found.statistics[s.name]).view(1).double() for s in clipping.statistics]
        engine.release()
        return clipping, [*(torch.cat(block) for block in blocks), *counts]

    def norms(self) -> list[float]:
        """Of the example: whole, and of each layer."""
        found = self.sums(Local(1e9), 1)[1] + self.sums(PerLayer(Local(1e9)), 1)[1]
        return [float(each.norm()) for each in found]

    def moves(self, style: Clipper, copies: int, **options: float) -> float:
        """How far one more copy moves what is released, in bounds."""
        clipping, before = self.sums(style.fresh(), copies, **options)
        _, after = self.sums(style.fresh(), copies + 1, **options)
        bounds = [*clipping.bounds, *(statistic.bound for statistic in clipping.statistics)]
        found = [float((b - a).norm()) / bound for a, b, bound in zip(before, after, bounds, strict=True)]
        return max(each if math.isfinite(each) else math.inf for each in found)
