"""How often each coordinate was frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from hoarfrost.masks import Masks
from hoarfrost.measure.measurement import Measurement
from hoarfrost.observers import Released
from hoarfrost.registry import Whole, component


@component("measure", "freeze-counts")
class FreezeCounts(Measurement):
    """In how many steps each coordinate was frozen: the number of coordinates for each number of times.

    It sees every step, which costs a copy of its sums; it counts when what is frozen changes, and makes a row at
    every ``every``-th step. After a restart it begins with 0.

    Args:
        every: it makes a row in every so many steps, beginning with the first.

    >>> FreezeCounts(every=100).looks(3)
    True
    """

    kind = "freeze-counts"

    def __init__(self, every: Whole = 100) -> None:
        super().__init__(every)
        self.steps = 0
        self._shapes: Mapping[str, torch.Size] = {}
        self._counts: dict[str, Tensor] = {}  # one number where all of a parameter was frozen equally often
        self._masks: Masks | None = None  # in the steps that are not counted yet
        self._times = 0

    def looks(self, step: int) -> bool:
        return True

    def on_release(self, released: Released) -> None:
        self._shapes = released.info.shapes
        for name in self._shapes:
            self._counts.setdefault(name, torch.zeros((), dtype=torch.int64))
        if self._masks is not released.masks:
            self._count()
            self._masks = released.masks
        self._times += 1
        self.steps += 1
        if released.step % self.every == 0:
            self._count()
            self.found(released.step, steps=self.steps, coordinates=self._histogram())

    def _count(self) -> None:
        for name, mask in (self._masks or {}).items():
            before = self._counts[name]
            if isinstance(mask, bool):
                self._counts[name] = before + self._times * (not mask)
            else:
                self._counts[name] = before.to(mask.mask.device) + self._times * mask.frozen
        self._times = 0

    def _histogram(self) -> dict[str, int]:
        """For each number of times, how many coordinates were frozen so often."""
        total: Counter[int] = Counter()
        for name, counts in self._counts.items():
            size = self._shapes[name].numel() // counts.numel()  # one count for all that are frozen alike
            values, numbers = counts.flatten().unique(return_counts=True)
            for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
                total[value] += number * size
        return {str(times): total[times] for times in sorted(total)}
