"""Parameters that a module with inner modules uses directly: scales, class tokens, position tables, bare matrices.

While such a module runs, every operation on one of its own parameters is looked at; those of a ParameterList in it,
which never runs itself, are its own. An operation among parameters and constants alone (a slice, an exponential, a
product with a buffer) gives something that is followed further. Where it meets a tensor of examples,
`hoarfrost.gradients.rules.meeting` sees that each example's gradient is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

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
        with _Follower(recorder, module):
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


class _Follower(TorchFunctionMode):
    def __init__(self, recorder: Recorder, module: nn.Module):
        super().__init__()
        self.differentiating = torch.is_grad_enabled()  # off while the examples are being located
        self.made: dict[int, Made] = {}  # by the id of a tensor that is kept in there
        names: dict[nn.Parameter, str] = {}
        for name, p in own_parameters(module):
            names[p] = name
            if p.requires_grad:
                leaf = p.detach().requires_grad_()
                self.made[id(p)] = Made(leaf, {p: leaf})
            else:
                self.made[id(p)] = Made(p.detach(), {})
        self.made |= {id(b): Made(b, {}) for b in module.buffers(recurse=False)}
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

    def _among_themselves(self, func: Any, flat: list[Any], own: dict[int, Made], structure: Any) -> Any:
        leaves: dict[nn.Parameter, Tensor] = {}
        for i, made in own.items():
            leaves |= made.leaves
            flat[i] = made.value
        args, kwargs = tree_unflatten(flat, structure)
        with torch.enable_grad():  # which says what is a constant
            return self._kept(func(*args, **kwargs), leaves)

    def _kept(self, result: Any, leaves: dict[nn.Parameter, Tensor]) -> Any:
        for t in tree_flatten(result)[0]:
            if isinstance(t, Tensor):
                self.made[id(t)] = Made(t, leaves if t.requires_grad else {})
        return result
