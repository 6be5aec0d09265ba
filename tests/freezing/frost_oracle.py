"""DP-FROST as the paper has it, with what is wrong in its listings put right, one number at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize
from torch import Tensor, nn

Vectors = dict[str, list[float]]  # a gradient: for each partition its numbers


def gradient(model: nn.Module, x: Tensor, y: Tensor, partitions: dict[str, list[str]]) -> Vectors:
    """Of one example's cross entropy."""
    model.zero_grad()
    nn.functional.cross_entropy(model(x[None]), y[None]).backward()
    named = dict(model.named_parameters())
    found: Vectors = {}
    for name, inside in partitions.items():
        found[name] = [float(g) for each in inside for g in named[each].grad.flatten().double()]
    model.zero_grad()
    return found


def norm(numbers: Sequence[float], order: int) -> float:
    return math.fsum(abs(n) ** order for n in numbers) ** (1 / order)


def clipped(vectors: Vectors, threshold: float | None, order: int) -> Vectors:
    """Definition 3; without a threshold, to length 1. What has no finite norm counts as nothing."""
    length = norm([n for each in vectors.values() for n in each], order)
    if not math.isfinite(length) or length == 0:
        return {name: [0.0 for _ in each] for name, each in vectors.items()}
    factor = 1 / length if threshold is None else min(1.0, threshold / length)
    return {name: [factor * n for n in each] for name, each in vectors.items()}


def magnitudes(examples: Sequence[Vectors], kind: str, order: int, c: float | None) -> dict[str, float]:
    """Definition 8 of the paper, for the partitions that the gradients have; and our "norms"."""
    sizes = {name: len(each) for name, each in examples[0].items()}
    mean = sum(sizes.values()) / len(sizes)
    c_bar = None if c is None else c / mean ** (1 / order)
    total = {name: [0.0] * size for name, size in sizes.items()}
    for vectors in examples:
        scaled = {name: [n / sizes[name] ** (1 / order) for n in each] for name, each in vectors.items()}
        if kind == "clipped":
            added = clipped(vectors, c, order)
        elif kind == "normalised":
            added = clipped(scaled, c_bar, order)
        elif kind == "absolute":
            added = clipped({name: [abs(n) for n in each] for name, each in scaled.items()}, c_bar, order)
        else:
            added = clipped({name: [norm(each, order)] for name, each in scaled.items()}, c_bar, 2)
        for name, each in added.items():
            for place, n in enumerate(each):
                total[name][place] += n
    if kind == "norms":
        return {name: each[0] for name, each in total.items()}
    if kind == "clipped":
        return {name: norm(each, order) / sizes[name] ** (1 / order) for name, each in total.items()}
    return {name: norm(each, order) for name, each in total.items()}


def sensitivity(sizes: Sequence[int], kind: str, order: int, c: float | None) -> float:
    """Lemma 3."""
    length = 1.0 if c is None else c
    if kind == "clipped":
        return length / min(sizes) ** (1 / order)
    return length if c is None else c / (sum(sizes) / len(sizes)) ** (1 / order)


def log_likelihood(
    observed: Sequence[np.ndarray], deltas: Sequence[float], v: np.ndarray, scales: Sequence[float]
) -> float:
    """Without what does not depend on v and λ, for a noise multiplier of 1."""
    terms = [
        (value - scales[t] * v[i]) ** 2 / deltas[t] ** 2
        for t, row in enumerate(observed)
        for i, value in enumerate(row)
        if not math.isnan(value)
    ]
    return -0.5 * math.fsum(terms)


def best_likelihood(observed: Sequence[np.ndarray], deltas: Sequence[float], first: float) -> float:
    """By scipy, from several beginnings, with λ_1 as it is."""
    m, rounds = len(observed[0]), len(observed)

    def loss(point: np.ndarray) -> float:
        return -log_likelihood(observed, deltas, point[:m], [first, *point[m:]])

    starts = [np.concatenate([observed[0] / first, [first * scale] * (rounds - 1)]) for scale in (0.5, 1.0, 2.0, 4.0)]
    found = [minimize(loss, start, method="BFGS", options={"gtol": 1e-9}) for start in starts]
    return -min(each.fun for each in found)


def psel(
    sizes: dict[str, int],
    room: int,
    rounds: int,
    gap: float,
    magnitudes_of: Sequence[dict[str, float]],
    errors_of: Sequence[dict[str, float]],
) -> list[str]:
    """Algorithm 4, lines 11 to 24, where somebody else estimates: what is chosen in the end, in order.

    A partition that does not fit is skipped and not an end. What will never fit is frozen; if all the others fit, they
    are chosen.
    """
    remaining = [name for name in sizes if sizes[name] <= room]
    chosen: list[str] = []
    for t in range(1, rounds + 1):
        v, error = magnitudes_of[t - 1], errors_of[t - 1]
        upwards = sorted(remaining, key=lambda name: v[name])
        must = sum(sizes[name] for name in remaining) - (room - sum(sizes[name] for name in chosen))
        threshold, n = -math.inf, 0
        for name in upwards:
            if n >= must:
                break
            threshold, n = v[name], n + sizes[name]
        for name in reversed(upwards):
            fits = sum(sizes[each] for each in chosen) + sizes[name] <= t * room / rounds
            if fits and (t == rounds or v[name] > threshold + gap * error[name]):
                chosen.append(name)
        free = room - sum(sizes[each] for each in chosen)
        remaining = [name for name in remaining if name not in chosen and sizes[name] <= free]
        if sum(sizes[name] for name in remaining) <= free:
            return chosen + remaining
    return chosen
