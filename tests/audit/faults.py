"""Ways in which a private step can be wrong, each seeded into the real code. An audit that misses one is no audit.

A fault changes the library for one test, and may name the clipper to be audited in place of `Local`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hoarfrost.clipping import Adaptive, Clipper, Clipping, Local, PerLayer
from hoarfrost.gradients import ClippedSum
from hoarfrost.gradients.uses import Uses
from hoarfrost.noise import Noise
from hoarfrost.optim import PrivateOptimizer

Patch = pytest.MonkeyPatch
Stds = Sequence[float]


@dataclass(frozen=True)
class Fault:
    """How to seed it, and which audit at least must see it."""

    seed: Callable[[Patch], Clipper | None]
    by: str
    noise_multiplier: float = 1.0
    one_tensor_frozen: bool = False


def around(patch: Patch, owner: type, name: str, wrapper: Callable[..., Any]) -> None:
    """``wrapper(original, self, ...)`` takes the method's place."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args, **named: wrapper(original, self, *args, **named))


# Noise.


def noise_times(factor: float) -> Callable[[Patch], None]:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        original(noise, tensors, [factor * std for std in stds])

    return lambda patch: around(patch, Noise, "add_", add)


def no_noise_on_the_last_tensor(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        original(noise, tensors[:-1], stds[:-1])

    around(patch, Noise, "add_", add)


def no_noise_on_one_coordinate(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        kept = tensors[0][0, 0].clone()
        original(noise, tensors, stds)
        tensors[0][0, 0] = kept

    around(patch, Noise, "add_", add)


def noise_without_the_sensitivity(patch: Patch) -> Clipper:
    """The clipping norm is kept in two places, and the noise reads the one that nobody changed."""

    noise_for_the_bound(1.0)(patch)
    return Local(2.0)


def the_same_noise_in_every_step(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        original(Noise(seed=1), tensors, stds)

    around(patch, Noise, "add_", add)


def the_same_noise_in_every_tensor(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        seed = int(np.random.default_rng().integers(1 << 60))
        for tensor, std in zip(tensors, stds, strict=True):
            original(Noise(seed=seed), [tensor], [std])

    around(patch, Noise, "add_", add)


def uniform_noise(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        for tensor, std in zip(tensors, stds, strict=True):
            tensor.add_((torch.rand_like(tensor) - 0.5) * math.sqrt(12) * std)

    around(patch, Noise, "add_", add)


def statistics_without_noise(patch: Patch) -> None:
    def add(original: Any, noise: Noise, tensors: Sequence[Tensor], stds: Stds) -> None:
        original(noise, tensors, [std if t.dim() else 0.0 for t, std in zip(tensors, stds, strict=True)])

    around(patch, Noise, "add_", add)


def count_without_noise(clip: Clipper) -> Callable[[Patch], Clipper]:
    def seed(patch: Patch) -> Clipper:
        statistics_without_noise(patch)
        return clip

    return seed


def noise_for_the_bound(bound: float) -> Callable[[Patch], None]:
    """Whatever a step is clipped with, its noise is for one bound: of the first stage of a schedule, say."""

    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        (block,) = total.clipping.blocks
        total.clipping = replace(total.clipping, blocks=(replace(block, bound=bound),))
        original(optimizer, total)

    return lambda patch: around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


# Clipping.


def nothing_clipped(patch: Patch) -> None:
    patch.setattr(Clipping, "factors", lambda self, norms, **_: norms.isfinite().float())


def clipping_after_summation(patch: Patch) -> None:
    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        norm = math.hypot(*(float(s.double().norm()) for s in total.sums.values()))
        factor = min(1.0, total.clipping.sensitivity / max(norm, 1e-30))
        total.sums = {name: s * factor for name, s in total.sums.items()}
        original(optimizer, total)

    nothing_clipped(patch)
    around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


def mask_after_the_norm(patch: Patch) -> None:
    around(patch, Uses, "norms", lambda original, uses: norms_of(original, uses, slice(None, -1)))


def norms_of(original: Callable[[Uses], Tensor], uses: Uses, parameters: slice) -> Tensor:
    """The norms over some of the parameters alone."""
    everything, uses._parts = uses._parts, uses._parts[parameters]
    try:
        return original(uses)
    finally:
        uses._parts = everything


def global_without_the_drop(patch: Patch) -> None:
    """Everything is scaled by C/Z, as global clipping does; what is longer than Z should be dropped and is not."""
    patch.setattr(Clipping, "factors", lambda self, norms, **_: torch.where(norms.isfinite(), self.bounds[0] / 10, 0.0))


def batch_size_factor(patch: Patch) -> None:
    """Norms of gradients of the mean loss, factors for those of the sum."""
    around(patch, Uses, "norms", lambda original, uses: original(uses) / uses.examples)


def division_by_the_batch_that_was_drawn(patch: Patch) -> None:
    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        expected = optimizer.expected_batch
        optimizer.expected_batch = 1 if total.last is None else max(1, total.last.covered)
        original(optimizer, total)
        optimizer.expected_batch = expected

    around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


# What happens beside the release.


def a_trace_in_the_weights(patch: Patch) -> None:
    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        for name, summed in total.sums.items():
            optimizer.parameters[name].add_(summed, alpha=1e-3)
        original(optimizer, total)

    around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


def noise_on_frozen_weights(patch: Patch) -> None:
    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        original(optimizer, total)
        for p in optimizer.parameters.values():
            if p.grad is None:
                p.grad = torch.randn_like(p)

    around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


def two_optimizer_steps(patch: Patch) -> None:
    def set_gradients(original: Any, optimizer: Any, total: ClippedSum) -> None:
        original(optimizer, total)
        optimizer.inner.step()

    around(patch, PrivateOptimizer, "_set_gradients", set_gradients)


SIGMA_OF_EPSILON_1, SIGMA_OF_EPSILON_4 = 3.73063, 1.08116  # of one step, at delta 1e-5

FAULTS: dict[str, Fault] = {
    "no noise": Fault(noise_times(0.0), by="step"),
    "half noise": Fault(noise_times(0.5), by="step"),
    "noise x 0.8": Fault(noise_times(0.8), by="step", noise_multiplier=SIGMA_OF_EPSILON_4),
    "noise on too few coordinates": Fault(no_noise_on_the_last_tensor, by="step"),
    "clipping after summation": Fault(clipping_after_summation, by="sensitivity"),
    "mask after the norm": Fault(mask_after_the_norm, by="sensitivity"),
    "global clipping without the drop": Fault(global_without_the_drop, by="sensitivity"),
    "batch-size factor": Fault(batch_size_factor, by="sensitivity"),
    "ignored clipping norm": Fault(nothing_clipped, by="sensitivity"),
    "count without noise": Fault(count_without_noise(Adaptive(start=0.7, cost=0.1)), by="step"),
    "counts without noise": Fault(count_without_noise(PerLayer(Adaptive(start=0.4, cost=0.1))), by="step"),
}
"""Those that any audit of a private step is measured by."""

FURTHER: dict[str, Fault] = {
    "one coordinate without noise": Fault(no_noise_on_one_coordinate, by="step"),
    "noise without the sensitivity": Fault(noise_without_the_sensitivity, by="step"),
    "the same noise in every step": Fault(the_same_noise_in_every_step, by="step"),
    "the same noise in every tensor": Fault(the_same_noise_in_every_tensor, by="step"),
    "uniform noise": Fault(uniform_noise, by="step"),
    "division by the batch that was drawn": Fault(division_by_the_batch_that_was_drawn, by="sensitivity"),
    "a trace in the weights": Fault(a_trace_in_the_weights, by="step"),
    "noise on frozen weights": Fault(noise_on_frozen_weights, by="step", one_tensor_frozen=True),
    "two optimizer steps": Fault(two_optimizer_steps, by="step"),
}
