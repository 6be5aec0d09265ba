"""What is looked at before the backward passes of a run: hooks on what the model returned, and the graph of the loss.

In the first passes alone, and in a few later ones. What is known of a run's outputs is written on their nodes in the
graph: a run without a backward pass leaves nothing behind.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.autograd.graph import GradientEdge

from hoarfrost.gradients import before_backward, kinks, output_hooks, probe, second_derivatives
from hoarfrost.gradients.loss_graph import Kinds, LossGraph, Start, nodes_of
from hoarfrost.gradients.outside import Outside
from hoarfrost.gradients.tap import noted_rows
from hoarfrost.groups import Groups

if TYPE_CHECKING:
    from hoarfrost.gradients.batch_sums import Run
    from hoarfrost.gradients.engine import Engine

PASSES = 16  # whose numbers are compared
CLOSELY = 3  # of which the loss is differentiated once more
KEY = "hoarfrost"  # of what is written on a node


@dataclass(frozen=True, eq=False)
class Returned:
    """A run of the model.

    Args:
        number: how many there were before it, and it.
        whole: it was on the whole of a logical batch.
        onward: somebody's graph is below what the model ran on.
    """

    number: int
    rows: int
    groups: Groups
    whole: bool
    onward: bool


@dataclass(frozen=True, eq=False)
class Output:
    """A tensor that a run returned, and that a gradient can come through.

    Args:
        of: that run.
        place: which output of its node it is.
        dim: counts its rows; None where that is not known, or none does.
        tensor: as long as anybody has it.
        hooks: those on it, whether or not anybody has it.
    """

    of: Returned
    place: int
    dim: int | None
    tensor: weakref.ref[Tensor]
    hooks: dict[int, Any]


class LossWatch:
    """Looks at a run's backward passes before they begin."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.graph = LossGraph(engine.loss_reduction)
        self.outside = Outside()
        self.examined = False  # on real examples (make_private(loss=)): there is nothing to say of what cannot be seen
        self._runs = 0
        self._last: tuple[Run, int] | None = None  # the last run, and its rows
        self._looking: Returned | None = None  # the same, if its backward pass is looked at
        self._kinds = Kinds()
        before_backward.tell(self)

    @property
    def beginning(self) -> bool:
        """Whether the coming run is one of the first."""
        return self._runs < PASSES

    def forget(self) -> None:
        """The model is about to run; on an empty batch there is nothing to look at."""
        self._looking, self._last = None, None

    def ran(self, run: Run, rows: int, output: Any) -> None:
        """The model has run, and returns ``output``."""
        self._runs += 1
        self._looking, self._last = None, (run, rows)
        ticket = self.engine.sums.ticket
        if not (self._runs <= PASSES or _is_power_of_ten(self._runs) or self.outside.stepping) or ticket is None:
            return
        if not self._trains():
            return  # it is passed through, as by a GAN's generator
        engine, self._looking = self.engine, self._returned(run, rows)
        found = [t for t in probe.leaves(output) if isinstance(t, Tensor)]
        known = engine.prober.outputs if len(engine.prober.outputs) == len(found) else [None] * len(found)
        for t, dim in zip(found, known, strict=True):
            if t.grad_fn is not None:
                t.register_hook(_nothing).remove()  # a hook that the loop puts there is found by what this has made
                counted = dim if dim is not None and 0 <= dim < t.dim() and t.shape[dim] == rows else None
                assert t._backward_hooks is not None
                noted = Output(self._looking, t.output_nr, counted, weakref.ref(t), t._backward_hooks)
                node: Any = t.grad_fn
                node.metadata[KEY] = [*_written_on(node), noted]

    def _returned(self, run: Run, rows: int) -> Returned:
        ticket = self.engine.sums.ticket
        chunk = None if ticket is None else ticket.chunk
        whole = chunk is not None and chunk.first and chunk.last and rows == chunk.rows(self.engine.views)
        return Returned(self._runs, rows, run.groups, whole, run.onward)

    def hooks_aside(self, tensors: Sequence[Tensor]) -> output_hooks.Aside:
        """While it is entered, hooks on the outputs from which ``tensors`` were computed are not called."""
        found = [each for node in nodes_of(tensors) for each in _written_on(node)] if self._looking else []
        return output_hooks.Aside([each.hooks for each in found], [each.tensor() for each in found])

    def before(self, start: Start, weights: Any, *, everywhere: bool) -> Callable[[], None] | None:
        """A backward pass is about to start."""
        if not (everywhere and self._trains()):
            self.outside.forget_zeros()
        if not everywhere or self._last is None:
            return None
        new = self._kinds.is_new(start)
        if self._looking is None and new and self._trains():  # a term that begins later
            self._looking = self._returned(*self._last)
        if self._looking is None:
            return None
        of = self._looking
        outputs = [(node, each) for node in start.noted for each in _written_on(node) if each.of is of]
        layers = self._layers(start.noted - {node for node, _ in outputs}, of.rows)
        if not outputs and not layers:
            return None  # somebody else's loss
        tensors, nodes = start.tensors, start.nodes
        self.engine.refuse_other_hooks()
        counted = [(node, each, each.dim) for node, each in outputs if each.dim is not None]
        for _, each, dim in counted:
            output_hooks.watch(each.hooks, dim, of.groups, of.rows)
        if not self.engine.adding_up:
            if of.number <= CLOSELY or new or _is_power_of_ten(of.number):
                edges = [(GradientEdge(node, each.place), dim) for node, each, dim in counted]
                seen = second_derivatives.refuse(self.engine, tensors, weights, edges, of)
                if layers:  # features that a loss takes out of the model: attributes, hooks
                    second_derivatives.refuse(self.engine, tensors, weights, [*edges, *layers], of)
                kinks.refuse(self.engine, tensors, [*edges, *layers], of)
                if not seen and not self.examined:
                    self.graph.tell_of_the_unseen(nodes)
            if of.number <= PASSES or new:
                self.graph.look(tensors, of.rows, whole=of.whole)
        self._looking = None
        leaves = self.outside.leaves(nodes, of.rows, onward=of.onward)
        return lambda: self.outside.mark(leaves)

    def _layers(self, nodes: set[Any], rows: int) -> list[second_derivatives.Counted]:
        """Layers of the model at which the graph of a loss ends, though the model did not return what they computed."""
        dims = [(node, noted_rows(node, self.engine.anchor)) for node in nodes]
        return [
            (GradientEdge(node, 0), dim)
            for node, dim in dims
            if dim is not None and tuple(node._input_metadata[0].shape)[dim : dim + 1] == (rows,)
        ]

    def _trains(self) -> bool:
        return any(p.requires_grad for p in self.engine.trained)


def _written_on(node: Any) -> list[Output]:
    written: list[Output] = node.metadata.get(KEY, [])
    return written


def _nothing(_: Tensor) -> None:
    """A hook."""


def _is_power_of_ten(number: int) -> bool:
    return str(number).strip("0") == "1"
