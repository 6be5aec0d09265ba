"""What is looked at before the backward passes of a run: hooks on what the model returned, and the graph of the loss.

In the first passes alone, and in a few later ones: what the model returned is kept until its pass comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hoarfrost.gradients import before_backward, meeting, output_hooks, probe
from hoarfrost.gradients.loss_graph import LossGraph, nodes_of
from hoarfrost.gradients.outside import Outside
from hoarfrost.groups import Groups

if TYPE_CHECKING:
    from hoarfrost.gradients.batch_sums import Run
    from hoarfrost.gradients.engine import Engine

PASSES = 16  # whose numbers are compared
CLOSELY = 3  # of which the loss is differentiated once more


@dataclass
class Returned:
    """What a run of the model returned, and is looked at when its backward pass comes.

    Args:
        number: of the run.
        whole: it was on the whole of a logical batch.
        outputs: its tensors that a gradient can come through.
        dims: which dimension of each counts rows; None where it is not known, or none does.
        inputs: what the model ran on, where somebody's graph is below it.
    """

    number: int
    rows: int
    groups: Groups
    whole: bool
    outputs: list[Tensor]
    dims: list[int | None]
    inputs: list[Tensor]


class LossWatch:
    """Looks at a run's backward passes before they begin."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.graph = LossGraph(engine.loss_reduction)
        self.outside = Outside()
        self._runs = 0
        self._returned: Returned | None = None
        before_backward.tell(self)

    def ran(self, run: Run, rows: int, tensors: Sequence[Tensor], output: Any) -> None:
        """The model has run on ``tensors``."""
        self._runs += 1
        self._returned = None
        engine, ticket = self.engine, self.engine.sums.ticket
        if not (self._runs <= PASSES or _is_power_of_ten(self._runs) or self.outside.stepping) or ticket is None:
            return
        if not any(p.requires_grad for p in engine.trained):
            return  # it is passed through, as by a GAN's generator
        found = [t for t in probe.leaves(output) if isinstance(t, Tensor)]
        known = engine.prober.outputs if len(engine.prober.outputs) == len(found) else [None] * len(found)
        some = [(t, _dim(t, dim, rows)) for t, dim in zip(found, known, strict=True) if t.grad_fn is not None]
        chunk = ticket.chunk
        self._returned = Returned(
            self._runs, rows, run.groups,
            whole=chunk.first and chunk.last and rows == chunk.rows(engine.views),
            outputs=[t for t, _ in some], dims=[dim for _, dim in some],
            inputs=[t for t in tensors if t.grad_fn is not None],
        )  # fmt: skip

    def hooks_aside(self) -> output_hooks.Aside:
        """While it is entered, hooks on what the model returned last are not called."""
        return output_hooks.Aside([] if self._returned is None else self._returned.outputs)

    def before(self, tensors: Sequence[Tensor], weights: Any, *, everywhere: bool) -> Callable[[], None] | None:
        """A backward pass is about to start from ``tensors``."""
        self.outside.forget_zeros()
        returned = self._returned
        if returned is None or not everywhere:
            return None
        roots = [t for t in tensors if t.grad_fn is not None]
        nodes, ends = nodes_of([t.grad_fn for t in roots]), {t.grad_fn for t in returned.outputs}
        if ends.isdisjoint(nodes):
            return None  # somebody else's loss
        for t, dim in zip(returned.outputs, returned.dims, strict=True):
            if dim is not None:
                output_hooks.watch(t, dim, returned.groups, returned.rows)
        if not self.engine.adding_up:
            if returned.number <= CLOSELY or _is_power_of_ten(returned.number):
                meeting.refuse(self.engine, tensors, weights, returned)
            if self._runs <= PASSES:
                self.graph.look(roots, returned.rows, whole=returned.whole)
        leaves = self.outside.leaves(nodes, returned.inputs, returned.rows)
        self._returned = None  # what it holds can go when the pass is over
        return lambda: self.outside.mark(leaves)


def _dim(t: Tensor, dim: int | None, rows: int) -> int | None:
    return dim if dim is not None and 0 <= dim < t.dim() and t.shape[dim] == rows else None


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"
