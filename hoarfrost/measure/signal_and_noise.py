"""A problem on which pruning is known to help against clipping: some features carry the signal, the others are noise.

x = (y·v + σξ, σξ') with a label y = ±1, learned by two linear layers f(x) = W₂W₁x with the loss ½(f(x) - y)². All
expectations are exact, over the whole population: nothing is sampled, and no data are needed.

By symmetry, e·x = (f(x) - y)·x is distributed as (w·z - 1)·z, where w = W₂W₁ and z = (v + σξ, σξ'). That is why all
moments of the gradients are moments of one Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hoarfrost import validate
from hoarfrost.measure.bounds import gradient_ratio


class Layers(NamedTuple):
    """W₁ [hidden, features], of which the first features are the signal, and W₂ [1, hidden]."""

    first: Tensor
    second: Tensor


@dataclass(frozen=True, kw_only=True)
class SignalAndNoise:
    """The problem.

    Args:
        signal, noise: how many features of each kind.
        hidden: the width of the hidden layer.
        strength: ‖v‖; v is the same in each of its coordinates.
        spread: σ.

    >>> SignalAndNoise(signal=2, noise=3, hidden=4).best_loss
    0.25
    """

    signal: int = 10
    noise: int = 90
    hidden: int = 20
    strength: float = 1.0
    spread: float = 1.0

    def __post_init__(self) -> None:
        validate.whole(signal=self.signal, noise=self.noise, hidden=self.hidden)
        validate.positive(strength=self.strength, spread=self.spread)

    @property
    def center(self) -> Tensor:
        """E[y·x] = (v, 0), [features]."""
        v = torch.full((self.signal,), self.strength / math.sqrt(self.signal), dtype=torch.float64)
        return torch.cat([v, v.new_zeros(self.noise)])

    @property
    def best(self) -> Tensor:
        """The best W₂W₁, which is v / (‖v‖² + σ²) on the signal and 0 on the noise."""
        return self.center / (self.strength**2 + self.spread**2)

    @property
    def best_loss(self) -> float:
        """The loss there."""
        return 0.5 * self.spread**2 / (self.strength**2 + self.spread**2)

    def start(self, seed: int, scale: float = 0.3) -> Layers:
        """Random weights with W₂ᵀW₂ = W₁W₁ᵀ, as the theorem asks for: W₁ = s·a·bᵀ and W₂ = s·aᵀ, with unit a and b."""
        generator = torch.Generator().manual_seed(seed)
        a = torch.randn(self.hidden, generator=generator, dtype=torch.float64)
        b = torch.randn(self.signal + self.noise, generator=generator, dtype=torch.float64)
        a, b = a / a.norm(), b / b.norm()
        return Layers(scale * torch.outer(a, b), scale * a[None])

    def loss(self, layers: Layers) -> float:
        """E ½(f(x) - y)²."""
        w = (layers.second @ layers.first)[0]
        return 0.5 * float((w @ self.center - 1) ** 2 + self.spread**2 * w @ w)

    def gradient(self, layers: Layers, mask: Tensor) -> Layers:
        """The mean of the examples' gradients, where the mask [hidden, features] lets W₁ live."""
        w = (layers.second @ layers.first)[0]
        pull = (w @ self.center - 1) * self.center + self.spread**2 * w  # E (w·z - 1)·z
        return Layers(mask * torch.outer(layers.second[0], pull), (layers.first @ pull)[None])

    def ratio(self, layers: Layers, mask: Tensor) -> float:
        """R = Tr Cov / ‖ḡ‖² of the examples' gradients, over all that is not pruned; infinite where their mean is 0."""
        mean = math.hypot(*(float(part.norm()) for part in self.gradient(layers, mask)))
        found = gradient_ratio(self.mean_square(layers, mask), mean)
        return math.inf if found is None else found

    def mean_square(self, layers: Layers, mask: Tensor) -> float:
        """E ‖g‖² = E (w·z - 1)²·zᵀAz: both factors are quadratic in a Gaussian, so that Isserlis' theorem gives it."""
        w, m, variance = (layers.second @ layers.first)[0], self.center, self.spread**2
        form = torch.diag(layers.second[0].square() @ mask) + layers.first.T @ layers.first
        off = w @ m - 1
        apart = (off**2 + variance * w @ w) * (m @ form @ m + variance * form.trace())
        return float(apart + 4 * off * variance * w @ form @ m + 2 * variance**2 * w @ form @ w)


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Gradient descent on the problem.

    Args:
        keep: the share of W₁ that is not pruned.
        losses, ratios: before each step, and after the last one.
        layers: what it ends with.
    """

    keep: float
    losses: tuple[float, ...]
    ratios: tuple[float, ...]
    layers: Layers


def descend(problem: SignalAndNoise, start: Layers, mask: Tensor, *, steps: int, lr: float) -> Descent:
    """Gradient descent from these weights; what is masked is zero, and stays zero."""
    layers, losses, ratios = Layers(start.first * mask, start.second), [], []
    for step in range(steps + 1):
        losses.append(problem.loss(layers))
        ratios.append(problem.ratio(layers, mask))
        if step < steps:
            found = problem.gradient(layers, mask)
            layers = Layers(layers.first - lr * found.first, layers.second - lr * found.second)
    return Descent(keep=float(mask.double().mean()), losses=tuple(losses), ratios=tuple(ratios), layers=layers)


def largest(weights: Tensor, keep: float) -> Tensor:
    """The mask of the share of the weights that is largest in magnitude; at least one is kept.

    >>> largest(torch.tensor([[0.1, -3.0], [2.0, 0.0]]), 0.5).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    validate.rate(keep=keep)
    mask = torch.zeros_like(weights)
    mask.view(-1)[weights.abs().flatten().topk(max(1, round(keep * weights.numel()))).indices] = 1.0
    return mask


def pruning_on_signal_and_noise(
    problem: SignalAndNoise,
    keeps: Sequence[float] = (1.0, 0.7, 0.5, 0.3, 0.1),
    *,
    steps: int = 300,
    lr: float = 0.1,
    pretraining: int = 1000,
    seed: int = 0,
) -> tuple[Descent, list[Descent]]:
    """How R changes when the first layer is pruned by magnitude.

    As in the paper: train all weights, keep the largest, reset these to where they began, and train again. R goes to
    infinity where training ends, since the mean gradient goes to zero there: compare while there is something to learn.

    Args:
        keeps: shares of W₁ that are kept.
        steps, lr: of the training that is measured; the rate is small, as gradient flow has it.
        pretraining: steps of the training that decides what is pruned.

    Returns that training, in which W_n, the part of W₁ on noise, goes to zero; and a descent for each share.

    >>> before, (whole, pruned) = pruning_on_signal_and_noise(SignalAndNoise(), keeps=(1.0, 0.1))
    >>> pruned.ratios[0] < whole.ratios[0], bool(before.layers.first[:, 10:].abs().max() < 1e-3)
    (True, True)
    """
    validate.whole(steps=steps, pretraining=pretraining)
    validate.positive(lr=lr)
    start = problem.start(seed)
    before = descend(problem, start, torch.ones_like(start.first), steps=pretraining, lr=lr)
    masks = [largest(before.layers.first, keep) for keep in keeps]
    return before, [descend(problem, start, mask, steps=steps, lr=lr) for mask in masks]
