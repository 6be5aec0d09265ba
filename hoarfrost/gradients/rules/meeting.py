"""Where a bare parameter meets a tensor of examples: each example's gradient is found, or the operation is refused.

Three kinds of operations have a short way: those that work element by element, maps by a matrix, and lookups in a
table. In any other, each example gets a copy of the parameter, and the operation runs example by example
(`torch.func.vmap`): what arrives at a copy is its example's gradient. While the model is looked at, the result is
compared with that of the operation itself, which may do otherwise for a whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map, tree_unflatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution, Dense, Outer
from hoarfrost.gradients.rules.base import Recorder, flatten_positions
from hoarfrost.gradients.rules.embedding import rows_of_table

T = torch.Tensor
REPETITIONS = {T.repeat, torch.tile, T.tile}
EXPANSIONS = {T.expand, T.expand_as, torch.broadcast_to, T.broadcast_to} | REPETITIONS
ELEMENTWISE = {
    torch.add, T.add, T.add_, T.__add__, T.__radd__, T.__iadd__,
    torch.sub, T.sub, T.sub_, T.__sub__, T.__rsub__, T.__isub__,
    torch.mul, T.mul, T.mul_, T.__mul__, T.__rmul__, T.__imul__,
    torch.div, T.div, T.div_, T.__truediv__, T.__rtruediv__, T.__itruediv__,
    torch.maximum, torch.minimum, torch.where, torch.lerp, torch.addcmul,
}  # fmt: skip
ATTENTION = {F.scaled_dot_product_attention}  # of more than two dimensions: of each example by itself
PRODUCTS = {torch.matmul, T.matmul, T.__matmul__, torch.mm, T.mm, F.linear}
LOOKUPS = {F.embedding, T.__getitem__}
WHOLE = {torch.int64, torch.int32}


class Made(NamedTuple):
    """A tensor made from parameters and constants alone, and the parameters that it was made from.

    Args:
        value: the tensor; its graph ends at ``leaves``.
        leaves: for each live parameter, the detached stand-in that was computed with. None of them: a constant.
    """

    value: Tensor
    leaves: dict[nn.Parameter, Tensor]


class Meeting:
    """The meetings of one run of ``module``, whose own parameters have these names."""

    def __init__(self, recorder: Recorder, module: nn.Module, names: dict[nn.Parameter, str]):
        self.recorder, self.module, self.names = recorder, module, names

    def of(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        """What ``func`` returns for these arguments, of which ``own`` are made from parameters."""
        args, kwargs = tree_unflatten(flat, structure)
        others = [item for i, item in enumerate(flat) if isinstance(item, Tensor) and i not in own]
        # Their first dimension counts examples, in few runs and in many; a plain number takes part anywhere.
        if any(t.dim() and t.shape[0] != self.recorder.rows for t in others):
            raise self.refusal(func, own)
        if func in EXPANSIONS:
            return self._expanded(func, flat, own, structure)
        rank = max(t.dim() for t in others)
        if (func in ELEMENTWISE or (func in ATTENTION and rank > 2)) and all(t.dim() in (0, rank) for t in others):
            wide = [self._as_wide(own[i], rank, func) if i in own else item for i, item in enumerate(flat)]
            args, kwargs = tree_unflatten(wide, structure)
            return func(*args, **kwargs)
        if func is T.__setitem__ and list(own) == [len(flat) - 1]:
            return self._assigned(args[0], args[1], own[len(flat) - 1])
        if rank == 0 or _writes(func, kwargs):
            raise self.refusal(func, own)
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
        rows = self.recorder.rows
        if list(own) != [0]:
            raise self.refusal(func, own)
        made = own[0]
        args, kwargs = tree_unflatten([made.value, *flat[1:]], structure)
        with torch.enable_grad():
            result = func(*args, **kwargs)
        if result.shape[:1] != (rows,):
            raise self.refusal(func, own)
        if func in REPETITIONS:
            if made.value.dim() == result.dim() and made.value.shape[0] != 1:
                raise self.refusal(func, own)
            return self._as_wide(Made(result[:1], made.leaves), result.dim(), func)  # every row is the same
        args, kwargs = tree_unflatten([self._as_wide(made, result.dim(), func), *flat[1:]], structure)
        return func(*args, **kwargs)

    def _assigned(self, target: Tensor, index: Any, made: Made) -> None:
        """target[:, ...] = what is made from parameters."""
        place = target.detach()[index]
        if (index[0] if isinstance(index, tuple) else index) != slice(None) or place.shape[:1] != (self.recorder.rows,):
            raise self.refusal(T.__setitem__, {0: made})
        target[index] = self._as_wide(made, place.dim(), T.__setitem__)

    def _product(self, func: Any, made_of: dict[int, Made], args: Any, kwargs: Any) -> Tensor | None:
        """x W, or x Wᵀ + b; None where it is something else."""
        x, weight, bias = (*args, kwargs.get("bias"), None)[:3] if len(args) > 1 else (None, None, None)
        made, shift = made_of.get(id(weight)), made_of.get(id(bias))
        if made is None or not made.leaves or made.value.dim() != 2 or id(x) in made_of or x.dim() < 2:
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
            if i in own and own[i].leaves:
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
            args, kwargs = tree_unflatten(flat, structure)
            with torch.no_grad():
                func(*args, **kwargs)  # a mistake of the model's own is told in torch's words
            raise self.refusal(func, own) from error

    @torch.no_grad()
    def _compare(self, result: Any, func: Any, own: dict[int, Made], args: Any, kwargs: Any) -> None:
        """Refuses an operation that does otherwise for a batch than for one example (unless it is a random one)."""
        one, plain, again = (tree_leaves(each) for each in (result, func(*args, **kwargs), func(*args, **kwargs)))
        shapes = [getattr(t, "shape", None) for t in one] == [getattr(t, "shape", None) for t in plain]
        if not shapes or (not all(map(_close, one, plain)) and all(map(_close, again, plain))):
            raise self.refusal(func, own)

    # Gradients.

    def _as_wide(self, made: Made, rank: int, func: Any) -> Tensor:
        """A copy for each example, in so many dimensions, of which the first counts examples."""
        if not made.leaves:
            return made.value
        shape = (1,) * (rank - made.value.dim()) + tuple(made.value.shape)
        if len(shape) != rank or shape[:1] != (1,):
            raise self.refusal(func, {0: made})
        return self._copies(made, shape[1:])

    def _copies(self, made: Made, shape: Sequence[int]) -> Tensor:
        groups = self.recorder.groups
        value = made.value.detach().view(1, *shape)
        copies = value.expand(groups.count(self.recorder.rows), *shape).requires_grad_()
        self.recorder.watch(copies, lambda rows: self._record(made, Dense(rows.reshape(-1, *made.value.shape))))
        return groups.spread(copies)

    def _record(self, made: Made, contribution: Contribution) -> None:
        """Adds what arrived at something made from parameters to those."""
        leaves = list(made.leaves.items())
        p, leaf = leaves[0]
        if made.value is leaf:
            self.recorder.add(p, contribution)
        elif isinstance(contribution, Outer) and leaf.dim() == 2 and _same_memory(made.value, leaf.T):
            self.recorder.add(p, Outer(contribution.g, contribution.a))
        else:
            gradients = torch.autograd.grad(
                made.value,
                [leaf for _, leaf in leaves],
                contribution.instantiate().to(made.value.dtype),
                is_grads_batched=True,
                retain_graph=True,
                allow_unused=True,
            )
            for (p, _), gradient in zip(leaves, gradients, strict=True):
                if gradient is not None:
                    self.recorder.add(p, Dense(gradient))

    def refusal(self, func: Any, own: dict[int, Made]) -> NotPrivate:
        """The error for a parameter whose gradient cannot be attributed to individual examples here."""
        names = ", ".join(dict.fromkeys(self.names[p] for made in own.values() for p in made.leaves))
        name = self.recorder.name_of(self.module)
        return NotPrivate(
            f"{name} ({type(self.module).__name__}) uses its own parameter {names} in "
            f"{getattr(func, '__name__', func)}, where its gradient cannot be attributed to individual examples: the "
            "other tensors there must have the examples as their first dimension (no flattening with others), what "
            "comes out of it, too, and nothing may be computed over the batch. If that does not help, move the "
            "parameter and this computation into a small module of their own (a matrix: nn.Linear; a table: "
            "nn.Embedding), or give its class a rule with hoarfrost.register_rule. What all examples share is "
            "expanded: parameter.expand(len(x), ...)."
        )


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
