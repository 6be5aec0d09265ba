"""How far the gradient of a step is from the true one, over all data."""

from __future__ import annotations

import math

from torch import Tensor

from hoarfrost.measure.gram import Gram
from hoarfrost.measure.measurement import Adding, Measurement, live_only, scaled
from hoarfrost.measure.outside import Outside
from hoarfrost.observers import Released, Sums
from hoarfrost.registry import Whole, component

AGAINST = ("U", "B", "P", "clipped", "unclipped")


@component("measure", "truth")
class Truth(Measurement):
    """The true gradient over all training data, which costs an epoch's work whenever it looks; the angles between it
    and what the step makes of its batch, whole and for each layer; signal loss and mean squared error.

    The angles are those of U, B and P (`Distortion`), and of the sums over the examples that are clipped, as they are,
    and over those that are not. Angles of layers, and γ itself, are over live coordinates. Signal loss ‖∇f - B‖² and
    the mean squared error ‖∇f - B‖² + the noise's variance are over all coordinates: what is frozen is lost signal.

    Args:
        every: it looks at every so many steps, beginning with the first.
    """

    kind = "truth"

    def __init__(self, outside: Outside, every: Whole = 100) -> None:
        super().__init__(every)
        self.outside = outside
        self._clipped, self._unclipped = Adding(), Adding()

    def on_sums(self, sums: Sums) -> None:
        are_clipped = (sums.factors < 1).to(sums.factors.dtype)
        self._clipped.add(sums.weighted(are_clipped))
        self._unclipped.add(sums.weighted(1 - are_clipped))

    def on_release(self, released: Released) -> None:
        size = 1 / released.info.expected_batch
        true = self.outside.gradient(list(released.clipping.block_of))
        parts = {"clipped": self._clipped.take(), "unclipped": self._unclipped.take()}
        live = {name: scaled(live_only(part, released), size) for name, part in parts.items()}
        biased = scaled(live_only(released.clipped, released), size)
        both = Adding()
        for part in live.values():
            both.add(part)
        private = {name: t.float() for name, t in released.gradients.items()}
        gram = Gram.of({"true": live_only(true, released), "U": both.take(), "B": biased, "P": private, **live})
        loss = Gram.of({"true": true, "B": biased, "P": private})
        signal_loss = loss.distance("true", "B") ** 2
        variance = noise_variance(released)
        self.found(
            released.step,
            angles={name: gram.angle("true", name) for name in AGAINST},
            layers={
                layer: {name: each.angle("true", name) for name in AGAINST} for layer, each in gram.layers().items()
            },
            norm=loss.norm("true"),
            signal_loss=signal_loss,
            noise_variance=variance,
            mse=signal_loss + variance,
            squared_error=loss.distance("true", "P") ** 2,
        )


def noise_variance(released: Released) -> float:
    """Of the step's noise on all live coordinates together, in units of the gradient: what it adds to an MSE."""
    counts = live_counts(released)
    return math.fsum(counts[name] * (released.stds[name] / released.info.expected_batch) ** 2 for name in counts)


def live_counts(released: Released) -> dict[str, int]:
    """How many coordinates of each parameter are live in a step."""

    def count(name: str, t: Tensor) -> int:
        mask = released.masks.get(name, True)
        return t.numel() * mask if isinstance(mask, bool) else mask.count

    return {name: count(name, t) for name, t in released.gradients.items() if name in released.stds}
