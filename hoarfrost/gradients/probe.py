"""Where the examples are: found by running the model on a few of them, before the first batch is trained on.

**Size.** The model runs on two examples and on three, and what changes size counts examples. A dimension that happens
to be as long as the batch (a sequence of 32 tokens in a batch of 32) cannot be mistaken for it this way. A buffer that
such a run changes would carry data out of the step without noise, and is refused.

**Order.** The model runs on some examples, with the first of them replaced, and on the same in reverse. What reaches a
layer, and what comes out of the model, must not change for the others (or examples mix), and must be reversed too (or
norms of different examples would be paired: think of a model that sorts its batch by length).

The runs are made once in each mode, without gradients, and leave the random state and the buffers as they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._pytree import tree_flatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.rules.base import wrong_example_dim
from hoarfrost.nested import map_tensors

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

PROBED_EXAMPLES = 6  # examples whose order is followed through the model
MERGED = -1  # the examples are there, but in one dimension with something else
Place = tuple[nn.Module, str]  # a module, and its input or its output
Check = Callable[[Tensor, Tensor], str | None]
Dims = dict[nn.Module, tuple[int | None, ...]]  # None: the examples share the tensor


@dataclass
class Seen:
    """What reached each module, call by call, in one run: the shapes of its tensors, or the tensors themselves."""

    values: bool = False
    calls: dict[Place, list[tuple[Any, ...]]] = field(default_factory=dict)

    def record(self, module: nn.Module, args: Any, kwargs: Any, kind: str = "input") -> None:
        items = tree_flatten((args, kwargs), is_leaf=lambda item: isinstance(item, PackedSequence))[0]
        if any(isinstance(item, PackedSequence) for item in items):
            items, kind = tree_flatten([_padded(item) for item in items])[0], f"packed {kind}"
        tensors = [item for item in items if isinstance(item, Tensor)]
        found = tuple(t.detach().clone() if self.values else t.shape for t in tensors)
        self.calls.setdefault((module, kind), []).append(found)

    def at(self, place: Place, call: int, order: int) -> Tensor | None:
        """One of the tensors, if this run had it."""
        calls = self.calls.get(place, [])
        return calls[call][order] if call < len(calls) and order < len(calls[call]) else None


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

    def stand_in(self, arguments: Any, rows: int) -> Any:
        """Made-up examples, in so many rows, in place of none."""

        def filled(t: Tensor) -> Tensor:
            dim = self.dim(t)
            if dim is None:
                return t
            # Whole numbers are words, masks or lengths, and a length of 0 is not allowed everywhere.
            fill = 0 if t.is_floating_point() else 1
            return t.new_full([rows if d == dim else size for d, size in enumerate(t.shape)], fill)

        return map_tensors(filled, arguments)


def tensors_in(arguments: Any) -> list[Tensor]:
    """The tensors in a model's arguments that could hold examples."""
    return [item for item in tree_flatten(arguments)[0] if isinstance(item, Tensor) and item.dim()]


def examples_in(tensors: list[Tensor], expected: int | None, batch_first: bool) -> Examples:
    """How many examples a model's tensors hold: as many as the loader drew, or else as the first tensor says."""
    if any(t.is_nested for t in tensors):
        raise NotPrivate(
            "the model is given a nested tensor, whose examples have no dimension that could be followed through the "
            "model. Pad in the collate function (torch.nn.utils.rnn.pad_sequence) and pass lengths or a mask along."
        )
    if not tensors:
        raise NotPrivate(
            "the model was called without a tensor of examples, so gradients cannot be attributed to individual "
            "examples. Pass the batch to the model: a tensor, or a dict, list or tuple of tensors."
        )
    if expected is not None:
        examples = Examples(expected, batch_first)
        if any(examples.dim(t) is not None for t in tensors):
            return examples
    first = tensors[0]
    return Examples(first.shape[0 if batch_first or first.dim() < 2 else 1], batch_first)


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """Those that the model's parameters are on."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


def seed_all(seed: int, devices: Iterable[torch.device] = ()) -> None:
    """Seeds the generators of the CPU and of these devices. `torch.manual_seed` would replace those that others wait
    for: a seed that was given to a GPU nobody has used yet."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    for device in devices:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


@torch.no_grad()
def example_dims(engine: Engine, forward: Callable[..., Any], examples: Examples, arguments: Any) -> Dims:
    """For each module with a rule: the dimension of each of its input tensors that counts examples."""

    def run(index: list[int], *, values: bool = False, seed: int = 0) -> Seen:
        engine.seen, engine.rows = Seen(values), len(index)
        args, kwargs = examples.pick(arguments, index)
        seed_all(seed, devices)
        output = forward(*args, **kwargs)
        engine.seen.record(model, (output,), {}, "output")
        return engine.seen

    views, model = engine.views, engine.model
    training = {module: module.training for module in model.modules()}
    devices = cuda_devices(model)
    rows = examples.rows // views  # spread over the batch, whose neighbours may be alike
    chosen = sorted({round(k * (rows - 1) / max(1, PROBED_EXAMPLES - 1)) for k in range(PROBED_EXAMPLES)})
    some = [example * views + view for example in chosen for view in range(views)]
    replaced = [*some[-views:], *some[views:]]
    python = random.getstate()
    with torch.random.fork_rng(devices=devices):
        try:
            with _unchanged_buffers(model):
                two, three = run([0] * 2 * views), run([0] * 3 * views)
            engine.order = engine.order or _order(two)
            dims = {  # of what ran in both: layers may be left out at random
                place: _counting_dims(engine, place, calls, three.calls[place])
                for place, calls in two.calls.items()
                if len(three.calls.get(place, ())) == len(calls)
            }
            for (module, kind), found in dims.items():
                expected = 0 if getattr(module, "batch_first", True) else 1
                sequences = hasattr(module, "batch_first") and kind == "input"
                if sequences and found[0] not in (None, MERGED):
                    shape = three.calls[module, kind][0][0]
                    if len(shape) != 3 or found[0] != expected:
                        given = f"an input of shape {tuple(shape)} for {3 * views} rows"
                        raise wrong_example_dim(engine.name_of(module), module, given)
            try:
                # The same random numbers in both: where only the first example differs, only its rows may.
                before, after = run(some, values=True), run(replaced, values=True)
                model.eval()  # without dropout, reversed rows can be compared
                straight, again = run(some, values=True), run(some, values=True, seed=1)
                _compare(engine, dims, len(some), _order_unchanged, straight, run(some[::-1], values=True), again)
                _compare(engine, dims, len(some), _others_unchanged(views), before, after)
            except RuntimeError:  # a model may insist on a batch that its collate function has sorted
                pass
        finally:
            engine.seen = None
            random.setstate(python)
            for module, mode in training.items():
                module.training = mode
    return {module: found for (module, kind), found in dims.items() if kind == "input"}


@torch.no_grad()
def look(engine: Engine, forward: Callable[..., Any], rows: int, args: Any, kwargs: Any) -> Any:
    """What the model returns for so many rows of made-up examples; also shows in which order it uses its modules."""
    engine.seen, engine.rows = Seen(False), rows
    try:
        with torch.random.fork_rng(devices=cuda_devices(engine.model)), _unchanged_buffers(engine.model):
            output = forward(*args, **kwargs)
        engine.order = engine.order or _order(engine.seen)
    finally:
        engine.seen = None
    return output


def _order(seen: Seen) -> list[nn.Module]:
    return list(dict.fromkeys(module for module, kind in seen.calls if kind == "input"))


def _others_unchanged(views: int) -> Check:
    """Rows of all examples but the first are as they were."""

    def check(before: Tensor, after: Tensor) -> str | None:
        if _close(before[views:], after[views:]):
            return None
        return (
            "changing one example of the batch changes what is computed here for others, so gradients cannot be "
            "attributed to individual examples. Compute every example from that example alone."
        )

    return check


def _order_unchanged(straight: Tensor, backward: Tensor) -> str | None:
    if _close(straight.flip(0), backward):
        return None
    return (
        "examples are here in another order than in the batch, so gradients of different examples would be added up in "
        "one norm. Sort outside of the model (in the collate function), or let pack_padded_sequence do it with "
        "enforce_sorted=False."
    )


def _compare(
    engine: Engine, dims: dict[Place, Any], rows: int, check: Check, one: Seen, other: Seen, again: Seen | None = None
) -> None:
    """Holds ``check`` against every tensor of examples; those that ``again`` shows to be random are passed over."""
    for place, calls in one.calls.items():
        for number, tensors in enumerate(calls):
            for order, first in enumerate(tensors):
                dim = dims[place][order] if place in dims and order < len(dims[place]) else None
                # Whole numbers beside the input are lengths and offsets, whose values may depend on the place.
                compared = first.is_floating_point() or order == 0
                second = other.at(place, number, order)
                if dim in (None, MERGED) or not compared or second is None:
                    continue
                if first.dim() <= dim or first.shape[dim] != rows:
                    continue
                repeated = first if again is None else again.at(place, number, order)
                if first.shape != second.shape or repeated is None or not _close(first, repeated):
                    continue
                problem = check(first.movedim(dim, 0), second.movedim(dim, 0))
                if problem is not None:
                    module, kind = place
                    raise NotPrivate(f"{engine.name_of(module)} ({type(module).__name__}), its {kind}: {problem}")


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


def _counting_dims(engine: Engine, place: Place, with_two: Any, with_three: Any) -> tuple[int | None, ...]:
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
            f"{engine.name_of(place[0])} ({type(place[0]).__name__}) is called several times with the examples in "
            "different dimensions. Keep them in the same dimension at every call."
        )
    return longest
