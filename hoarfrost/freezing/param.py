"""PARAM: single elements chosen by noisy gradient magnitudes, which DP-FROST is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost import budget as costs
from hoarfrost import validate
from hoarfrost.budget.shares import check_share
from hoarfrost.errors import InvalidValue
from hoarfrost.freezing.largest import Fixed
from hoarfrost.freezing.magnitudes import LossOfOne, gradients, of_recipe
from hoarfrost.freezing.partitions import Partition, head_of
from hoarfrost.freezing.random import smallest
from hoarfrost.info import RunInfo
from hoarfrost.registry import Positive, Rate, SomePatterns, component

if TYPE_CHECKING:
    from hoarfrost.query import Query


@component("freeze", "param")
class Param(Fixed):
    """Trains the head and the single elements with the largest noisy gradient magnitudes: PARAM, a baseline.

    Each example's absolute gradient is brought to 2-norm 1, summed over one Poisson sample, and every element gets
    noise of its own. Of millions of elements hardly any rises above it: what is chosen is nearly random, and scattered.

    Args:
        ratio: of all numbers that the optimizer moves, so many are live, the head's among them.
        budget: the share of epsilon for the one noisy sum, or "auto", as of `Frost`.
        noise: instead of ``budget``: its noise multiplier.
        sample_rate: the probability with which an example is in the sample.
        head: patterns of the names of what is always trained, as of `Frost`.

    Guarantees:
        One Gaussian release, charged before it looks; its sensitivity is 1.

    >>> Param(0.06, noise=2.0)
    Param(0.06, budget=0.1, noise=2.0, sample_rate=0.02, head=None)
    """

    def __init__(
        self,
        ratio: Rate = 0.25,
        *,
        budget: Positive | Literal["auto"] = 0.1,
        noise: Positive | None = None,
        sample_rate: Rate = 0.02,
        head: SomePatterns | None = None,
        loss: LossOfOne | None = None,
    ) -> None:
        super().__init__()
        validate.rate(ratio=ratio, sample_rate=sample_rate)
        check_share(budget=budget)
        if noise is not None:
            validate.positive(noise=noise)
            validate.finite(noise=noise)
        self.ratio, self.budget, self.noise, self.sample_rate, self.loss = ratio, budget, noise, sample_rate, loss
        self.head = None if head is None else tuple(head)

    @classmethod
    def from_recipe(
        cls,
        loss: Callable[[Tensor, Tensor], Tensor],
        *,
        ratio: Rate = 0.25,
        budget: Positive | Literal["auto"] = 0.1,
        noise: Positive | None = None,
        sample_rate: Rate = 0.02,
        head: SomePatterns | None = None,
    ) -> Param:
        """With the recipe's loss."""
        own = of_recipe(loss)
        return cls(ratio, budget=budget, noise=noise, sample_rate=sample_rate, head=head, loss=own)

    def __repr__(self) -> str:
        names = ("budget", "noise", "sample_rate", "head")
        return f"Param({self.ratio}, {', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def check(self, info: RunInfo) -> None:
        self._measured(info)

    def start(self, weights: Mapping[str, Tensor]) -> None:
        self._masks = {}

    def key(self, step: int, info: RunInfo) -> bool:
        return bool(self._masks)

    def releases(self, info: RunInfo) -> tuple[costs.Wanted, ...]:
        self._measured(info)
        what = "PARAM, magnitudes of all elements"
        if self.noise is None:
            return (costs.PlannedShare(share=self.budget, sample_rate=self.sample_rate, what=what),)
        event = costs.Gaussian(noise_multiplier=self.noise, sample_rate=self.sample_rate)
        return (costs.PlannedRelease(event=event, what=what),)

    def prepare(self, number: int, query: Query, info: RunInfo) -> None:
        names, room = self._measured(info)
        sizes = [info.shapes[name].numel() for name in names]
        whole = (Partition("all", tuple(names), sum(sizes)),)
        loss = self.loss or query.loss

        def magnitudes(model: nn.Module, batch: Any) -> Tensor:
            (own,) = gradients(model, batch, whole, loss)
            return torch.cat([g.reshape(-1) for g in own]).abs_()

        found = query.sum(magnitudes, size=sum(sizes), bound=1.0, lengthen=True)
        live = torch.from_numpy(~smallest(found.cpu().numpy(), sum(sizes) - room))
        parts = zip(names, live.split(sizes), strict=True)
        self._masks = {name: part.view(info.shapes[name]).to(found.device) for name, part in parts}

    def _measured(self, info: RunInfo) -> tuple[Sequence[str], int]:
        """The parameters that are measured, and how many of their elements can be chosen."""
        head = head_of(info, self.head)
        names = [name for name in info.shapes if name not in head]
        total, in_head = (sum(info.shapes[name].numel() for name in each) for each in (info.shapes, head))
        room = int(self.ratio * total) - in_head
        if not 0 < room < total - in_head:
            raise InvalidValue(
                f"ratio {self.ratio:g} leaves nothing to choose: of {total} numbers {in_head} are in the head, which "
                f"is always trained, and {max(0, room)} of the others could be chosen"
            )
        return names, room
