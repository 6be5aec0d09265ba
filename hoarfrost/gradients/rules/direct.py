"""Parameters that a module with inner modules uses directly: scales, class tokens, position tables, bare matrices.

While such a module runs, every operation on one of its own parameters is looked at; those of a ParameterList in it,
which never runs itself, are its own. An operation among parameters and constants alone (a slice, an exponential, a
product with a buffer) gives something that all examples share, and that is followed further.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from hoarfrost.gradients.rules.base import Forward, Recorder, Rule
from hoarfrost.gradients.rules.meeting import Meeting
from hoarfrost.gradients.rules.shared import Made, Shared, Source, in_place_of
from hoarfrost.gradients.sites import site


class DirectParametersRule(Rule):
    """Runs the module as it is, following its own parameters."""

    runs_in_probe = True

    def recorded(self, module: nn.Module) -> Iterable[nn.Parameter]:
        return (p for _, p in own_parameters(module))

    def forward(self, recorder: Recorder, module: nn.Module, original: Forward, args: Any, kwargs: Any) -> Any:
        follower = _Follower(recorder, module)
        with in_place_of(follower.shared), follower:
            return original(*args, **kwargs)


def own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """A module's parameters by name, with those of inner modules that only hold them.

    >>> import torch
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


def holders(module: nn.Module) -> Iterator[nn.Module]:
    """The module, and inner ones that only hold parameters."""
    yield module
    for child in module.children():
        if only_holds(child):
            yield from holders(child)


def only_holds(module: nn.Module) -> bool:
    """Whether the module has no `forward`, as lists and dictionaries have none: what it holds is used from outside."""
    return type(module).forward is nn.Module.forward and "forward" not in vars(module)


class Following(TorchFunctionMode):
    """While this lasts, what is made of nothing is known to hold no example."""

    def __init__(self, meeting: Meeting):
        super().__init__()
        self.meeting = meeting
        self.own: dict[int, Made] = {}  # by the id of a parameter or buffer, however it is read

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.meeting.recorder.in_layer:
            return func(*args, **kwargs)
        if not any(isinstance(item, Tensor) for item in tree_leaves((args, kwargs))):
            return self._made_of_nothing(func(*args, **kwargs))
        return self.meeting.call(func, args, kwargs, self.own)

    def _made_of_nothing(self, made: Any) -> Any:
        """It is public; what may have a row for each example is none of what all share."""
        if type(made) is not Tensor:
            return made
        recorder = self.meeting.recorder
        shares = recorder.counts_rows(site()) is False or made.shape[:1] != (recorder.rows,)
        return Shared.of(Made(made), self.meeting) if shares else made


class _Follower(Following):
    def __init__(self, recorder: Recorder, module: nn.Module):
        super().__init__(Meeting(recorder, module))
        # What a layer inside of it holds, too (the bias of BERT's head for words), is that layer's business.
        inside = {p for child in module.children() if not only_holds(child) for p in child.parameters()}
        for name, p in own_parameters(module):
            if p in inside:
                continue
            source = Source(p, name, p) if p.requires_grad else None
            self.own[id(p)] = Made(p.detach()) if source is None else Made(source.stand_in, (source,))
        # Where they are read from the module, that they are shared is seen by inner modules as well.
        self.shared = {
            holder: {
                key: Shared.of(made, self.meeting)
                for key, p in holder._parameters.items()
                if (made := self.own.get(id(p))) is not None and made.sources
            }
            for holder in holders(module)
        }
        self.own |= {id(b): Made(b) for b in module.buffers(recurse=False)}
