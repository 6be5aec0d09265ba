"""Whether examples meet in a loss of a plain `loss.backward()` where it has a kink, and no second derivative.

An absolute value, a hinge or a maximum has a slope that depends on the side on which its argument lies, and on nothing
else. If the argument is one example's, all is well. If it is a mean over the batch, or what an example has beyond that
mean, or a difference of two examples, others decide on which side it lies. So a few of the arguments of each such
operation are differentiated by themselves: each must reach one example alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.second_derivatives import Counted

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine
    from hoarfrost.gradients.loss_watch import Returned

KINKS = (
    "Abs", "Relu", "LeakyRelu", "Prelu", "Clamp", "Maximum", "Minimum", "Threshold", "Hardtanh", "Hardswish",
    "Hardsigmoid", "Hardshrink", "Softshrink", "Elu", "Softplus", "Where", "HuberLoss", "SmoothL1Loss", "L1Loss",
    "LinalgVectorNorm", "Norm", "MultiMarginLoss", "MultilabelMarginLoss",
)  # fmt: skip
NODES = 24  # of a loss that are looked at
ARGUMENTS = 3  # of each that are


def refuse(engine: Engine, tensors: Sequence[Tensor], outputs: Sequence[Counted], returned: Returned) -> None:
    """Refuses a backward pass from ``tensors`` in which an argument of a kink comes from several examples."""
    groups, rows = returned.groups, returned.rows
    if groups.count(rows) < 2 or not outputs:
        return
    generator = torch.Generator().manual_seed(returned.number)  # of its own: the run's random numbers stay the same
    ends = {edge.node for edge, _ in outputs}
    for number, (edge, shape) in enumerate(_arguments(tensors, ends)):
        if number == NODES:
            return
        size = prod(shape)
        for place in torch.randint(max(1, size), (min(size, ARGUMENTS),), generator=generator).tolist():
            if _examples(engine, tensors, edge, shape, place, outputs, returned) > 1:
                raise NotPrivate(
                    "loss.backward(): in this loss something that is not smooth (an absolute value, a hinge, a clamp, "
                    "a maximum, as in flooding or a margin) is computed from several examples of the batch, or from "
                    "its mean: on which side it lies, other examples decide, so that one example moves what all "
                    "others contribute, and clipping does not bound it. Do it to each example's own loss, and compute "
                    "nothing from a mean over the batch; docs/losses.md says which loss to write how. Compute one loss "
                    "per example and call optimizer.backward(losses)."
                )


def _arguments(tensors: Sequence[Tensor], ends: set[Any]) -> Iterator[tuple[GradientEdge, tuple[int, ...]]]:
    """What the kinks between the loss and the model's outputs are applied to, and its shape."""
    todo: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    seen = set(todo)
    for node in todo:
        if node in ends or node.name().startswith("_Tap"):
            continue  # what is below is the model's
        kink = node.name().startswith(KINKS)
        for below, output in node.next_functions:
            if below is None:
                continue
            if kink and hasattr(below, "_input_metadata"):
                yield GradientEdge(below, output), tuple(below._input_metadata[output].shape)
            if below not in seen:
                seen.add(below)
                todo.append(below)


def _examples(
    engine: Engine,
    tensors: Sequence[Tensor],
    edge: GradientEdge,
    shape: tuple[int, ...],
    place: int,
    outputs: Sequence[Counted],
    returned: Returned,
) -> int:
    """How many examples have a say in one of the numbers there, as far as it can be seen."""
    metadata = edge.node._input_metadata[edge.output_nr]
    one = torch.zeros(prod(shape), dtype=metadata.dtype, device=metadata.device)
    one[place] = 1
    at = [each for each, _ in outputs]
    slopes: Sequence[Tensor | None] = ()
    with suppress(RuntimeError), engine.trial(tensors):  # what cannot be differentiated, the pass itself says
        slopes = torch.autograd.grad(edge, at, one.view(shape), retain_graph=True, allow_unused=True)
    found: set[int] = set()
    for slope, (_, dim) in zip(slopes, outputs, strict=False):
        if slope is not None:
            rows = slope.detach().movedim(dim, 0).reshape(slope.shape[dim], -1)
            reached = rows.nan_to_num().abs().amax(1).nonzero().squeeze(1)
            found |= set(returned.groups.owner(reached).tolist())
    return len(found)
