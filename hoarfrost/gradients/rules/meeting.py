"""Where what all examples share meets a tensor of examples: each one's gradient is found, or the operation is refused.

Three kinds of operations have a short way: those that work element by element, maps by a matrix, and lookups in a
table. In any other, each example gets a copy of the parameter, and the operation runs example by example
(`torch.func.vmap`): what arrives at a copy is its example's gradient. While the model is looked at, the result is
compared with that of the operation itself, which may do otherwise for a whole batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, Dense, Outer
from hoarfrost.gradients.rules.base import Recorder, flatten_positions
from hoarfrost.gradients.rules.embedding import rows_of_table
from hoarfrost.gradients.rules.shared import Made, Shared, Source, plain
from hoarfrost.gradients.sites import EXPANSIONS, REPETITIONS, site

T = torch.Tensor
ELEMENTWISE = {
    torch.add, T.add, T.add_, T.__add__, T.__radd__, T.__iadd__,
    torch.sub, T.sub, T.sub_, T.__sub__, T.__rsub__, T.__isub__,
    torch.mul, T.mul, T.mul_, T.__mul__, T.__rmul__, T.__imul__,
    torch.div, T.div, T.div_, T.__truediv__, T.__rtruediv__, T.__itruediv__,
    torch.maximum, torch.minimum, torch.where, torch.lerp, torch.addcmul,
    F.scaled_dot_product_attention,  # of a bias for its scores
}  # fmt: skip
PRODUCTS = {torch.matmul, T.matmul, T.__matmul__, torch.mm, T.mm, F.linear}
LOOKUPS = {F.embedding, T.__getitem__}
WHOLE = {torch.int64, torch.int32}
TYPES = {torch.Tensor.to, torch.Tensor.type_as}  # another tensor may say which type and device
NOTHING: Mapping[int, Made] = {}


_MANY = (
    "where its gradient cannot be attributed to individual examples: the other tensors there must have the examples as "
    "their first dimension (no flattening with others), what comes out of it, too, and nothing may be computed over "
    "the batch. If that does not help, move the parameter and this computation into a small module of their own (a "
    "matrix: nn.Linear; a table: nn.Embedding), or give its class a rule with hoarfrost.register_rule. What all "
    "examples share is expanded: parameter.expand(len(x), ...)."
)
_NO_EXAMPLE = (
    "where it meets a single number, and no example. A penalty on weights belongs into the optimizer, where it needs "
    "no noise: weight_decay=. Nothing may be computed over the batch (a mean, a maximum): compute one for each example."
)


class Meeting:
    """What becomes of shared tensors: operations among themselves, and with tensors of examples.

    Args:
        module: whose parameters (or whose inputs) they are made from; or that reads the parameters of other modules.
        constants: what has no gradient is followed, too: it is known that it does not come from examples.
    """

    def __init__(self, recorder: Recorder, module: nn.Module, *, constants: bool = True):
        self.recorder, self.module, self.constants = recorder, module, constants
        self.differentiating = torch.is_grad_enabled()  # off while the examples are being located

    def call(self, func: Any, args: Any, kwargs: Any, known: Mapping[int, Made] = NOTHING) -> Any:
        """What ``func`` returns for these arguments, of which some are shared, or ``known`` to be by their ids."""
        flat, structure = tree_flatten((args, kwargs))
        own: dict[int, Made] = {}
        others = False
        for i, item in enumerate(flat):
            if isinstance(item, Tensor):
                made = item.made_now() if type(item) is Shared else known.get(id(item))
                if made is None and func in ELEMENTWISE and self._stands_for_all(item):
                    made = Made(item)
                if made is None:
                    others = True
                else:
                    own[i] = made.now()
        if not own:
            return func(*args, **kwargs)
        if others and self.constants and kwargs.get("out") is None:
            strangers = [i for i, item in enumerate(flat) if isinstance(item, Tensor) and i not in own]
            written = _writes(func, kwargs)  # the first
            held = {i: Made(flat[i].detach()) for i in strangers if (i or not written) and self.recorder.held(flat[i])}
            own, others = own | held, len(held) < len(strangers)
        alone = func in TYPES or (not others and (func not in EXPANSIONS or self._is_for_all()))
        if torch.is_grad_enabled() == self.differentiating:
            if alone:
                return self._among_themselves(func, flat, own, structure)
            if any(made.sources for made in own.values()):
                _note_use(own.values())
                return self._where_known(func, flat, own, structure)
        args, kwargs = plain((args, kwargs))
        result = func(*args, **kwargs)
        if alone and self.differentiating and self.constants:  # without gradients: whatever comes out is a constant
            return tree_map(lambda t: Shared.of(Made(t), self) if isinstance(t, Tensor) else t, result)
        return result

    def _is_for_all(self) -> bool:
        """Whether what is expanded at this place in the code has no row for each example."""
        return self.constants and self.recorder.counts_rows(site()) is False

    def _stands_for_all(self, t: Tensor) -> bool:
        """Whether it has one row for many, and nothing to learn (the causal mask [1, 1, T, T] beside a bias)."""
        return t.dim() > 1 and t.shape[0] == 1 != self.recorder.rows and not t.requires_grad

    def _among_themselves(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        if func in LOOKUPS and (looked := self._rows_of_table(func, flat, own, structure)) is not None:
            return looked
        args, kwargs = tree_unflatten([own[i].value if i in own else item for i, item in enumerate(flat)], structure)
        sources = tuple(dict.fromkeys(source for made in own.values() for source in made.sources))
        with torch.enable_grad():  # which says what is a constant
            result = func(*args, **kwargs)
        new = getattr(func, "__name__", "").startswith("new")

        def shared(t: Any) -> Any:
            if not isinstance(t, Tensor):
                return t
            if t.requires_grad and sources:
                _note_use(own.values())
                return Shared.of(Made(t, sources), self)
            # What `new_zeros` makes may have a row for each example.
            follows = self.constants and not (new and self.recorder.rows in t.shape)
            return Shared.of(Made(t), self) if follows else t

        return tree_map(shared, result)

    def _where_known(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        if not (self.recorder.locating and self.constants):
            return self.of(func, flat, own, structure)
        values = [own[i].value if i in own else item for i, item in enumerate(flat)]
        args, kwargs = plain(tree_unflatten(values, structure))
        if func in EXPANSIONS:  # once, as it is watched
            return func(*args, **kwargs)
        try:
            return self.of(func, flat, own, structure)
        except NotPrivate:
            with suppress(Exception):  # or else the reason is that
                return func(*args, **kwargs)
            raise

    def _rows_of_table(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        """A lookup of which the gradient is known without writing out that of the whole table; None for others."""
        args, kwargs = tree_unflatten([*range(len(flat))], structure)
        given = {key: flat[place] for key, place in kwargs.items() if isinstance(place, int)}
        if len(args) != 2 or not all(isinstance(place, int) and place in own for place in args):
            return None
        made, index = (own[place] for place in (args if func is T.__getitem__ else args[::-1]))
        if len(made.sources) != 1 or made.value is not made.sources[0].stand_in or made.sources[0].rows is not None:
            return None
        if made.value.dim() != 2 or index.value.dtype not in WHOLE or given.get("max_norm") is not None:
            return None
        if given.get("scale_grad_by_freq") or given.get("sparse"):
            return None
        table, padding = made.sources[0], given.get("padding_idx")
        table.used = True
        rows = index.value.long() % len(made.value)
        value = made.value.detach()[rows]
        source = Source(
            table.parameter, table.name, value, rows, None if padding is None else padding % len(made.value)
        )
        return Shared.of(Made(source.stand_in, (source,)), self)

    def of(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        """What ``func`` returns for these arguments, of which ``own`` are made from parameters."""
        args, kwargs = tree_unflatten(flat, structure)
        others = [item for i, item in enumerate(flat) if isinstance(item, Tensor) and i not in own]
        # Their first dimension counts examples, in few runs and in many; a plain number takes part anywhere.
        if any(t.dim() and t.shape[0] != self.recorder.rows for t in others):
            raise self._refusal(func, own)
        if func in EXPANSIONS:
            return self._expanded(func, flat, own, structure)
        if not any(t.dim() for t in others):
            raise self._refusal(func, own, _NO_EXAMPLE)
        rank = max(t.dim() for t in others)
        if func in ELEMENTWISE and all(t.dim() in (0, rank) for t in others):
            wide = [self._as_wide(own[i], rank, func) if i in own else item for i, item in enumerate(flat)]
            args, kwargs = tree_unflatten(wide, structure)
            return func(*args, **kwargs)
        if func is T.__setitem__ and list(own) == [len(flat) - 1]:
            return self._assigned(args[0], args[1], own[len(flat) - 1])
        if _writes(func, kwargs):
            raise self._refusal(func, own)
        if self.recorder.probing:
            result = self._one_by_one(func, flat, own, structure)
            self._compare(result, func, own, args, kwargs)
            return result
        made_of = {id(flat[i]): made for i, made in own.items()}
        result = self._product(func, made_of, args, kwargs) if func in PRODUCTS else None
        result = self._looked_up(func, made_of, args, kwargs) if func in LOOKUPS else result
        return self._one_by_one(func, flat, own, structure) if result is None else result

    # Short ways.

    def _expanded(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        if list(own) != [0]:
            raise self._refusal(func, own)
        made = own[0]
        args, kwargs = tree_unflatten([made.value, *flat[1:]], structure)
        with torch.enable_grad():
            result = func(*args, **kwargs)
        dim = self._repeated(made.value, result)
        if dim is None:
            raise self._refusal(func, own)
        if dim or func in REPETITIONS:
            one = Made(result.movedim(dim, 0)[:1], made.sources)  # every row is the same
            return self._as_wide(one, result.dim(), func).movedim(0, dim)
        args, kwargs = tree_unflatten([self._as_wide(made, result.dim(), func), *flat[1:]], structure)
        return func(*args, **kwargs)

    def _repeated(self, before: Tensor, after: Tensor) -> int | None:
        """The dimension along which an expansion has made as many rows as there are of one."""
        sizes = (1,) * (after.dim() - before.dim()) + tuple(before.shape)
        rows = self.recorder.rows
        found = [dim for dim, one in enumerate(sizes) if one == 1 and after.shape[dim] == rows]
        known = self.recorder.rows_along(site())
        return known if known in found else found[0] if found else None

    def _assigned(self, target: Tensor, index: Any, made: Made) -> None:
        """target[:, ...] = what is made from parameters."""
        place = target.detach()[index]
        if (index[0] if isinstance(index, tuple) else index) != slice(None) or place.shape[:1] != (self.recorder.rows,):
            raise self._refusal(T.__setitem__, {0: made})
        target[index] = self._as_wide(made, place.dim(), T.__setitem__)

    def _product(self, func: Any, made_of: dict[int, Made], args: Any, kwargs: Any) -> Tensor | None:
        """x W, or x Wᵀ + b; None where it is something else."""
        x, weight, bias = (*args, kwargs.get("bias"), None)[:3] if len(args) > 1 else (None, None, None)
        made, shift = made_of.get(id(weight)), made_of.get(id(bias))
        if made is None or not made.sources or made.value.dim() != 2 or id(x) in made_of or x.dim() < 2:
            return None
        if kwargs.keys() - {"bias"} or (bias is not None and shift is None):
            return None
        groups, transposed = self.recorder.groups, func is not F.linear

        def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
            a, g = (flatten_positions(groups.split(t)) for t in (inputs[0], gradient))
            self._record(made, Outer(g, a) if transposed else Outer(a, g))

        output = self.recorder.tap(func(x, made.value.detach()), sink, x)
        return output if shift is None else output + self._as_wide(shift, output.dim(), func)

    def _looked_up(self, func: Any, made_of: dict[int, Made], args: Any, kwargs: Any) -> Tensor | None:
        """Rows of a table; None where it is something else."""
        if len(args) != 2 or kwargs.get("max_norm") is not None or kwargs.get("scale_grad_by_freq"):
            return None
        table, index = args if func is T.__getitem__ else args[::-1]
        made = made_of.get(id(table))
        if made is None or made.value.dim() != 2 or not isinstance(index, Tensor) or index.dtype not in WHOLE:
            return None
        groups, padding, height = self.recorder.groups, kwargs.get("padding_idx"), len(made.value)
        padding = padding if padding is None else padding % height

        def sink(gradient: Tensor, inputs: tuple[Tensor, ...]) -> None:
            index = groups.split(inputs[0], again=True).long() % height  # some count from the end
            self._record(made, rows_of_table(index, groups.split(gradient), height, padding))

        value = made.value.detach()
        output = func(value, index) if func is T.__getitem__ else func(index, value, **kwargs)
        return self.recorder.tap(output, sink, index)

    # The long one.

    def _one_by_one(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        """The operation on each example by itself: a batch of one, with a copy of what is made from parameters."""
        items, dims = list(flat), [None] * len(flat)  # type: list[Any], list[int | None]
        for i, item in enumerate(flat):
            if i in own and own[i].sources:
                items[i], dims[i] = self._copies(own[i], own[i].value.shape), 0
            elif i in own:
                items[i] = own[i].value
            elif isinstance(item, Tensor) and item.dim():
                dims[i] = 0

        def one_example(*items: Any) -> Any:
            rows = [item if dims[i] is None or i in own else item.unsqueeze(0) for i, item in enumerate(items)]
            args, kwargs = tree_unflatten(rows, structure)
            return tree_map(_the_row, func(*args, **kwargs))

        try:
            return vmap(one_example, in_dims=tuple(dims), randomness="different")(*items)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            args, kwargs = plain(tree_unflatten(flat, structure))
            with torch.no_grad():
                func(*args, **kwargs)  # a mistake of the model's own is told in torch's words
            raise self._refusal(func, own) from error

    @torch.no_grad()
    def _compare(self, result: Any, func: Any, own: dict[int, Made], args: Any, kwargs: Any) -> None:
        """Refuses an operation that does otherwise for a batch than for one example (unless it is a random one)."""
        args, kwargs = plain((args, kwargs))
        one, whole, again = (tree_leaves(each) for each in (result, func(*args, **kwargs), func(*args, **kwargs)))
        shapes = [getattr(t, "shape", None) for t in one] == [getattr(t, "shape", None) for t in whole]
        if not shapes or (not all(map(_close, one, whole)) and all(map(_close, again, whole))):
            raise self._refusal(func, own)

    # Gradients.

    def _as_wide(self, made: Made, rank: int, func: Any) -> Tensor:
        """A copy for each example, in so many dimensions, of which the first counts examples."""
        if not made.sources:
            return made.value
        shape = (1,) * (rank - made.value.dim()) + tuple(made.value.shape)
        if len(shape) != rank or shape[:1] != (1,):
            raise self._refusal(func, {0: made})
        return self._copies(made, shape[1:])

    def _copies(self, made: Made, shape: Sequence[int]) -> Tensor:
        groups = self.recorder.groups
        value = made.value.detach().view(1, *shape)
        copies = value.expand(groups.count(self.recorder.rows), *shape).requires_grad_()
        self.recorder.watch(copies, lambda rows: self._record(made, Dense(rows.reshape(-1, *made.value.shape))))
        return groups.spread(copies)

    def _record(self, made: Made, contribution: Contribution) -> None:
        """Adds what arrived at something made from parameters to those."""
        first = made.sources[0]
        if made.was_written:
            raise NotPrivate(
                f"{self.recorder.name_of(self.module)} ({type(self.module).__name__}) writes into something made from "
                f"its parameter {first.name} after that has met the examples, so that its gradient is lost. Compute "
                "with a new tensor: a = a + b in place of a += b"
            )
        if made.value is first.stand_in:
            first.add(self.recorder, contribution)
        elif (
            isinstance(contribution, Outer) and first.stand_in.dim() > 1 and _same_memory(made.value, first.stand_in.mT)
        ):
            first.add(self.recorder, Outer(contribution.g, contribution.a))
        else:
            found = _pulled_back(made, contribution.instantiate().to(made.value.dtype))
            for source, gradients in zip(made.sources, found, strict=True):
                if gradients is not None:
                    source.add(self.recorder, Dense(gradients))

    def _refusal(self, func: Any, own: dict[int, Made], why: str = _MANY) -> NotPrivate:
        names = ", ".join(dict.fromkeys(source.name for made in own.values() for source in made.sources))
        name = self.recorder.name_of(self.module)
        return NotPrivate(
            f"{name} ({type(self.module).__name__}) uses its own parameter {names} in "
            f"{getattr(func, '__name__', func)}, {why}"
        )


def _pulled_back(made: Made, gradients: Tensor) -> Sequence[Tensor | None]:
    """From each example's gradient of what was made to its gradients of the sources, [B, *source.shape]."""
    stand_ins = [source.stand_in for source in made.sources]

    def of(gradient: Tensor, batched: bool) -> Sequence[Tensor | None]:
        return torch.autograd.grad(
            made.value, stand_ins, gradient, is_grads_batched=batched, retain_graph=True, allow_unused=True
        )

    if not len(gradients):
        return [t.new_zeros(0, *t.shape) for t in stand_ins]
    with torch._C.DisableTorchFunctionSubclass():  # an autograd.Function has kept shared tensors
        try:
            return of(gradients, True)
        except RuntimeError:  # something that torch.func does not know
            rows = [of(gradient, False) for gradient in gradients]
            return [None if each[0] is None else torch.stack(each) for each in zip(*rows, strict=True)]


def _note_use(used: Iterable[Made]) -> None:
    for made in used:
        for source in made.sources:
            source.used = True


def _writes(func: Any, kwargs: Any) -> bool:
    """Whether the operation changes one of its arguments."""
    name = getattr(func, "__name__", "")
    return (
        name == "__setitem__"
        or name.startswith("__i")
        or (name[-1:] == "_" != name[-2:-1])
        or kwargs.get("out") is not None
    )


def _the_row(t: Any) -> Any:
    if isinstance(t, Tensor) and t.shape[:1] != (1,):
        raise ValueError("what comes out has not the example's row first")
    return t.squeeze(0) if isinstance(t, Tensor) else t


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether both are views of the same elements, in the same order."""
    return (a.data_ptr(), a.shape, a.stride(), a.dtype) == (b.data_ptr(), b.shape, b.stride(), b.dtype)


def _close(a: Any, b: Any) -> bool:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return bool(a == b)
    if not a.is_complex():
        a, b = a.double(), b.double()
    size = b.abs().nan_to_num(0.0, 0.0).max() if b.numel() else 1.0
    return a.shape == b.shape and torch.allclose(a, b, rtol=3e-2, atol=1e-2 * float(size), equal_nan=True)
