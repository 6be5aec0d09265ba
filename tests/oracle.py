"""The slow, obvious implementation of everything: what the fast one must equal.

One example at a time, plain autograd on a plain model, no cleverness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from hashlib import sha256
from typing import Any

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor, nn

from hoarfrost.nested import map_tensors

Loss = Callable[[nn.Module, Any], Tensor]  # the sum over the batch's rows of each row's own loss


def gradients(model: nn.Module, batch: Any, loss: Loss, *, views: int = 1, dim: int = 0) -> list[dict[str, Tensor]]:
    """Each example's gradient, by parameter name: the mean over its views. A parameter it does not reach has zeros."""
    rows = _rows(batch, dim)
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    result = []
    for example in range(rows // views):
        total = {
            name: torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for name, p in live.items()
        }
        for row in range(example * views, (example + 1) * views):
            one = map_tensors(lambda t, row=row: t.narrow(0 if t.dim() == 1 else dim, row, 1), batch)
            found = torch.autograd.grad(loss(model, one), list(live.values()), allow_unused=True)
            for name, gradient in zip(live, found, strict=True):
                if gradient is not None:
                    total[name] += gradient / views
        result.append(total)
    return result


def people(model: nn.Module, batch: Any, loss: Loss, sizes: list[int], *, dim: int = 0) -> list[dict[str, Tensor]]:
    """Each person's gradient: the mean over their own rows, which lie one after the other."""
    by_row = gradients(model, batch, loss, dim=dim)
    result = []
    for size in sizes:
        own, by_row = by_row[:size], by_row[size:]
        result.append({name: sum(row[name] for row in own) / size for name in own[0]})
    assert not by_row, "rows of nobody"
    return result


def norm(gradient: dict[str, Tensor]) -> float:
    """The Euclidean length of one example's whole gradient."""
    return sum(float(g.double().square().sum()) for g in gradient.values()) ** 0.5


@dataclass(frozen=True)
class Count:
    """A number for every example, from its block norms, that is summed over the batch."""

    of: Callable[[list[float]], float]
    bound: float
    noise_weight: float = 1.0


@dataclass(frozen=True)
class Rule:
    """How one batch is clipped, in plain numbers: what a `Clipping` must amount to.

    Args:
        blocks: names of the parameters that are clipped together.
        bounds: how far one example may move each block's sum.
        factors: from one example's block norms to its factors.
        noise_weights: how noisy each block is in relation to the others; equally, if none are given.
        counts: the statistics, by name.
    """

    blocks: list[list[str]]
    bounds: list[float]
    factors: Callable[[list[float]], list[float]]
    noise_weights: list[float] = field(default_factory=list)
    counts: dict[str, Count] = field(default_factory=dict)

    @property
    def weights(self) -> list[float]:
        return self.noise_weights or [1.0] * len(self.blocks)


@dataclass(frozen=True)
class Clipped:
    """What a batch comes to: sums by parameter, sums of counts, and each example's block norms and factors."""

    sums: dict[str, Tensor]
    counts: dict[str, float]
    norms: list[list[float]]
    factors: list[list[float]]


def clip(per_example: list[dict[str, Tensor]], rule: Rule) -> Clipped:
    """Every example by itself: norms of its blocks, a factor for each of them, and then the sum.

    An example with a norm that is no finite number contributes nothing to any block, and counts as infinite in each.
    """
    sums = {name: torch.zeros_like(g) for name, g in per_example[0].items()}
    counts = dict.fromkeys(rule.counts, 0.0)
    every_norm, every_factor = [], []
    for gradient in per_example:
        norms = [norm({name: gradient[name] for name in block if name in gradient}) for block in rule.blocks]
        finite = all(map(math.isfinite, norms))
        factors = rule.factors(norms) if finite else [0.0] * len(norms)
        for factor, length, bound, block in zip(factors, norms, rule.bounds, rule.blocks, strict=True):
            assert not finite or 0 <= factor * length <= bound * (1 + 1e-9), "the oracle itself leaves the bound"
            for name in block:
                if factor and name in gradient:
                    sums[name] += factor * gradient[name]
        for name, count in rule.counts.items():
            found = count.of(norms if finite else [math.inf] * len(norms))
            counts[name] += max(-count.bound, min(count.bound, found))
        every_norm.append(norms)
        every_factor.append(factors)
    return Clipped(sums, counts, every_norm, every_factor)


def stds(rule: Rule, noise_multiplier: float) -> tuple[list[float], dict[str, float]]:
    """Deviations of the noise on each block and each count.

    They are in proportion to the noise weights; and the whole release, every part of it divided by its deviation, moves
    by at most 1 / noise multiplier when an example comes or goes.
    """
    bounds = [*rule.bounds, *(count.bound for count in rule.counts.values())]
    weights = [*rule.weights, *(count.noise_weight for count in rule.counts.values())]
    moves = sum((bound / weight) ** 2 for bound, weight in zip(bounds, weights, strict=True)) ** 0.5
    found = [noise_multiplier * moves * weight for weight in weights]
    return found[: len(rule.blocks)], dict(zip(rule.counts, found[len(rule.blocks) :], strict=True))


def flat(names: Iterable[str], clip_norm: float) -> Rule:
    """min(1, C/‖g‖) on the whole gradient."""
    return Rule([list(names)], [clip_norm], lambda norms: [min(1.0, clip_norm / max(norms[0], 1e-30))])


def clipped_sum(per_example: list[dict[str, Tensor]], clip_norm: float) -> dict[str, Tensor]:
    """Σ_b min(1, C/‖g_b‖) · g_b."""
    return clip(per_example, flat(per_example[0], clip_norm)).sums


def masked(per_example: list[dict[str, Tensor]], masks: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    """Frozen coordinates have no gradient, before anything else is done with it."""
    return [{name: torch.where(masks[name], g, 0.0) for name, g in gradient.items()} for gradient in per_example]


def halving_norm(per_example: list[dict[str, Tensor]]) -> float:
    """A clipping norm that truly clips: half of the examples are longer."""
    lengths = sorted(norm(g) for g in per_example)
    middle = len(lengths) // 2
    return (lengths[middle - 1] + lengths[middle]) / 2 if len(lengths) > 1 else lengths[0] / 2


def _rows(batch: Any, dim: int) -> int:
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(t.shape[0 if t.dim() == 1 else dim]), batch)
    return sizes[0]


def largest(weights: dict[str, Tensor], share: float, *, together: bool) -> dict[str, Tensor]:
    """Which elements are among the largest in magnitude, of each tensor or of all of them; no two may be equal."""
    groups = [list(weights)] if together else [[name] for name in weights]
    masks = {name: torch.zeros(weight.shape, dtype=torch.bool) for name, weight in weights.items()}
    for group in groups:
        places = [(abs(float(v)), name, k) for name in group for k, v in enumerate(weights[name].flatten())]
        for _, name, k in sorted(places, reverse=True)[: round(Fraction(str(share)) * len(places))]:
            masks[name].view(-1)[k] = True
    return masks


def public_words(phrase: str, draw: int, number: int) -> list[int]:
    """32-bit numbers, least byte first, from the blocks that AES-256 makes of draw, 0, and each block's number."""
    cipher = Cipher(algorithms.AES(sha256(phrase.encode()).digest()), modes.ECB()).encryptor()
    words: list[int] = []
    for block in range((number + 3) // 4):
        made = cipher.update(draw.to_bytes(8, "big") + bytes(4) + block.to_bytes(4, "big"))
        words += [int.from_bytes(made[k : k + 4], "little") for k in range(0, 16, 4)]
    return words[:number]
