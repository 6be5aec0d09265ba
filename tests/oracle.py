"""The slow, obvious implementation of everything: what the fast one must equal.

One example at a time, plain autograd on a plain model, no cleverness.
"""

from __future__ import annotations

from collections.abc import Callable
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


def norm(gradient: dict[str, Tensor]) -> float:
    """The Euclidean length of one example's whole gradient."""
    return sum(float(g.double().square().sum()) for g in gradient.values()) ** 0.5


def clipped_sum(per_example: list[dict[str, Tensor]], clip_norm: float) -> dict[str, Tensor]:
    """Σ_b min(1, C/‖g_b‖) · g_b."""
    total = {name: torch.zeros_like(g) for name, g in per_example[0].items()}
    for gradient in per_example:
        factor = min(1.0, clip_norm / max(norm(gradient), 1e-30))
        for name, g in gradient.items():
            total[name] += factor * g
    return total


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
