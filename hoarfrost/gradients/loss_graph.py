"""What the graph of a plain `loss.backward()` tells for free: over what its loss was averaged or added up.

The loss is the user's code, and nobody sees it run. But its nodes are in the autograd graph, above those of the model,
and say what kind of reduction they are, of how many numbers, and what is divided by what. Read before the first passes
of a run begin (`loss_watch`), as long as nodes have what they saved.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from math import isclose, prod
from typing import Any

import torch
from torch import Tensor

NODES = 300  # of a loss; more are a model without taps
LAST, LOSSES = 12, 32  # operations by which a loss is known, and losses that are
MEAN, SUM = 1, 2  # torch's numbers for reductions
# Which example is the largest, or the k-th, others decide; what becomes of the rest of the batch, too.
CHOICES = ("Sort", "Topk", "Kthvalue", "Median", "Max", "Min", "Amax", "Amin", "Aminmax")
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
        self._told: set[str] = set()
        # The k-th mean of a loss, and its k-th sum that is divided: by which numbers, and of how many rows. A loss is
        # known by its reductions: a loop may have several.
        self._means: dict[tuple[str, int], tuple[float, int]] = {}
        self._sums: dict[tuple[str, int], tuple[tuple[float, ...], int]] = {}

    def look(self, roots: Sequence[Tensor], rows: int, *, whole: bool) -> None:
        """Called before a backward pass over ``rows`` rows, which are the ``whole`` of a logical batch or a part."""
        try:
            for root in roots:
                if root.dim() == 0 and root.grad_fn is not None:
                    self._look_at(root.grad_fn, rows, whole)
        except (AttributeError, RuntimeError, TypeError, KeyError):
            pass  # another version of torch: what its nodes say is not known

    def tell_of_the_unseen(self, nodes: Iterable[Any]) -> None:
        """Something in the loss cannot be differentiated twice."""
        if any(_is_of_one_example(node) for node in nodes):
            return
        self._warn(
            "unseen",
            "whether examples meet in this loss cannot be seen, since something in it cannot be differentiated twice "
            "(torch.cdist, a compiled function): if one example's loss depends on others (the hardest "
            "negative of a batch, a mean over it), epsilon does not hold. make_private(..., loss=fn) or "
            f"hoarfrost.check_independence tries it on real examples. {REMEDY}",
        )

    def _look_at(self, root: Any, rows: int, whole: bool) -> None:
        which = " ".join(node.name() for node in _nodes(root) if _reduction(node)[0] is not None)
        means = []
        for node in _nodes(root):
            if rows > 1 and (_chooses(node, rows) or _picks(node, rows)):
                self._warn(
                    "choice",
                    "the loss sorts examples, or takes the largest of the batch: which of them count, and how much, is "
                    "decided by other examples, and epsilon does not hold. Weigh each example by its own loss, with a "
                    f"threshold that is fixed beforehand. {REMEDY}",
                )
            kind, number = _reduction(node)
            if kind != MEAN:
                continue
            if "NllLoss" in node.name() and node._saved_weight is not None:
                self._warn(
                    "class weights",
                    "the mean of a cross entropy with class weights divides by the weights of the batch's classes: one "
                    f"example of a heavy class moves what all others contribute, and epsilon does not hold. {REMEDY}",
                )
            else:
                means.append(number)
        per_row = self.reduction == "mean"
        for k, number in enumerate(means):
            was, of = self._means.setdefault((which, k), (number, rows))
            if not isclose(number, was) and not (per_row and isclose(number * of, was * rows)):
                self._warn("numbers", self._wrong_mean(per_row))
        self._look_at_quotients(which, root, rows, per_row)
        if not per_row:
            return
        if rows > 1 and any(_is_plain_sum(term, rows) for term in _terms(root)):
            self._warn(
                "sum",
                "the loss is a sum over the examples, and make_private takes it for a mean: gradients are too large by "
                'the number of examples. Give make_private loss_reduction="sum", or call optimizer.backward(losses) '
                "with one loss per example",
            )
        node, divisor = root, 1.0
        while node is not None and node.name() == "DivBackward0":
            node, divisor = node.next_functions[0][0], divisor * float(node._saved_other)
        # Not by one: as Lightning does with every loss, for the batches that it accumulates.
        if not whole and node is not None and divisor != 1 and _reduction(node)[0] == MEAN:
            self._warn(
                "parts",
                "a mean loss is divided before backward() over a part of a batch: parts are added up, not averaged, "
                "and come out too small against the noise. Call loss.backward() as it is",
            )

    def _look_at_quotients(self, which: str, root: Any, rows: int, per_row: bool) -> None:
        """A sum that is divided is a mean, and one of its divisors goes with the number of rows."""
        for k, (total, divisors) in enumerate(_quotients(root, ())):
            was, of = self._sums.setdefault((which, k), (divisors, rows))
            if len(was) != len(divisors):
                continue
            same = all(isclose(d, before) for d, before in zip(divisors, was, strict=True))
            if per_row:
                goes = any(isclose(d * of, before * rows) for d, before in zip(divisors, was, strict=True))
                # The same number for every batch: unless something below has divided by the rows already.
                wrong = not goes and (not same or _is_plain_sum(total, rows))
            else:
                wrong = not same and all(d == int(d) for d in divisors)
            if wrong:
                self._warn("numbers", self._wrong_mean(per_row))

    def _wrong_mean(self, per_row: bool) -> str:
        if not per_row:
            return (
                "the loss is a mean over a number that changes with the batch, and make_private takes it for a sum: "
                'one example more makes all others count less. Give make_private loss_reduction="mean" if it is a mean '
                f"over examples. {REMEDY}"
            )
        return (
            "the loss is a mean over a number that is not the same for each example in every batch (tokens of padded "
            "texts, a selection, weights that are added up, or [B, 1] against [B]; or a sum that is divided by a "
            "constant): one example more moves what all others contribute, and epsilon does not hold. " + REMEDY
        )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            warnings.warn(message, stacklevel=8)  # the line that calls loss.backward()


class Start:
    """Where a backward pass starts, and what is read of the graph from there."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = tensors

    @cached_property
    def signature(self) -> tuple[str, ...]:
        return _signature(self.tensors)

    @cached_property
    def nodes(self) -> set[Any]:
        return nodes_of(self.tensors)

    @cached_property
    def noted(self) -> set[Any]:
        """The nodes on which something is written: what a model returned, and taps."""
        return {node for node in self.nodes if node.metadata}


class Kinds:
    """The losses that were met, each known by its last operations."""

    def __init__(self) -> None:
        self._known: set[tuple[str, ...]] = set()

    def is_new(self, start: Start) -> bool:
        """Whether a loss ends in other operations than those before it; a program that makes ever others is let be."""
        if start.signature in self._known or len(self._known) >= LOSSES:
            return False
        self._known.add(start.signature)
        return True


def _signature(tensors: Sequence[Tensor]) -> tuple[str, ...]:
    """What the last few operations of a loss are: cheap enough to be asked before every pass."""
    todo: list[Any] = [t.grad_fn for t in tensors if t.grad_fn is not None]
    found: list[str] = []
    for node in todo:
        found.append(node.name())
        if len(todo) < LAST and not found[-1].startswith("_Tap"):
            todo += [below for below, _ in node.next_functions if below is not None]
    return tuple(found)


def nodes_of(tensors: Sequence[Tensor]) -> set[Any]:
    """The nodes of a loss, and the taps on the model's layers at which it ends."""
    roots = [t.grad_fn for t in tensors if t.grad_fn is not None]
    found: set[Any] = set(roots)
    for root in roots:
        for node in _nodes(root):
            found.add(node)
            found.update(below for below, _ in node.next_functions if below is not None)
    return found


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


def _shape(node: Any) -> tuple[int, ...]:
    """Of what the node computed."""
    return tuple(node._input_metadata[0].shape)


def _reduction(node: Any) -> tuple[int | None, float]:
    """MEAN or SUM, and of how many numbers; None for a node that does not reduce to one number."""
    name = node.name()
    if name.startswith(("MeanBackward", "SumBackward")):
        numbers = prod(node._saved_self_sym_sizes)
        return (MEAN if name[0] == "M" else SUM, numbers) if _shape(node) == () else (None, 0)
    kind = getattr(node, "_saved_reduction", None)
    if kind not in (MEAN, SUM) or not node.next_functions:
        return None, 0
    if name.startswith("NllLoss"):  # what is ignored, and what has a weight, is not seen from shapes
        return kind, float(node._saved_total_weight) if kind == MEAN else 1
    below, output = node.next_functions[0]
    return kind, prod(tuple(below._input_metadata[output].shape))


def _is_of_one_example(node: Any) -> bool:
    """Whether it is known that it cannot be differentiated twice, and that no examples meet in it."""
    name = node.name()
    if name == "CdistBackward0":  # distances to what has no gradient
        return sum(below is not None for below, _ in node.next_functions) < 2
    return bool(name.startswith("CtcLoss"))


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
    if kind != SUM or not number or (number % rows and not term.name().startswith("NllLoss")):
        return False
    return not any(node.name().startswith(("Div", "Mul", "Mean")) for node in _nodes(term))


def _quotients(node: Any, divisors: tuple[float, ...]) -> Iterator[tuple[Any, tuple[float, ...]]]:
    """The sums of which the loss is a sum, each with the numbers that it is divided by, if there are some."""
    name = node.name()
    if _reduction(node)[0] == SUM or name == "DotBackward0":
        if divisors:
            yield node, divisors
        return
    below = [each for each, _ in node.next_functions if each is not None]
    if name == "DivBackward0" and node.next_functions[1][0] is None and node._saved_other.numel() == 1:
        divisors = (*divisors, float(node._saved_other))
    elif name not in ("AddBackward0", "SubBackward0", "NegBackward0", "MulBackward0", "StackBackward0"):
        return
    for each in below:
        yield from _quotients(each, divisors)


def _chooses(node: Any, rows: int) -> bool:
    """Whether it sorts examples or picks some, of numbers of which each example has one, or of all numbers."""
    if not node.name().startswith(tuple(f"{name}Backward" for name in CHOICES)) or not _comes_from_the_model(node):
        return False
    below, output = node.next_functions[0]
    numbers, left = prod(below._input_metadata[output].shape), prod(_shape(node))
    one_each = numbers == rows and (left < rows or node.name().startswith("Sort"))
    return one_each or (left == 1 and numbers % rows == 0)


def _picks(node: Any, rows: int) -> bool:
    """Whether it takes some examples by their numbers, in another order: they were compared with each other."""
    if not node.name().startswith(("IndexBackward", "IndexSelectBackward", "GatherBackward")):
        return False
    below, output = node.next_functions[0]
    along = node._saved_dim if hasattr(node, "_saved_dim") else 0
    if along or tuple(below._input_metadata[output].shape)[:1] != (rows,):
        return False
    index = node._saved_indices[0] if hasattr(node, "_saved_indices") else node._saved_index
    if index is None or index.dim() != 1 or index.dtype in (torch.bool, torch.uint8) or not 1 < len(index) < rows:
        return False
    return not bool((index.diff() > 0).all()) and _comes_from_the_model(node)


def _comes_from_the_model(node: Any) -> bool:
    """Whether taps are below it, and not leaves alone."""
    ends = (below for each in _nodes(node) for below, _ in each.next_functions)
    return any(below is not None and below.name().startswith("_Tap") for below in ends)
