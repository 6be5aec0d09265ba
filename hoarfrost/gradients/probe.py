"""Where the examples are: found by running the model on a few of them, before the first batch is trained on.

**Size.** The model runs on two examples and on three, and what changes size counts examples. A dimension that happens
to be as long as the batch (a sequence of 32 tokens in a batch of 32) cannot be mistaken for it this way. A buffer that
such a run changes would carry data out of the step without noise, and is refused.

**Order.** The model runs on some examples, on the same in reverse, and with the first of them replaced. What reaches a
layer must be reversed too (or norms of different examples would be paired: think of a model that sorts its batch by
length), and must not change for the others (or examples mix). Layers that see random numbers are passed over.

The runs are made once, without gradients, and leave the random state and the buffers as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._pytree import tree_flatten, tree_map

from hoarfrost.errors import NotPrivate
from hoarfrost.nested import map_tensors

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

ORDERED = 4  # examples whose order is followed through the model
MERGED = -1  # the examples are there, but in one dimension with something else
Dims = dict[nn.Module, tuple[int | None, ...]]  # None: the examples share the tensor


@dataclass
class Seen:
    """What reached each module, call by call, in one run: the shapes of its tensors, or the tensors themselves."""

    values: bool = False
    calls: dict[nn.Module, list[tuple[Any, ...]]] = field(default_factory=dict)

    def record(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if self.values:
            args, kwargs = tree_map(_padded, (args, kwargs), is_leaf=lambda x: isinstance(x, PackedSequence))
        tensors = [item for item in tree_flatten((args, kwargs))[0] if isinstance(item, Tensor)]
        found = tuple(t.detach().clone() if self.values else t.shape for t in tensors)
        self.calls.setdefault(module, []).append(found)


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
        """One made-up example, in ``views`` rows, in place of none."""

        def filled(t: Tensor) -> Tensor:
            dim = self.dim(t)
            if dim is None:
                return t
            # Whole numbers are words, masks or lengths, and a length of 0 is not allowed everywhere.
            fill = 0 if t.is_floating_point() else 1
            return t.new_full([views if d == dim else size for d, size in enumerate(t.shape)], fill)

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

    def run(index: list[int], *, values: bool = False, seed: int = 0) -> Seen:
        engine.seen, engine.rows = Seen(values), len(index)
        args, kwargs = examples.pick(arguments, index)
        torch.manual_seed(seed)
        forward(*args, **kwargs)
        return engine.seen

    views, model = engine.views, engine.model
    training = {module: module.training for module in model.modules()}
    devices = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            with _unchanged_buffers(model):
                two, three = run([0] * 2 * views), run([0] * 3 * views)
            model.eval()  # without dropout, what reaches a layer can be compared
            some = list(range(min(examples.rows, ORDERED * views)))
            replaced = [some[-1], *some[1:]]
            straight, again = run(some, values=True), run(some, values=True, seed=1)
            try:
                backward, changed = run(some[::-1], values=True), run(replaced, values=True)
            except RuntimeError:  # a model may insist on a batch that its collate function has sorted
                backward = changed = Seen()
        finally:
            engine.seen = None
            for module, mode in training.items():
                module.training = mode
    dims = {module: _moving(engine, module, calls, three.calls[module]) for module, calls in two.calls.items()}
    for module, calls in straight.calls.items():
        others = (again.calls.get(module), backward.calls.get(module), changed.calls.get(module))
        for call in zip(calls, *(other or () for other in others), strict=False):
            _in_order(engine, module, call, dims.get(module, ()), len(some), replaced == some)
    return dims


def _in_order(engine: Engine, module: nn.Module, call: Any, dims: Any, rows: int, unreplaced: bool) -> None:
    for order, (straight, again, backward, changed) in enumerate(zip(*call, strict=False)):
        dim = dims[order] if order < len(dims) else None
        if dim == MERGED:
            dim = 0  # of a packed sequence, which was padded to be compared
        if dim is None or straight.dim() <= dim or straight.shape[dim] != rows:
            continue
        # Whole numbers beside the input are lengths and offsets, whose values may depend on the place.
        compared = straight.is_floating_point() or order == 0
        if not compared or not straight.shape == again.shape == backward.shape == changed.shape:
            continue
        if not _close(straight, again):
            continue
        kind = f"{engine.name_of(module)} ({type(module).__name__})"
        if not _close(straight.flip(dim), backward):
            raise NotPrivate(
                f"{kind}: examples reach this layer in another order than they have in the batch, so the norms of "
                "different examples would be taken for one. Sort outside of the model (in the collate function), or "
                "let pack_padded_sequence do it with enforce_sorted=False."
            )
        rest = slice(1, None)
        if not unreplaced and not _close(straight.movedim(dim, 0)[rest], changed.movedim(dim, 0)[rest]):
            raise NotPrivate(
                f"{kind}: changing one example of the batch changes what reaches this layer for others, so no "
                "example's gradient is its own. Let every example be computed from itself alone."
            )


def _close(a: Tensor, b: Tensor) -> bool:
    if not a.is_floating_point():
        return torch.equal(a, b)
    size = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 1.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-3 * size, equal_nan=True)


def _padded(item: Any) -> Any:
    """A packed sequence with its examples in the order before packing, one a row; anything else as it is."""
    return (pad_packed_sequence(item, batch_first=True)[0], *item[1:]) if isinstance(item, PackedSequence) else item


@contextmanager
def _unchanged_buffers(model: nn.Module) -> Iterator[None]:
    """Puts back what the block changes in the model's buffers, and refuses the model if there was anything."""
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    changed = []
    try:
        yield
    finally:
        for name, b in model.named_buffers():
            if name in buffers and not (b.shape == buffers[name].shape and torch.equal(b, buffers[name])):
                changed.append(name)
                b.copy_(buffers[name])
    if changed:
        raise NotPrivate(
            f"the buffer {changed[0]} changes when the model runs: it would carry data out of the step without noise. "
            "Replace the module that keeps it by one without running statistics."
        )


def _moving(engine: Engine, module: nn.Module, with_two: Any, with_three: Any) -> tuple[int | None, ...]:
    found: list[tuple[int | None, ...]] = []
    for call_two, call_three in zip(with_two, with_three, strict=True):
        dims: list[int | None] = []
        for two, three in zip(call_two, call_three, strict=True):
            moved = [dim for dim, sizes in enumerate(zip(two, three, strict=True)) if sizes[0] != sizes[1]]
            counted = len(moved) == 1 and (two[moved[0]], three[moved[0]]) == (2 * engine.views, 3 * engine.views)
            dims.append(None if not moved else moved[0] if counted else MERGED)
        found.append(tuple(dims))
    longest = max(found, key=len)
    if any(dims != longest[: len(dims)] for dims in found):
        raise NotPrivate(
            f"{engine.name_of(module)} ({type(module).__name__}) is called several times with the examples in "
            "different places. Keep them in the same dimension at every call."
        )
    return longest
