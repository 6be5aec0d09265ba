"""Leaves beside a private model that its backward passes bring a gradient: of private examples, and without noise.

A gradient there does no harm as long as nobody uses it. So it is marked, and found again when an optimizer steps over
it (`hoarfrost.optim.other_optimizers`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from hoarfrost.gradients.in_front import refuse_batch_norm

ACCUMULATE = "torch::autograd::AccumulateGrad"


class Outside:
    """Knows which gradients of leaves outside of the model come from passes through it."""

    def __init__(self) -> None:
        self.stepping = False  # another optimizer was seen to step: every pass is looked at from now on
        self._marked: list[tuple[weakref.ref[Tensor], weakref.ref[Tensor]]] = []  # leaves, and their gradients

    def leaves(self, nodes: Iterable[Any], rows: int, *, onward: bool) -> list[Tensor]:
        """The leaves of a loss's own ``nodes``, and where the graph goes ``onward``, those below the model.

        A plain tensor with a row for each example (the shift of an adversarial example) is an input, nothing trained.
        """
        found = set(nodes)
        todo = list(found) if onward else []
        while todo:
            below = {node for node, _ in todo.pop().next_functions if node is not None} - found
            found |= below
            todo += below
        refuse_batch_norm(found if onward else ())
        leaves = [node.variable for node in found if node.name() == ACCUMULATE]
        return [t for t in leaves if isinstance(t, nn.Parameter) or not (t.dim() and t.shape[0] == rows)]

    def mark(self, leaves: Iterable[Tensor]) -> None:
        """A pass has brought these leaves their gradients."""
        marked = [(leaf, gradient) for leaf, gradient in self._marked if _is_there(leaf, gradient)]
        known = {id(leaf()) for leaf, _ in marked}
        new = [(leaf, leaf.grad) for leaf in leaves if id(leaf) not in known]
        self._marked = marked + [(weakref.ref(leaf), weakref.ref(g)) for leaf, g in new if g is not None]

    def forget_zeros(self) -> None:
        """Gradients that were set to zero since, and not to None: what comes next is another pass's."""
        there = [(leaf, gradient, gradient()) for leaf, gradient in self._marked if _is_there(leaf, gradient)]
        self._marked = [(leaf, gradient) for leaf, gradient, g in there if g is not None and bool(g.any())]

    def of_private_examples(self, leaves: Iterable[Tensor]) -> Tensor | None:
        """One of these whose gradient is marked."""
        marked = {id(leaf()) for leaf, gradient in self._marked if _is_there(leaf, gradient)}
        return next((leaf for leaf in leaves if id(leaf) in marked), None)


def _is_there(leaf: weakref.ref[Tensor], gradient: weakref.ref[Tensor]) -> bool:
    """Whether the leaf still has that very gradient."""
    found = leaf()
    return found is not None and found.grad is not None and found.grad is gradient()
