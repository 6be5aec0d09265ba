"""The tap: an identity on a layer's output that sees the gradient go by.

A layer runs with its parameters detached, so autograd computes the gradient of its input and nothing for its
parameters. Everything a tap needs later lives in the autograd graph it sits in: a forward pass without a backward, a
second forward, an exception in between leave nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from hoarfrost.errors import NotPrivate

Sink = Callable[[Tensor, tuple[Tensor, ...]], None]
First = Callable[[Tensor, tuple[Tensor, ...]], bool]  # the same, and whether it is the first in its backward pass

_ZERO = torch.zeros(())
_NOTHING = nullcontext()
_ROWS = "hoarfrost rows"  # of what is noted on a node


def at_full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Without autocast: a backward() inside of it must not round norms and sums to half precision."""
    # To enter a context takes as long as a small layer's arithmetic, and mostly there is nothing to switch off.
    if not torch._C._is_any_autocast_enabled() or not torch.is_autocast_enabled(device.type):
        return _NOTHING
    return torch.autocast(device.type, enabled=False)


_twice = False


@contextmanager
def twice() -> Iterator[None]:
    """What passes in this block bring to a tap's input may be differentiated: second derivatives are looked at."""
    global _twice
    _twice = True
    try:
        yield
    finally:
        _twice = False


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, sink: First, *inputs: Tensor) -> Tensor:
        ctx.sink, ctx.anchor = sink, anchor
        ctx.save_for_backward(*inputs)
        # Not changed, but said to be: an output that is an input would be a view, and `ReLU(inplace=True)` after the
        # layer would be refused.
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        inputs = ctx.saved_tensors  # read once: activation checkpointing allows no more
        differentiable = torch.is_grad_enabled()  # create_graph=True: somebody may differentiate what comes out
        if differentiable or torch._C._is_any_autocast_enabled():  # to enter contexts takes as long as a small layer
            with at_full_precision(gradient.device), torch.no_grad():
                first = ctx.sink(gradient.detach(), inputs)
        else:
            first = ctx.sink(gradient, inputs)
        if differentiable and not _twice:
            gradient = _Once.apply(gradient, ctx.anchor)
        # The anchor gets a zero, from one tap in each pass: its hook is how the engine learns that this is a backward
        # pass that accumulates gradients, and not `torch.autograd.grad` asking for an input's.
        return gradient, _ZERO if first else None, None, *[None] * len(inputs)


class _Once(torch.autograd.Function):
    """An identity that is not differentiated: parameters are detached, and their part of the derivative is missing."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        raise NotPrivate(
            "a gradient is differentiated once more (create_graph=True, as for a gradient penalty): gradients of "
            "individual examples are taken in the first backward pass alone. Leave the penalty out; to bound how fast "
            "a model's output changes, clamp its weights after optimizer.step(), or compare its outputs for two inputs "
            "within one forward."
        )


def tap(output: Tensor, anchor: Tensor, sink: First, *inputs: Tensor) -> Tensor:
    """``output``, with ``sink(gradient of output, inputs)`` called when the backward pass reaches it.

    ``anchor`` is a leaf that requires a gradient: it keeps the tap in the graph even where nothing before it needs one.
    """
    if output._is_view():  # as F.linear's may be: changing a view "in place" would drag its base along
        output = torch.ops.aten._unsafe_view(output, output.shape)
    result: Tensor = _Tap.apply(output, anchor, sink, *inputs)
    return result


def note_rows(tapped: Tensor, dim: int) -> None:
    """Says which dimension of a tap's output counts rows."""
    node: Any = tapped.grad_fn
    if node is not None:
        node.metadata[_ROWS] = dim


def noted_rows(node: Any, anchor: Tensor) -> int | None:
    """That dimension, if the node is a tap of the engine with this anchor; None where it is not known."""
    ours = type(node).__name__ == "_TapBackward" and getattr(node, "anchor", None) is anchor
    return node.metadata.get(_ROWS) if ours else None
