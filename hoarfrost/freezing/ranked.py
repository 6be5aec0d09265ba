"""Ranked freeze: what the last epoch's noisy gradients show to be small is frozen in the next one."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Mapping

import numpy as np
import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.freezing.base import Freezer
from hoarfrost.freezing.random import Random, live_of, smallest
from hoarfrost.info import RunInfo
from hoarfrost.masks import Live
from hoarfrost.registry import Share, Whole, component


@component("freeze", "ranked")
class Ranked(Freezer):
    """As `Random`, but the coordinates whose summed noisy gradients of the last epoch are smallest are frozen.

    Every step draws one noise for all coordinates: live ones move by it, and the sums of frozen ones, whose gradients
    are zero, take it up as well. Without that, what was frozen once would be frozen for ever. The noisy sums have been
    paid for, so ranking them costs nothing more.

    Args:
        rate: the share that is frozen (r*), from 0 to below 1.
        cooling: the number of epochs (e*) in which the share grows from 0 to ``rate``; by default the full rate from
            the beginning.

    >>> info = RunInfo({"weight": torch.Size([2, 2])}, (("weight",),), 100, 0.1, int)
    >>> ranked = Ranked(rate=0.5)
    >>> ranked.observe(9, {"weight": torch.tensor([[3.0, -1.0], [2.0, -4.0]])}, info)
    >>> ranked.live(10, info)["weight"].tolist()
    [[True, False], [False, True]]
    """

    observes = True

    def __init__(self, rate: Share, cooling: Whole | None = None) -> None:
        self.schedule = Random(rate=rate, cooling=cooling)
        self.start({})

    def __repr__(self) -> str:
        return f"Ranked(rate={self.schedule.rate}, cooling={self.schedule.cooling})"

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self._epoch = -1  # that the running sums belong to
        self._sums: dict[str, Tensor] = {}
        self._last: dict[str, Tensor] = {}  # of the epoch before

    def fresh(self) -> Freezer:
        return copy.copy(self)

    def key(self, step: int, info: RunInfo) -> Hashable:
        return info.epoch_of(step)

    def check(self, info: RunInfo) -> None:
        self.schedule.check(info)

    def live(self, step: int, info: RunInfo) -> Live:
        epoch = info.epoch_of(step)
        rate = self.schedule.rate_in(epoch)
        last = self._sums if self._epoch == epoch - 1 else self._last if self._epoch == epoch else {}
        if rate == 0 or not last:
            return dict.fromkeys(info.shapes, True)
        # What was never observed was taken out of training by somebody else.
        shapes = {name: shape for name, shape in info.shapes.items() if name in last}
        magnitudes = np.concatenate([last[name].abs().flatten().cpu().numpy() for name in shapes])
        live = torch.from_numpy(~smallest(magnitudes, len(magnitudes) - live_of(len(magnitudes), rate)))
        parts = live.split([shape.numel() for shape in shapes.values()])
        ranked = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return dict.fromkeys(info.shapes, True) | ranked

    def observe(self, step: int, gradients: Mapping[str, Tensor], info: RunInfo) -> None:
        epoch = info.epoch_of(step)
        if epoch != self._epoch:
            self._epoch, self._last, self._sums = epoch, self._sums, {}
        for name, gradient in gradients.items():
            known = self._sums.get(name)  # from a checkpoint, perhaps, and then not on the gradient's device
            self._sums[name] = gradient.clone() if known is None else known.to(gradient.device).add_(gradient)

    def state(self) -> dict[str, Tensor]:
        kept = {"epoch": torch.tensor(self._epoch)}
        kept |= {f"sums.{name}": value for name, value in self._sums.items()}
        return kept | {f"last.{name}": value for name, value in self._last.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self._epoch = int(state["epoch"])
        validate.not_negative(epoch=self._epoch + 1)
        self._sums = {k.removeprefix("sums."): v.clone() for k, v in state.items() if k.startswith("sums.")}
        self._last = {k.removeprefix("last."): v.clone() for k, v in state.items() if k.startswith("last.")}
