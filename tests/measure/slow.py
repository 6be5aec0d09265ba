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


def auc(members: Sequence[float], non_members: Sequence[float]) -> float:
    """Of all pairs of a member and a non-member, those in which the member's score is larger; ties count half."""
    won = 0.0
    for member in members:
        for other in non_members:
            won += 1 if member > other else 0.5 if member == other else 0
    return won / (len(members) * len(non_members))


def roc(members: Sequence[float], non_members: Sequence[float]) -> list[tuple[float, float]]:
    """False and true positive rate of "at least this score", for every score; first of all nobody."""
    points = [(0.0, 0.0)]
    for score in sorted({*members, *non_members}, reverse=True):
        false = sum(1 for other in non_members if other >= score) / len(non_members)
        true = sum(1 for member in members if member >= score) / len(members)
        points.append((false, true))
    return points


def tpr_at(members: Sequence[float], non_members: Sequence[float], fpr: float) -> float:
    """The largest true positive rate of a threshold with at most this false positive rate."""
    return max(true for false, true in roc(members, non_members) if false <= fpr)


def delong_variance(members: Sequence[float], non_members: Sequence[float]) -> float:
    """The variance of `auc` after DeLong: how its terms for single members and non-members spread."""

    def spread(terms: Sequence[float]) -> float:
        mean = sum(terms) / len(terms)
        return sum((term - mean) ** 2 for term in terms) / (len(terms) - 1) / len(terms)

    return spread([auc([member], non_members) for member in members]) + spread(
        [auc(members, [other]) for other in non_members]
    )


def most_tpr(pairs: Sequence[tuple[float, float]], fpr: float) -> float:
    """The largest TPR that every pair (ε, δ) allows, with both sides of the definition: TPR ≤ e^ε FPR + δ and
    1 - FPR ≤ e^ε (1 - TPR) + δ.
    """
    best = 1.0
    for epsilon, delta in pairs:
        best = min(best, math.exp(epsilon) * fpr + delta, 1 - (1 - fpr - delta) / math.exp(epsilon))
    return best


def lira(target: Sequence[float], shadows: Rows, included: Sequence[Sequence[bool]], online: bool) -> list[float]:
    """The log ratio of two normal densities for each example (or its distance in deviations from the second mean)."""

    def split(kind: bool) -> tuple[list[float], float]:
        groups = [
            [row[example] for row, flags in zip(shadows, included, strict=True) if flags[example] == kind]
            for example in range(len(target))
        ]
        means = [sum(group) / len(group) for group in groups]
        squares = sum((value - mean) ** 2 for group, mean in zip(groups, means, strict=True) for value in group)
        variance = squares / sum(len(group) - 1 for group in groups)
        return means, variance * (1 + 1 / len(groups[0]))

    def density(value: float, mean: float, variance: float) -> float:
        return -((value - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2

    (inside, inside_variance), (outside, outside_variance) = split(True), split(False)
    if not online:
        return [(t - mean) / math.sqrt(outside_variance) for t, mean in zip(target, outside, strict=True)]
    return [
        density(t, one, inside_variance) - density(t, other, outside_variance)
        for t, one, other in zip(target, inside, outside, strict=True)
    ]
