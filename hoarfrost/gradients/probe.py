"""Where the examples are: found by running the model on a few of them, before the first batch is trained on.

The model runs on two examples and on three, and what changes size counts examples. A dimension that happens to be as
long as the batch (a sequence of 32 tokens in a batch of 32) cannot be mistaken for it this way. What else these
examples show, `hoarfrost.gradients.mixing` looks at.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils._pytree import tree_flatten
from torch.utils.checkpoint import CheckpointFunction

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.arguments import Examples
from hoarfrost.gradients.rules.base import wrong_example_dim
from hoarfrost.gradients.sites import Sizes
from hoarfrost.kept import random_states_held as random_states_held
from hoarfrost.kept import version
from hoarfrost.nested import parts

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

MERGED = -1  # the examples are there, but in one dimension with something else
PAIRED = -2  # they are there twice: every entry belongs to two examples
Place = tuple[nn.Module, str]  # a module, and its input or its output
Dims = dict[nn.Module, tuple[int | None, ...]]  # None: the examples share the tensor


@dataclass
class Seen:
    """What one run of the model shows: what reached each module and left it, call by call, and what came out.

    Args:
        values: whether tensors are kept, or their shapes alone.
    """

    values: bool = False
    calls: dict[Place, list[tuple[Any, ...]]] = field(default_factory=dict)
    returned: Any = None  # by the model
    outputs: list[Tensor] = field(default_factory=list)  # the tensors in it
    watched: list[Watched] = field(default_factory=list)  # where gradients arrive
    recording: bool = True  # not while activation checkpoints run the model once more
    inside: nn.Module | None = None  # that follows its own parameters
    drawn: list[Any] = field(default_factory=list)  # random states after the run
    sizes: Sizes = field(default_factory=Sizes)
    reentrant: set[nn.Module] = field(default_factory=set)  # called several times, in checkpoints of that kind
    copied: dict[int, tuple[Tensor, int, Tensor]] = field(default_factory=dict)  # by id: a tensor, its version, a copy

    def record(self, module: nn.Module, args: Any, kwargs: Any, kind: str = "input") -> str:
        items = tree_flatten((args, kwargs), is_leaf=_is_packed)[0] if kind.endswith("input") else leaves(args)
        if any(isinstance(item, PackedSequence) for item in items):
            items, kind = tree_flatten([_padded(item) for item in items])[0], f"packed {kind}"
        tensors = [item for item in items if isinstance(item, Tensor)]
        if self.recording and (module, kind) in self.calls and _in_a_reentrant_checkpoint():
            self.reentrant.add(module)
        if self.recording:
            found = tuple(self._copy(t) if self.values else t.shape for t in tensors)
            self.calls.setdefault((module, kind), []).append(found)
        return kind

    def _copy(self, t: Tensor) -> Tensor:
        """Its numbers; copied once, although it leaves one module and reaches several others."""
        before = self.copied.get(id(t))
        if before is None or before[0] is not t or before[1] != version(t):
            before = self.copied[id(t)] = (t, version(t), t.detach().clone())
        return before[2]

    def leave(self, module: nn.Module, output: Any) -> Any:
        """What the module returns, with its tensors watched, if gradients are looked at."""
        kind = self.record(module, (output,), {}, "output")
        if not (self.values and torch.is_grad_enabled()) or self.inside is module:
            return output
        call = len(self.calls.get((module, kind), ())) - 1
        count = 0

        def watch(t: Tensor, packed: PackedSequence | None = None) -> Tensor:
            if not (t.requires_grad and t.is_floating_point()):
                return t
            copy = t.clone()  # what follows may change it in place
            if self.recording:
                if packed is None:
                    self.copied[id(copy)] = (copy, version(copy), self._copy(t))
                self.watched.append(Watched((module, kind), call, count, copy, packed))
            return copy

        def walk(item: Any) -> Any:
            nonlocal count
            if isinstance(item, Tensor):
                item, count = watch(item), count + 1
            elif isinstance(item, PackedSequence):
                data = watch(item.data, item)
                count += sum(isinstance(t, Tensor) for t in _padded(item))
                item = PackedSequence(data, item.batch_sizes, item.sorted_indices, item.unsorted_indices)
            elif type(item) in (tuple, list):
                item = type(item)([walk(each) for each in item])
            elif type(item) is dict:
                item = {key: walk(each) for key, each in item.items()}
            else:
                count += sum(isinstance(t, Tensor) for t in leaves(item))
            return item

        return walk(output)

    def let_go(self) -> None:
        """Keeps the numbers, and not the graph that they are from: several runs are kept to be compared."""
        self.returned = None
        self.copied.clear()
        with torch._C.DisableTorchFunctionSubclass():  # of what examples share, too
            self.outputs = [t.detach().requires_grad_(t.requires_grad) for t in self.outputs]
        for watched in self.watched:
            watched.tensor = None

    def watch_copies(self, copies: Tensor) -> None:
        """A parameter's copies for each example, at which gradients arrive."""
        if self.recording and self.values and self.inside is not None:
            self.watched.append(Watched((self.inside, "own parameters"), 0, 0, copies, None))


@dataclass
class Watched:
    """A tensor (as long as its graph is kept) that a gradient arrives at: one that ``place`` had in this call."""

    place: Place
    call: int
    order: int
    tensor: Tensor | None
    packed: PackedSequence | None
    gradient: Tensor | None = None

    def arrived(self, gradient: Tensor | None) -> None:
        if gradient is not None and self.packed is not None:
            _, *rest = self.packed
            gradient = pad_packed_sequence(PackedSequence(gradient, *rest), batch_first=True)[0]
        self.gradient = gradient


def leaves(item: Any, known: set[int] | None = None) -> list[Any]:
    """What an output holds: mappings, sequences, dataclasses and plain objects are opened, packed sequences are not.

    >>> from types import SimpleNamespace
    >>> leaves({"loss": 1.0, "rest": SimpleNamespace(pair=("a", [2]))})
    [1.0, 'a', 2]
    """
    known = set() if known is None else known
    if isinstance(item, Tensor | PackedSequence | nn.Module | type):
        return [item]
    inside = parts(item)
    if inside is None and _holds_tensors(item):
        inside = vars(item)
    if inside is None or id(item) in known:
        return [item]
    known.add(id(item))
    return [leaf for child in inside.values() for leaf in leaves(child, known)]


def _holds_tensors(item: Any) -> bool:
    """Whether it is an object of somebody's own class, such as a cache of keys."""
    return hasattr(item, "__dict__") and not callable(item) and not isinstance(item, torch.dtype | torch.device)


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """Those that the model's parameters are on."""
    return list({p.device for p in model.parameters() if p.device.type == "cuda"})


def seed_all(seed: int, devices: Iterable[torch.device] = ()) -> None:
    """Seeds the generators of torch (on the CPU and these devices), of numpy and of Python.

    `torch.manual_seed` would replace those that others wait for: a seed that was given to a GPU nobody has used yet.
    """
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    for device in devices:
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def random_states(devices: Iterable[torch.device] = ()) -> list[Any]:
    """What shows whether random numbers were drawn."""
    on_torch = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    numpy = np.random.get_state(legacy=False)
    words = numpy["state"].pop("key").tobytes()
    return [*(bytes(state.numpy()) for state in on_torch), random.getstate(), words, numpy]


def locate(engine: Engine, two: Seen, three: Seen) -> dict[Place, tuple[int | None, ...]]:
    """Which dimension counts examples, for each tensor that reached or left a module in runs on two and on three."""
    both = [place for place in two.calls if place in three.calls]
    dims = {place: _counting_dims(engine, place, two, three) for place in both}
    for (module, kind), found in dims.items():
        expected = 0 if getattr(module, "batch_first", True) else 1
        if hasattr(module, "batch_first") and kind == "input" and found[0] not in (None, MERGED, PAIRED):
            shape = three.calls[module, kind][0][0]
            if len(shape) != 3 or found[0] != expected:
                given = f"an input of shape {tuple(shape)} for {3 * engine.views} rows"
                raise wrong_example_dim(engine.name_of(module), module, given)
    return dims


def locate_outputs(engine: Engine, two: Seen, three: Seen) -> list[int | None]:
    """The same for what the model returns; nothing where it returns another number of tensors for other batches."""
    if len(two.outputs) != len(three.outputs):
        return []
    return [_counting_dim(engine, a.shape, b.shape) for a, b in zip(two.outputs, three.outputs, strict=True)]


def is_wrong(whole: Examples, two: Seen, three: Seen, outputs: list[int | None]) -> bool:
    """Whether a guess leaves all rows of a batch in what layers are given or the model returns, or none in the latter.

    That is, as many as the batch has, although the model ran on two of its examples, and on three.
    """
    place = 0 if whole.batch_first else 1

    def shapes(seen: Seen) -> list[tuple[int, ...]]:
        inputs = [calls for (_, kind), calls in seen.calls.items() if kind.endswith("input")]
        reached = [shape for calls in inputs for call in calls for shape in call]
        return [tuple(shape) for shape in (*reached, *(t.shape for t in seen.outputs)) if len(shape)]

    pairs = zip(shapes(two), shapes(three), strict=False)
    left = any(a == b and a[min(place, len(a) - 1)] == whole.rows for a, b in pairs)
    return left or (any(t.dim() for t in two.outputs) and all(dim is None for dim in outputs))


def order_of(seen: Seen) -> list[nn.Module]:
    """The modules with parameters, as the model uses them."""
    return list(dict.fromkeys(module for module, kind in seen.calls if kind in ("input", "shared input")))


def _is_packed(item: Any) -> bool:
    return isinstance(item, PackedSequence)


def _padded(item: Any) -> Any:
    """A packed sequence with its examples in the order before packing, one a row; anything else as it is."""
    return (pad_packed_sequence(item, batch_first=True)[0], *item[1:]) if isinstance(item, PackedSequence) else item


def _counting_dim(engine: Engine, two: Any, three: Any) -> int | None:
    if len(two) != len(three):
        return MERGED
    moved = [dim for dim, sizes in enumerate(zip(two, three, strict=True)) if sizes[0] != sizes[1]]
    counts = [(two[dim], three[dim]) == (2 * engine.views, 3 * engine.views) for dim in moved]
    if not moved:
        return MERGED if 0 in two else None  # rows that were picked, and there are none
    if len(moved) == 1 and not counts[0]:  # B², or all pairs
        return PAIRED if three[moved[0]] * 4 == two[moved[0]] * 9 or three[moved[0]] == two[moved[0]] * 3 else MERGED
    return PAIRED if sum(counts) > 1 else moved[0] if counts == [True] else MERGED


def _counting_dims(engine: Engine, place: Place, two: Seen, three: Seen) -> tuple[int | None, ...]:
    found: list[tuple[int | None, ...]] = []
    for call_two, call_three in zip(two.calls[place], three.calls[place], strict=False):
        found.append(tuple(_counting_dim(engine, *shapes) for shapes in zip(call_two, call_three, strict=False)))
    longest = max(found, key=len)
    if any(dims != longest[: len(dims)] for dims in found):
        module = place[0]
        reentrant = (
            " Where it is checkpointed, do that for the whole batch, too, and with use_reentrant=False: an example's "
            "gradient would be clipped in two pieces otherwise."
        )
        raise NotPrivate(
            f"{engine.name_of(module)} ({type(module).__name__}) is called several times, on parts of the batch or "
            "with the examples in different dimensions, so that gradients cannot be attributed to individual examples. "
            "Call it on the whole batch, with the examples in the same dimension at every call."
            + (reentrant if module in three.reentrant else "")
        )
    return longest


def _in_a_reentrant_checkpoint() -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame is not None
