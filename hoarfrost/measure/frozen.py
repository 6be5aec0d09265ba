"""What freezing does to clipping: the same examples' gradients over all coordinates, and over live ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.clipping import Clipping
from hoarfrost.measure.gram import Gram
from hoarfrost.measure.measurement import Adding, Measurement, Row, live_only, scaled
from hoarfrost.measure.outside import Outside
from hoarfrost.measure.truth import noise_variance
from hoarfrost.observers import Released
from hoarfrost.registry import Whole, component


@component("measure", "freezing")
class Frozen(Measurement):
    """For a sample of the training data, with nothing frozen and with what is frozen in the step: the share that is
    clipped, the middle length, the clipped mean and its angle to the mean as it is, signal loss and mean squared error.

    A step does not compute the gradients of what is frozen, so these are computed outside of it, one example after the
    other, with the weights and the clipping of the step. Signal loss is ‖∇f - B‖² over all coordinates, where ∇f and B
    are the means of the sample's gradients as they are, and clipped; the mean squared error adds the variance of
    the step's noise, and of as much noise on all coordinates. What is compared by length and angle is over live
    coordinates in both cases.

    Args:
        sample: the number of examples, spread evenly over the data set.
        every: it looks at every so many steps, beginning with the first.
    """

    kind = "freezing"

    def __init__(self, outside: Outside, sample: Whole = 64, every: Whole = 100) -> None:
        super().__init__(every)
        validate.whole(sample=sample)
        self.outside, self.sample = outside, sample

    def on_release(self, released: Released) -> None:
        clipping = released.clipping
        examples = self.outside.some(self.sample)
        true, without, frozen = Adding(), Adding(), Adding()
        parts: dict[str, dict[bool, Adding]] = {key: {True: Adding(), False: Adding()} for key in ("all", "live")}
        norms: dict[str, list[Tensor]] = {"all": [], "live": []}
        for gradient in self.outside.each(list(clipping.block_of), examples):
            true.add(gradient)
            for key, vector, total in (("all", gradient, without), ("live", live_only(gradient, released), frozen)):
                length = block_norms(vector, clipping)
                factors = clipping.factors(length)[0]
                norms[key].append(length)
                total.add({name: t * factors[clipping.block_of[name]] for name, t in vector.items()})
                shortened = bool((factors < 1).any())
                parts[key][shortened].add(live_only(vector, released))
        size = 1 / len(examples)
        signals = {"all": scaled(without.take(), size), "live": scaled(frozen.take(), size)}
        mean = scaled(true.take(), size)
        whole = Gram.of({"true": mean, **signals})
        live = Gram.of({name: live_only(vector, released) for name, vector in {"true": mean, **signals}.items()})
        lengths = {key: torch.cat(found) for key, found in norms.items()}
        clipped = {key: (clipping.factors(found) < 1).any(1) for key, found in lengths.items()}
        variance = {"live": noise_variance(released), "all": unfrozen_variance(released, mean)}
        turned = {
            name: Gram.of({key: parts[key][shortened].take() for key in parts}).angle("all", "live")
            for name, shortened in (("clipped", True), ("unclipped", False))
        }

        def figures(key: str) -> Row:
            signal_loss = whole.distance("true", key) ** 2
            return {
                "share_clipped": float(clipped[key].double().mean()),
                "median_norm": float(lengths[key].square().sum(1).sqrt().median()),
                "norm_B": live.norm(key),
                "angle_UB": live.angle("true", key),
                "signal_loss": signal_loss,
                "mse": signal_loss + variance[key],
            }

        self.found(
            released.step,
            sample=len(examples),
            live_share=live_share(released, mean),
            unfrozen=figures("all"),
            frozen=figures("live"),
            share_released=float((clipped["all"] & ~clipped["live"]).double().mean()),
            turned=turned,
        )


def block_norms(vector: dict[str, Tensor], clipping: Clipping) -> Tensor:
    """Of one example, [1, blocks]."""
    squares: list[Tensor | float] = [0.0] * len(clipping.blocks)
    for name, t in vector.items():
        squares[clipping.block_of[name]] += t.double().square().sum()
    return torch.tensor([[float(square) ** 0.5 for square in squares]])


def unfrozen_variance(released: Released, parameters: dict[str, Tensor]) -> float:
    """The variance of a step's noise if nothing were frozen."""
    stds, _ = released.clipping.stds(released.info.noise_multiplier)
    variances = (t.numel() * stds[released.clipping.block_of[name]] ** 2 for name, t in parameters.items())
    return math.fsum(variances) / released.info.expected_batch**2


def live_share(released: Released, parameters: dict[str, Tensor]) -> float:
    """The share of the coordinates that are live."""
    live = 0
    for name, t in parameters.items():
        mask = released.masks.get(name, True)
        live += t.numel() * mask if isinstance(mask, bool) else mask.count
    return live / sum(t.numel() for t in parameters.values())
