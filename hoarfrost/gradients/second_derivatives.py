"""Whether examples meet in the loss of a plain `loss.backward()`, with their gradients.

A mean or a sum over examples has no second derivative between two of them: the gradient of one's output does not change
with another's. So the gradient at the outputs is differentiated once more, in a random direction that moves the outputs
of half of the examples, and the other half must get nothing: not little, but exactly nothing. What has no curvature (a
maximum, a selection) is not seen here, nor are numbers without a gradient: `loss_graph` reads those that it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.tap import twice

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine
    from hoarfrost.gradients.loss_watch import Returned

Counted = tuple[GradientEdge, int]  # where a tensor is in the graph, and the dimension that counts its rows
TOLERANCE = 1e-6  # of the largest second derivative: exact zeros are expected, but not insisted on


def refuse(
    engine: Engine, tensors: Sequence[Tensor], weights: Any, outputs: Sequence[Counted], returned: Returned
) -> bool:
    """Refuses a backward pass from ``tensors`` through which the examples of a run meet, at its ``outputs``.

    Returns whether that could be seen.
    """
    examples = returned.groups.count(returned.rows)
    if examples < 2 or not outputs:
        return True
    generator = torch.Generator().manual_seed(returned.number)  # of its own: the run's random numbers stay the same
    half = torch.zeros(examples)
    half[torch.randperm(examples, generator=generator)[: examples // 2]] = 1
    moved = returned.groups.spread(half) == 1
    try:
        met = _meet(engine, tensors, weights, outputs, moved, generator)
    except Exception:
        return False  # something cannot be differentiated twice; what is wrong otherwise, the pass itself says
    if met:
        raise NotPrivate(
            "loss.backward(): in this loss the gradient of one example depends on other examples of the batch, so that "
            "one example moves what all others contribute, and clipping does not bound it. A loss must be a mean (or a "
            "sum) over examples of terms that are computed from one example each: no root, quotient, logarithm or "
            "product of what was added up over the batch, no mean over the batch that is subtracted, no softmax over "
            "examples, no comparison of all with all. Compute one loss per example and call "
            "optimizer.backward(losses); docs/losses.md says which loss to write how."
        )
    return True


def _meet(
    engine: Engine,
    tensors: Sequence[Tensor],
    weights: Any,
    outputs: Sequence[Counted],
    moved: Tensor,
    generator: torch.Generator,
) -> bool:
    """Whether moving the outputs of ``moved`` rows moves the gradients of the other rows."""
    at = [edge for edge, _ in outputs]
    with engine.trial(tensors), twice(), torch.enable_grad():
        first = torch.autograd.grad(tensors, at, weights, create_graph=True, allow_unused=True)
        curved = [(g, dim) for g, (_, dim) in zip(first, outputs, strict=True) if g is not None and g.requires_grad]
        if not curved:
            return False
        directions = []
        for g, dim in curved:
            rows = _along(moved.to(g), dim, g.dim())
            directions.append(torch.randn(g.shape, generator=generator).to(g) * rows)
        second = torch.autograd.grad(
            [g for g, _ in curved], at, directions, retain_graph=True, allow_unused=True
        )  # fmt: skip
    largest, others = 0.0, 0.0
    for change, (_, dim) in zip(second, outputs, strict=True):
        if change is None:
            continue
        sizes = torch.where(change.isfinite(), change.abs(), 0).movedim(dim, 0).double()
        largest = max(largest, float(sizes.max()))
        others = max(others, float(sizes[~moved.to(sizes.device)].max()))
    return others > TOLERANCE * largest


def _along(rows: Tensor, dim: int, dims: int) -> Tensor:
    return rows.view(*[-1 if d == dim else 1 for d in range(dims)])
