"""Parameters that a module with inner modules uses directly: scales, class tokens, position tables, bare matrices.

While such a module runs, every operation on one of its own parameters is looked at; those of a ParameterList in it,
which never runs itself, are its own. An operation among parameters and constants alone (a slice, an exponential, a
product with a buffer) gives something that is followed further. Where it meets a tensor of examples,
`hoarfrost.gradients.rules.meeting` sees that each example's gradient is found.

A table of positions that all examples look up alike (the relative positions of T5, [queries, keys]) is followed in the
same way, through the whole model, where its lookup cannot be made once for each example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from hoarfrost.gradients.rules.base import Forward, Recorder, Rule
from hoarfrost.gradients.rules.meeting import EXPANSIONS, Made, Meeting

# Without a tensor among their arguments, and public. (What `ones` or `randn` make may have a row for each example.)
CONSTANTS = {torch.arange, torch.eye, torch.linspace}
TYPES = {torch.Tensor.to, torch.Tensor.type_as}  # another tensor may say which type and device


class DirectParametersRule(Rule):
    """Runs the module as it is, following its own parameters."""

    runs_in_probe = True

    def recorded(self, module: nn.Module) -> Iterable[nn.Parameter]:
        return (p for _, p in own_parameters(module))

    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        # What a layer inside of it holds, too (the bias of BERT's head), is that layer's business.
        inside = {p for child in module.children() if not only_holds(child) for p in child.parameters()}
        own = ((name, p) for name, p in own_parameters(module) if p not in inside)
        with Follower(recorder, module, own) as follower:
            follower.made |= {id(b): Made(b, {}) for b in module.buffers(recurse=False)}
            return original(*args, **kwargs)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """A module's parameters by name, with those of inner modules that only hold them.

    >>> lists = nn.Sequential()
    >>> lists.scales = nn.ParameterDict({"a": torch.ones(2), "more": nn.ParameterList([torch.ones(3)])})
    >>> lists.layer = nn.Linear(2, 2)
    >>> [name for name, _ in own_parameters(lists)]
    ['scales.a', 'scales.more.0']
    """
    yield from module.named_parameters(recurse=False)
    for name, child in module.named_children():
        if only_holds(child):
            yield from ((f"{name}.{key}", p) for key, p in own_parameters(child))


def only_holds(module: nn.Module) -> bool:
    """Whether the module has no `forward`, as lists and dictionaries have none: what it holds is used from outside."""
    return type(module).forward is nn.Module.forward and "forward" not in vars(module)


class Follower(TorchFunctionMode):
    """Follows ``parameters`` (with names, for messages) through what ``module`` does, until they meet examples."""

    def __init__(self, recorder: Recorder, module: nn.Module, parameters: Iterable[tuple[str, nn.Parameter]]):
        super().__init__()
        self.differentiating = torch.is_grad_enabled()  # off while the examples are being located
        self.made: dict[int, Made] = {}  # by the id of the tensor that the module has
        self._held: list[Tensor] = []  # those tensors: what is kept alive keeps its id
        names: dict[nn.Parameter, str] = {}
        for name, p in parameters:
            names[p] = name
            if p.requires_grad:
                leaf = p.detach().requires_grad_()
                self.made[id(p)] = Made(leaf, {p: leaf})
            else:
                self.made[id(p)] = Made(p.detach(), {})
        self.meeting = Meeting(recorder, module, names)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in CONSTANTS:
            return self._kept(func(*args, **kwargs), {})
        flat, structure = tree_flatten((args, kwargs))
        places = [i for i, item in enumerate(flat) if isinstance(item, Tensor)]
        own = {i: self.made[id(flat[i])] for i in places if id(flat[i]) in self.made}
        if not own or torch.is_grad_enabled() != self.differentiating:
            return func(*args, **kwargs)
        others = len(places) > len(own)
        if func in TYPES or (not others and func not in EXPANSIONS):
            return self._among_themselves(func, flat, own, structure)
        if not any(made.leaves for made in own.values()):
            return func(*args, **kwargs)
        return self.meeting.of(func, flat, own, structure)

    def looked_up(self, module: nn.Embedding, index: Tensor) -> Tensor:
        """Rows of a followed table that all examples share: made from it and from what is public."""
        made = self.made[id(module.weight)]
        with torch.enable_grad():
            found: Tensor = self._kept(F.embedding(index, made.value, module.padding_idx), made.leaves)
        return found

    def _among_themselves(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        leaves: dict[nn.Parameter, Tensor] = {}
        for i, made in own.items():
            leaves |= made.leaves
            flat[i] = made.value
        args, kwargs = tree_unflatten(flat, structure)
        with torch.enable_grad():  # which says what is a constant
            return self._kept(func(*args, **kwargs), leaves)

    def _kept(self, result: Any, leaves: dict[nn.Parameter, Tensor]) -> Any:
        return tree_map(lambda t: self._handed_on(t, leaves) if isinstance(t, Tensor) else t, result)

    def _handed_on(self, value: Tensor, leaves: dict[nn.Parameter, Tensor]) -> Tensor:
        """The tensor that the module gets: no gradient may come back through it, only through what was followed."""
        followed = value.requires_grad and self.differentiating
        shown: Tensor = _NoWayBack.apply(value, self.meeting, leaves) if followed else value
        self.made[id(shown)] = Made(value, leaves if value.requires_grad else {})
        self._held.append(shown)
        return shown


class _NoWayBack(torch.autograd.Function):
    """An identity whose backward pass refuses: what left the module was not followed to where it met examples."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, meeting: Meeting, leaves: dict[nn.Parameter, Tensor]) -> Tensor:
        ctx.refusal = lambda: meeting.refusal("what it returns", {0: Made(value, leaves)})
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        raise ctx.refusal()
