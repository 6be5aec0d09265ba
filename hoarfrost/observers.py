"""Looking at a step from outside: for measurements and audits.

What an observer sees is private. What it writes belongs below ``not-private/`` in a run folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.info import RunInfo
from hoarfrost.masks import Masks


@dataclass(frozen=True)
class Sums:
    """What one backward pass adds to a step, before any noise. Private.

    Args:
        norms: of every example's gradient over live coordinates, [examples, blocks].
        factors: by which the gradients are multiplied, [examples, blocks].
        clipping: how this logical batch is clipped.
        clipped: the sum of the clipped gradients of this pass, by parameter name.
        weighted: computes the sum of the gradients as they are, each times its weight, by parameter name, from weights
            [examples, blocks]. Only while `on_sums` runs. An example without a finite norm is left out.
    """

    norms: Tensor
    factors: Tensor
    clipping: Clipping
    clipped: Mapping[str, Tensor]
    weighted: Callable[[Tensor], Mapping[str, Tensor]]

    def unclipped(self) -> Mapping[str, Tensor]:
        """The sum of the gradients as they are, by parameter name. Only while `on_sums` runs."""
        return self.weighted(torch.ones_like(self.factors))


@dataclass(frozen=True)
class Released:
    """What one step releases, and what it was made of. Private, but for ``gradients`` and ``statistics``.

    Args:
        step: its number, from 0.
        clipping: how the batch was clipped.
        clipped: the clipped sum of the whole batch, by parameter name; what no example reached is left out.
        gradients: the same with noise, over the expected batch size: what the inner optimizer is handed.
        statistics: noisy sums of the clipping's statistics, by name.
        stds: of the noise on each parameter's sum, by name (by the encoding's names, where there is one).
        masks: of the parameters of which the freezer leaves some coordinates, or all, out of this step.
        info: what may be known of the run: shapes, layers, and what the sums are divided by.
    """

    step: int
    clipping: Clipping
    clipped: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    statistics: Mapping[str, float]
    stds: Mapping[str, float]
    masks: Masks
    info: RunInfo


class Observer:
    """Is shown the steps that it looks at, by default all; `Private.observe` adds one. A subclass overrides what it
    wants to see.

    The tensors it is handed are the step's own: what shall last must be copied, and nothing may be changed.

    >>> class LongestNorm(Observer):
    ...     longest = 0.0
    ...     def on_sums(self, sums):
    ...         self.longest = max(self.longest, float(sums.norms.max()))
    """

    def looks(self, step: int) -> bool:
        """Whether it is to be shown this step, counted from 0. In the others nothing is computed for it."""
        return True

    def on_sums(self, sums: Sums) -> None:
        """After every backward pass of a step that it looks at."""

    def on_release(self, released: Released) -> None:
        """In every step that it looks at, before the inner optimizer moves the weights."""
