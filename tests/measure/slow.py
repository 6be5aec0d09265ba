"""Slow, obvious versions of what `hoarfrost.measure` computes: plain Python numbers, one example at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

Rows = Sequence[Sequence[float]]


def probabilities(row: Sequence[float]) -> list[float]:
    """Softmax of one example's logits."""
    powers = [math.exp(logit - max(row)) for logit in row]
    return [power / sum(powers) for power in powers]


def nll(rows: Rows, labels: Sequence[int]) -> float:
    """The mean of -log p of the label."""
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        total += math.log(sum(math.exp(logit - max(row)) for logit in row)) - (row[label] - max(row))
    return total / len(labels)


def brier(rows: Rows, labels: Sequence[int]) -> float:
    """The mean over examples of the sum over classes of (p - 1 if it is the label, else p) squared."""
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        for number, p in enumerate(probabilities(row)):
            total += (p - (1 if number == label else 0)) ** 2
    return total / len(labels)


def confident(rows: Rows, labels: Sequence[int]) -> list[tuple[float, bool]]:
    """Each example's confidence in the predicted class, and whether it is right. Of equal classes the first."""
    pairs = []
    for row, label in zip(rows, labels, strict=True):
        p = probabilities(row)
        pairs.append((max(p), row.index(max(row)) == label))
    return pairs


def one_vs_rest(rows: Rows, labels: Sequence[int], number: int) -> list[tuple[float, bool]]:
    """Each example's probability of one class, and whether that is its label."""
    return [(probabilities(row)[number], label == number) for row, label in zip(rows, labels, strict=True)]


def equal_width(bins: int) -> list[float]:
    """Edges at 0, 1/bins, ..., 1."""
    return [number / bins for number in range(bins + 1)]


def equal_mass(pairs: Sequence[tuple[float, bool]], bins: int) -> list[float]:
    """Edges at the examples that close a bin when all are lined up by confidence; 0 and 1 at the ends."""
    line = sorted(confidence for confidence, _ in pairs)
    return [0.0, *(line[(len(line) - 1) * number // bins] for number in range(1, bins)), 1.0]


def binned(pairs: Sequence[tuple[float, bool]], edges: Sequence[float]) -> list[list[tuple[float, bool]]]:
    """The examples of each bin. An example at an edge is in the bin below; 0 is in the first."""
    members: list[list[tuple[float, bool]]] = [[] for _ in edges[1:]]
    for confidence, right in pairs:
        for number, high in enumerate(edges[1:]):
            if confidence <= high:
                members[number].append((confidence, right))
                break
    return members


def gaps(pairs: Sequence[tuple[float, bool]], edges: Sequence[float]) -> list[tuple[int, float]]:
    """The number of examples and |accuracy - confidence| of each bin that is not empty."""
    found = []
    for members in binned(pairs, edges):
        if members:
            confidence = sum(c for c, _ in members) / len(members)
            accuracy = sum(1 for _, right in members if right) / len(members)
            found.append((len(members), abs(accuracy - confidence)))
    return found


def ece(pairs: Sequence[tuple[float, bool]], edges: Sequence[float]) -> float:
    """The gap of a bin times its share of the examples, summed."""
    return sum(count / len(pairs) * gap for count, gap in gaps(pairs, edges))


def mce(pairs: Sequence[tuple[float, bool]], edges: Sequence[float]) -> float:
    """The largest gap."""
    return max(gap for _, gap in gaps(pairs, edges))
