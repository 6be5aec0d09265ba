"""Parameters that a module with inner modules uses directly: scales, shifts, class tokens, position tables.

While such a module runs, every operation on one of its own parameters is looked at. An operation among parameters
alone (a slice, an exponential, a reshape) gives something that is tracked further; where it meets a tensor of
examples, element by element or by expansion, each example gets a copy of its own, and what arrives at the copy in the
backward pass is that example's gradient. Any other operation is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Dense
from hoarfrost.gradients.rules.base import Forward, Recorder, Rule

T = torch.Tensor
EXPANSIONS = {T.expand, T.expand_as, T.repeat, torch.broadcast_to, T.broadcast_to}
ELEMENTWISE = {
    torch.add, T.add, T.add_, T.__add__, T.__radd__, T.__iadd__,
    torch.sub, T.sub, T.sub_, T.__sub__, T.__rsub__, T.__isub__,
    torch.mul, T.mul, T.mul_, T.__mul__, T.__rmul__, T.__imul__,
    torch.div, T.div, T.div_, T.__truediv__, T.__rtruediv__, T.__itruediv__,
    torch.maximum, torch.minimum, torch.where, torch.lerp, torch.addcmul,
}  # fmt: skip


class DirectParametersRule(Rule):
    """Runs the module as it is, tracking its own parameters."""

    runs_in_probe = True

    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        tracker = _ParameterTracker(recorder, module)
        with tracker:
            return original(*args, **kwargs)


class _Tracked:
    """A tensor made from parameters alone, and the leaves it was made from."""

    def __init__(self, value: Tensor, leaves: dict[nn.Parameter, Tensor]):
        self.value, self.leaves = value, leaves  # leaves: parameter → the detached stand-in that was computed with


class _ParameterTracker(TorchFunctionMode):
    def __init__(self, recorder: Recorder, module: nn.Module):
        super().__init__()
        self.recorder, self.module = recorder, module
        self.differentiating = torch.is_grad_enabled()  # off while the examples are being located
        self.names = {p: name for name, p in module.named_parameters(recurse=False)}
        self.tracked: dict[int, _Tracked] = {}
        for p in self.names:
            leaf = p.detach().requires_grad_()
            self.tracked[id(p)] = _Tracked(leaf, {p: leaf})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        flat, structure = tree_flatten((args, kwargs or {}))
        own = [i for i, item in enumerate(flat) if isinstance(item, Tensor) and id(item) in self.tracked]
        if not own or torch.is_grad_enabled() != self.differentiating:
            return func(*args, **(kwargs or {}))
        others = [item for item in flat if isinstance(item, Tensor) and id(item) not in self.tracked]
        if not others and func not in EXPANSIONS:
            return self._among_parameters(func, flat, own, structure)
        rank = max((t.dim() for t in others), default=0)
        if func in EXPANSIONS:
            rank = max(rank, func(*args, **(kwargs or {})).dim())
        if func not in ELEMENTWISE | EXPANSIONS or not all(self._of_examples(t, rank) for t in others):
            raise self._refusal(func, flat[own[0]])
        for i in own:
            flat[i] = self._copies(self.tracked[id(flat[i])], rank, func)
        new_args, new_kwargs = tree_unflatten(flat, structure)
        result = func(*new_args, **new_kwargs)
        if func in EXPANSIONS and result.shape[0] != self.recorder.rows:
            raise self._refusal(func, args[0])
        return result

    def _among_parameters(self, func: Any, flat: list[Any], own: list[int], structure: Any) -> Any:
        leaves: dict[nn.Parameter, Tensor] = {}
        for i in own:
            made = self.tracked[id(flat[i])]
            leaves |= made.leaves
            flat[i] = made.value
        args, kwargs = tree_unflatten(flat, structure)
        result = func(*args, **kwargs)
        for t in _tensors(result):
            self.tracked[id(t)] = _Tracked(t, leaves)
        return result

    def _of_examples(self, t: Tensor, rank: int) -> bool:
        """Whether the tensor's first dimension counts examples (a plain number takes part anywhere)."""
        return t.dim() == 0 or (t.dim() == rank and t.shape[0] == self.recorder.rows)

    def _copies(self, made: _Tracked, rank: int, func: Any) -> Tensor:
        value, groups = made.value.detach(), self.recorder.groups
        shape = (1,) * (rank - value.dim()) + tuple(value.shape)
        if not shape or shape[0] != 1:
            raise self._refusal(func, made.value)
        copies = value.view(shape).expand(groups.count(self.recorder.rows), *shape[1:]).requires_grad_()

        def record(rows: Tensor) -> None:
            rows = rows.reshape(-1, *made.value.shape)
            leaves = list(made.leaves.items())
            if made.value is leaves[0][1]:
                self.recorder.add(leaves[0][0], Dense(rows))
                return
            gradients = torch.autograd.grad(
                made.value, [leaf for _, leaf in leaves], rows, is_grads_batched=True, retain_graph=True
            )
            for (p, _), gradient in zip(leaves, gradients, strict=True):
                self.recorder.add(p, Dense(gradient))

        self.recorder.watch(copies, record)
        return groups.spread(copies)

    def _refusal(self, func: Any, used: Tensor) -> NotPrivate:
        made = next((f for key, f in self.tracked.items() if key == id(used) or f.value is used), None)
        names = ", ".join(self.names[p] for p in made.leaves) if made else "a parameter"
        return NotPrivate(
            f"{self.recorder.name_of(self.module)} uses its own parameter {names} in {getattr(func, '__name__', func)}"
            ", where its gradient cannot be attributed to individual examples. Add it to, or multiply it with, a "
            "tensor whose first dimension counts the examples, or move the parameter and this computation into a small "
            "module of their own."
        )


def _tensors(result: Any) -> Iterator[Tensor]:
    return (item for item in tree_flatten(result)[0] if isinstance(item, Tensor))
