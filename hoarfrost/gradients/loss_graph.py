"""What the graph of a plain `loss.backward()` tells for free: over what its loss was averaged or added up.

The loss is the user's code, and nobody sees it run. But its nodes are in the autograd graph, above those of the model,
and say what kind of reduction they are and of how many numbers. Looked at in the first passes of a run only; where the
graph cannot be found (a backward pass on another thread, as on a GPU), nothing is said.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

LOOKS = 16  # passes that are looked at
NODES = 300  # of a loss; more are a model without taps
MEAN, SUM = 1, 2  # torch's numbers for reductions
LIGHTNING = {f"{name}.loops.optimization.automatic" for name in ("lightning.pytorch", "pytorch_lightning")}
REMEDY = (
    'Compute one loss per example (reduction="none", or hoarfrost.losses) and call optimizer.backward(losses) in place '
    "of loss.backward()"
)


class LossGraph:
    """Warns, once of each kind, of losses that are no mean (or no sum) over the examples.

    Args:
        reduction: what the run takes the loss for.
    """

    def __init__(self, reduction: str) -> None:
        self.reduction = reduction
        self._looks = 0
        self._told: set[str] = set()
        # The k-th mean of the n-th loss: of how many numbers, and rows.
        self._before: dict[tuple[int, int], tuple[int, int]] = {}

    def look(self, rows: int, *, whole: bool) -> None:
        """Called within a backward pass over ``rows`` rows, which are the ``whole`` of a logical batch or a part."""
        if self._looks >= LOOKS or rows < 1:
            return
        self._looks += 1
        try:
            for number, root in enumerate(_roots()):
                self._look_at(number, root, rows, whole)
        except (AttributeError, RuntimeError, TypeError, KeyError):
            self._looks = LOOKS  # another version of torch: what its nodes say is not known

    def _look_at(self, which: int, root: Any, rows: int, whole: bool) -> None:
        means = []
        for node in _nodes(root):
            kind, number = _reduction(node)
            if kind != MEAN:
                continue
            means.append(number)
            if "NllLoss" in node.name() and _has_class_weights(node):
                self._warn(
                    "class weights",
                    "the mean of a cross entropy with class weights divides by the weights of the batch's classes: one "
                    f"example of a heavy class moves what all others contribute, and epsilon does not hold. {REMEDY}",
                )
        for k, number in enumerate(means):
            was, of = self._before.setdefault((which, k), (number, rows))
            per_row = self.reduction == "mean"
            if number != was and (not per_row or number * of != was * rows):
                self._warn("numbers", self._wrong_mean(per_row))
        if self.reduction != "mean":
            return
        if rows > 1 and any(_is_plain_sum(term, rows) for term in _terms(root)):
            self._warn(
                "sum",
                "the loss is a sum over the examples, and make_private takes it for a mean: gradients are too large by "
                'the number of examples. Give make_private loss_reduction="sum", or call optimizer.backward(losses) '
                "with one loss per example",
            )
        divided = root.next_functions[0][0] if root.name() == "DivBackward0" else None
        if not whole and divided is not None and _reduction(divided)[0] == MEAN:
            self._warn(
                "parts",
                "a mean loss is divided before backward() over a part of a batch: parts are added up, not averaged, "
                "and come out too small against the noise. Call loss.backward() as it is",
            )

    def _wrong_mean(self, per_row: bool) -> str:
        if not per_row:
            return (
                "the loss is a mean over a number that changes with the batch, and make_private takes it for a sum: "
                'one example more makes all others count less. Give make_private loss_reduction="mean" if it is a mean '
                f"over examples. {REMEDY}"
            )
        return (
            "the loss is a mean over a number that is not the same for each example in every batch (tokens of padded "
            "texts, a selection, or [B, 1] against [B]): one example more moves what all others contribute, and "
            f"epsilon does not hold. {REMEDY}"
        )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(message, stacklevel=2)


def _roots() -> Iterator[Any]:
    """The nodes from which the backward pass that is running on this thread started."""
    frame, wanted = sys._getframe(), getattr(torch.autograd.backward, "__code__", None)
    while frame.f_back is not None and frame.f_code is not wanted:
        frame = frame.f_back
    tensors = frame.f_locals.get("tensors", ()) if frame.f_code is wanted else ()
    divided = _is_divided_by_a_trainer(frame)
    for t in (tensors,) if isinstance(tensors, Tensor) else tensors:
        if t.grad_fn is not None and t.dim() == 0:
            yield t.grad_fn.next_functions[0][0] if divided and t.grad_fn.name() == "DivBackward0" else t.grad_fn


def _is_divided_by_a_trainer(frame: Any) -> bool:
    """Lightning divides every loss by the batches that it accumulates: by one, or it is refused (`optim/trainers.py`).

    By how much a loss is divided cannot be seen: when the pass gets to the model, its nodes have let go of numbers.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "") in LIGHTNING:
            return True
        frame = frame.f_back
    return False


def _nodes(root: Any) -> Iterator[Any]:
    """From the loss down to the taps on the model's layers."""
    todo, seen = [root], {root}
    while todo and len(seen) < NODES:
        node = todo.pop()
        yield node
        for below, _ in node.next_functions:
            if below is not None and below not in seen and not below.name().startswith("_Tap"):
                seen.add(below)
                todo.append(below)


def _reduction(node: Any) -> tuple[int | None, int]:
    """MEAN or SUM, and of how many numbers; None for a node that does not reduce to one number."""
    name = node.name()
    if name == "MeanBackward0":
        return MEAN, int(node._saved_self_sym_numel)
    if name == "SumBackward0":
        return SUM, prod(node._saved_self_sym_sizes)
    kind = getattr(node, "_saved_reduction", None)
    if kind not in (MEAN, SUM) or not node.next_functions:
        return None, 0
    below, output = node.next_functions[0]
    shape = tuple(below._input_metadata[output].shape)
    if name.startswith("NllLoss"):  # all but the classes, which are in dimension 1, or 0 of a single example
        return kind, prod(shape) // (shape[1] if len(shape) > 1 else shape[0])
    return kind, prod(shape)


def _has_class_weights(node: Any) -> bool:
    try:
        return node._saved_weight is not None
    except RuntimeError:  # there are some, and the pass has let go of them already
        return True


def _terms(root: Any) -> Iterator[Any]:
    """What the loss is a plain sum of."""
    if root.name() in ("AddBackward0", "SubBackward0"):
        for below, _ in root.next_functions:
            if below is not None:
                yield from _terms(below)
    else:
        yield root


def _is_plain_sum(term: Any, rows: int) -> bool:
    """Whether it adds up something of every example, and nothing below could have divided by their number."""
    kind, number = _reduction(term)
    if kind != SUM or not number or number % rows:
        return False
    return not any(node.name().startswith(("Div", "Mul", "Mean")) for node in _nodes(term))
