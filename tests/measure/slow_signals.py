"""Slow, obvious versions of what the measurements of a run say: one example at a time, lists of Python numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

Gradient = dict[str, Tensor]


def numbers(gradient: Gradient, names: Iterable[str]) -> list[float]:
    """All coordinates, one after the other; zeros are not there to be left out."""
    return [float(v) for name in names if name in gradient for v in gradient[name].double().flatten()]


def added(gradients: list[Gradient], weights: list[float], like: Gradient) -> Gradient:
    """Σ w·g, zeros if there are none."""
    total = {name: t.double() * 0 for name, t in like.items()}
    for gradient, weight in zip(gradients, weights, strict=True):
        for name in total:
            total[name] = total[name] + weight * gradient[name].double()
    return total


def norm(a: list[float]) -> float:
    return math.sqrt(sum(x * x for x in a))


def angle(a: list[float], b: list[float]) -> float | None:
    """None where one of them is zero."""
    if norm(a) == 0 or norm(b) == 0:
        return None
    cosine = sum(x * y for x, y in zip(a, b, strict=True)) / norm(a) / norm(b)
    return math.acos(max(-1.0, min(1.0, cosine)))


def squared_distance(a: list[float], b: list[float]) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def ratio(gradients: list[list[float]]) -> float | None:
    """R: the mean squared distance to the mean over the squared length of the mean."""
    mean = [sum(column) / len(gradients) for column in zip(*gradients, strict=True)]
    spread = sum(squared_distance(g, mean) for g in gradients) / len(gradients)
    return spread / norm(mean) ** 2 if norm(mean) else None


def bins(lengths: list[float], per_decade: int) -> dict[str, int]:
    """Every length is put into the first bin whose upper end is above it."""
    found: dict[str, int] = {}
    for length in lengths:
        key = "zero" if length == 0 else "not finite"
        if 0 < length < math.inf:
            k = -40 * per_decade
            while 10 ** ((k + 1) / per_decade) <= length:
                k += 1
            key = str(k)
        found[key] = found.get(key, 0) + 1
    return found
