"""The Gaussian mechanism: reduce, noise and decode a clipped sum, by parameter name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hoarfrost.clipping import Clipping
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients import ClippedSum
from hoarfrost.gradients.encoding import Encoding
from hoarfrost.masks import PartialMask
from hoarfrost.noise import Noise

Coordinates = bool | PartialMask
Reduce = Callable[[ClippedSum], ClippedSum]


@dataclass(frozen=True)
class NoisySum:
    """What was released: values at the coordinates asked for, by name, and the noisy sums of statistics."""

    values: dict[str, Tensor]
    statistics: dict[str, float]
    stds: dict[str, float]  # of the noise, by the names of the encoding


class GaussianMechanism:
    """Adds noise to clipped sums.

    Args:
        noise: where the noise comes from.
        noise_multiplier: σ, fixed for the run: what was spent is computed from it.
        encoding: what the sums are made of, and how gradients follow from them.
        reduce: puts the sums of several processes together, before noise that is drawn once.

    Guarantees:
        Every coordinate asked for gets noise once, whether or not any example reached it. Deviations follow from the
        clipping that the sum carries, so that everything together is one Gaussian release with multiplier σ.
    """

    def __init__(
        self,
        noise: Noise,
        noise_multiplier: float,
        encoding: Encoding,
        reduce: Reduce = lambda total: total,
    ) -> None:
        self.noise, self.encoding, self.reduce = noise, encoding, reduce
        self._noise_multiplier = noise_multiplier
        self._known: tuple[Clipping, list[str], tuple[tuple[float, ...], tuple[float, ...]]] | None = None

    @property
    def noise_multiplier(self) -> float:
        """Fixed for the run."""
        return self._noise_multiplier

    def release(self, total: ClippedSum, like: Mapping[str, Tensor], live: Mapping[str, Coordinates]) -> NoisySum:
        """The sum with noise.

        Args:
            like: the parameters whose gradients are asked for, or tensors of their shape and device, by name.
            live: which coordinates of each are released; where not all of them are, one after the other.
        """
        total = self.reduce(total)
        clipping, encoded = total.clipping, self.encoding.like(like)
        # What the encoding makes of a gradient has no masks: it is released whole, and live coordinates are taken last.
        asked = {name: live.get(name, True) if name in like else True for name in encoded}
        released = [name for name, coordinates in asked.items() if coordinates is not False]
        block_stds, statistic_stds = self._stds(clipping, released)
        values = {name: _at(asked[name], total.sums.get(name), t) for name, t in encoded.items()}
        stds = {name: block_stds[clipping.block_of[name]] for name in encoded}
        counts: list[Tensor] = []
        if clipping.statistics:
            device = next((t.device for t in like.values()), torch.device("cpu"))
            sums = [total.statistics.get(statistic.name, 0.0) for statistic in clipping.statistics]
            counts = [torch.as_tensor(each, dtype=torch.float64, device=device).clone() for each in sums]
        # In one draw: a joint release.
        self.noise.add_([*values.values(), *counts], [*stds.values(), *statistic_stds])
        decoded = self.encoding.decode(values)
        return NoisySum(
            values={n: decoded[n] if n in encoded else _at(live.get(n, True), decoded[n], p) for n, p in like.items()},
            statistics={each.name: float(t) for each, t in zip(clipping.statistics, counts, strict=True)},
            stds=stds,
        )

    def _stds(self, clipping: Clipping, released: list[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Of blocks and statistics, seen to make the joint release that is accounted for; most steps are alike."""
        if self._known is None or self._known[0] is not clipping or self._known[1] != released:
            stds = clipping.stds(self._noise_multiplier, released)
            joint = clipping.noise_multiplier(*stds, released)
            if not math.isclose(joint, self._noise_multiplier, rel_tol=1e-9):
                raise NotPrivate(f"the noise of {clipping!r} does not have the multiplier {self._noise_multiplier:g}")
            self._known = clipping, released, stds
        return self._known[2]


def _at(live: Coordinates, total: Tensor | None, like: Tensor) -> Tensor:
    """What is live of a sum, one number after the other where it is not everything; zeros where no example reached."""
    if live is True and total is not None:
        return total
    if total is None:
        shape = like.shape if live is True else (live.count if isinstance(live, PartialMask) else 0,)
        return torch.zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
    if isinstance(live, PartialMask):
        return total.flatten().index_select(0, live.indices)
    return total.new_empty(0)
