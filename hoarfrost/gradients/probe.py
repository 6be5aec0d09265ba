"""Where the examples are: found by running the model on two examples and on three, and seeing what changes size.

A dimension that happens to be as long as the batch (a sequence of 32 tokens in a batch of 32) cannot be mistaken for
the examples this way. The runs are made once, without gradients, and leave the random state and the buffers as they
were; a buffer that such a run changes would carry data out of the step without noise, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

MERGED = -1  # the examples are there, but in one dimension with something else
Dims = dict[nn.Module, tuple[int | None, ...]]  # None: the examples share the tensor


@dataclass
class Shapes:
    """The shapes of each module's input tensors, call by call, in one run."""

    calls: dict[nn.Module, list[tuple[torch.Size, ...]]] = field(default_factory=dict)

    def record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        shapes = tuple(item.shape for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor))
        self.calls.setdefault(module, []).append(shapes)


@dataclass
class Examples:
    """The examples in a model's arguments."""

    rows: int
    batch_first: bool

    def dim(self, t: Tensor) -> int | None:
        """The dimension of ``t`` that counts them, if one does."""
        dim = 0 if self.batch_first or t.dim() < 2 else 1
        return dim if t.dim() > dim and t.shape[dim] == self.rows else None

    def pick(self, arguments: Any, index: list[int]) -> Any:
        """The arguments with the examples of ``index`` only."""

        def picked(t: Tensor) -> Tensor:
            dim = self.dim(t)
            return t if dim is None else t.index_select(dim, torch.tensor(index, device=t.device))

        return map_tensors(picked, arguments)

    def stand_in(self, arguments: Any, views: int) -> Any:
        """One made-up example of zeros, in ``views`` rows, in place of none."""

        def filled(t: Tensor) -> Tensor:
            dim = self.dim(t)
            return t if dim is None else t.new_zeros([views if d == dim else size for d, size in enumerate(t.shape)])

        return map_tensors(filled, arguments)


def examples_in(arguments: Any, expected: int | None, batch_first: bool) -> Examples:
    """How many examples the arguments hold: as many as the loader drew, or else as the first tensor says."""
    tensors = [item for item in tree_flatten(arguments)[0] if isinstance(item, Tensor) and item.dim()]
    if not tensors:
        raise NotPrivate("the model was called without a tensor of examples, so its batch cannot be told by example.")
    if expected is not None:
        examples = Examples(expected, batch_first)
        if any(examples.dim(t) is not None for t in tensors):
            return examples
    first = tensors[0]
    return Examples(first.shape[0 if batch_first or first.dim() < 2 else 1], batch_first)


@torch.no_grad()
def example_dims(engine: Engine, forward: Callable[..., Any], examples: Examples, arguments: Any) -> Dims:
    """For each module with a rule: the dimension of each of its input tensors that counts examples."""
    model = engine.model
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    devices = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    runs = []
    try:
        with torch.random.fork_rng(devices=devices):
            for rows in (2 * engine.views, 3 * engine.views):
                engine.shapes, engine.rows = Shapes(), rows
                args, kwargs = examples.pick(arguments, [0] * rows)
                forward(*args, **kwargs)
                runs.append(engine.shapes)
    finally:
        engine.shapes = None
        changed = [name for name, b in model.named_buffers() if name in buffers and not _same(b, buffers[name])]
        for name in changed:
            model.get_buffer(name).copy_(buffers[name])
    if changed:
        raise NotPrivate(
            f"the buffer {changed[0]} changes when the model runs: it would carry data out of the step without noise. "
            "Replace the module that keeps it by one without running statistics."
        )
    return {module: _moving(engine, module, calls, runs[1].calls[module]) for module, calls in runs[0].calls.items()}


def _moving(engine: Engine, module: nn.Module, with_two: Any, with_three: Any) -> tuple[int | None, ...]:
    found = set()
    for call_two, call_three in zip(with_two, with_three, strict=True):
        dims: list[int | None] = []
        for two, three in zip(call_two, call_three, strict=True):
            moved = [dim for dim, sizes in enumerate(zip(two, three, strict=True)) if sizes[0] != sizes[1]]
            counted = len(moved) == 1 and (two[moved[0]], three[moved[0]]) == (2 * engine.views, 3 * engine.views)
            dims.append(None if not moved else moved[0] if counted else MERGED)
        found.add(tuple(dims))
    if len(found) > 1:
        raise NotPrivate(
            f"{engine.name_of(module)} ({type(module).__name__}) is called several times with the examples in "
            "different places. Keep them in the same dimension at every call."
        )
    return found.pop()


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)
