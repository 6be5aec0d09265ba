"""What the papers on freezing, pruning and momentum bound or scale, as plain functions of plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hoarfrost import validate
from hoarfrost.errors import InvalidValue


def gradient_ratio(mean_square: float, mean_norm: float) -> float | None:
    """R = Tr Cov / ‖ḡ‖²: how far examples' gradients lie apart, in relation to the length of their mean ḡ.

    Args:
        mean_square: the mean of ‖g‖² over the examples.
        mean_norm: ‖ḡ‖.

    None where ḡ is zero: then there is no direction to agree on.

    >>> gradient_ratio(mean_square=5.0, mean_norm=1.0)  # of (1, 2) and (1, -2)
    4.0
    """
    validate.not_negative(mean_square=mean_square, mean_norm=mean_norm)
    return max(mean_square / mean_norm**2 - 1, 0.0) if mean_norm**2 > 0 else None


def alignment_bound(clip_norm: float, ratio: float) -> float:
    """C·(1 - R/2): how far the mean of clipped gradients goes at least along the mean of the unclipped ones.

    It holds where every gradient is clipped, to one norm C. Above R = 2 it says nothing.

    >>> alignment_bound(clip_norm=1.0, ratio=0.5)
    0.75
    """
    validate.positive(clip_norm=clip_norm)
    validate.not_negative(ratio=ratio)
    return clip_norm * (1 - ratio / 2)


def mse_bound(trace: float, dimensions: int, noise_multiplier: float) -> float:
    """Tr Σ·(1 + d·σ²): a lower bound on the mean squared error of one example's noised gradient, as d grows.

    It is for gradients that are drawn from a normal distribution around the true one with covariance Σ, and noise of
    σ times the longest of them: nothing is clipped to a norm chosen beforehand.

    >>> mse_bound(trace=2.0, dimensions=10, noise_multiplier=1.0)
    22.0
    """
    validate.not_negative(trace=trace, noise_multiplier=noise_multiplier)
    validate.whole(dimensions=dimensions)
    return trace * (1 + dimensions * noise_multiplier**2)


@dataclass(frozen=True)
class MomentumScale:
    """What momentum makes of the steps' signal and of their noise, after many steps of SGD.

    Args:
        signal: C/(1-μ): how far a signal of the clipping norm's length that stays the same moves the weights. Settings
            with the same value are expected to train alike: a rule of thumb for tuning.
        noise_gain: 1/√(1-μ²): by what the standard deviation of the velocity's noise exceeds that of one step. Noise
            of different steps is independent, so that it grows by less than the signal's 1/(1-μ).
    """

    signal: float
    noise_gain: float


def momentum_scale(clip_norm: float, momentum: float) -> MomentumScale:
    """The rule C/(1-μ) for trying clipping norms and momenta, and the true gain of the noise beside it.

    Trying settings on private data costs privacy, whatever rule one follows.

    >>> scale = momentum_scale(clip_norm=0.1, momentum=0.9)
    >>> round(scale.signal, 3), round(scale.noise_gain, 3)
    (1.0, 2.294)
    """
    validate.positive(clip_norm=clip_norm)
    _check_momentum(momentum)
    return MomentumScale(clip_norm / (1 - momentum), 1 / math.sqrt((1 - momentum) * (1 + momentum)))


def clip_norm_for(momentum: float, like: MomentumScale) -> float:
    """The clipping norm that goes with another momentum by the rule C/(1-μ).

    >>> round(clip_norm_for(0.5, like=momentum_scale(0.1, 0.9)), 6)
    0.5
    """
    _check_momentum(momentum)
    return like.signal * (1 - momentum)


def _check_momentum(momentum: float) -> None:
    validate.not_negative(momentum=momentum)
    if not momentum < 1:
        raise InvalidValue(f"momentum must be below 1, or velocities grow without end; got {momentum}")
