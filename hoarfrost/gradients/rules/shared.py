"""Tensors that all examples share, made from parameters and constants alone, until they meet a tensor of examples.

Rows of a table of positions, a weight that is read outside of its layer, what a layer makes of either: one gradient
comes back to such a tensor, the sum over all examples. So it is followed: an operation among shared tensors gives a
shared one, and where one meets a tensor of examples, `hoarfrost.gradients.rules.meeting` finds each example's gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.contributions import Contribution
from hoarfrost.gradients.rules.base import Recorder
from hoarfrost.gradients.rules.embedding import rows_of_table

if TYPE_CHECKING:
    from hoarfrost.gradients.rules.meeting import Meeting


_SOURCE = "_shared_source"  # an attribute of stand-ins


class Source:
    """What a shared tensor was made from: a live parameter, or rows of one.

    Args:
        name: in the module that uses it.
        stand_in: the detached tensor that was computed with.
        rows: which rows of the parameter that is; None: all of it, as it is.
        padding: the row that gets no gradient.
    """

    def __init__(
        self,
        parameter: nn.Parameter,
        name: str,
        stand_in: Tensor,
        rows: Tensor | None = None,
        padding: int | None = None,
    ) -> None:
        self.parameter, self.name, self.rows, self.padding = parameter, name, rows, padding
        self.used = False  # something with a gradient was computed from it
        with torch._C.DisableTorchFunction():  # what is done here is none of the model's operations
            self.stand_in = stand_in.detach().requires_grad_()
            setattr(self.stand_in, _SOURCE, self)
            self.stand_in.register_post_accumulate_grad_hook(partial(_refuse, name))

    def add(self, recorder: Recorder, contribution: Contribution) -> None:
        """Records what arrived at the stand-in."""
        if self.rows is None:
            recorder.add(self.parameter, contribution)
            return
        gradients = contribution.instantiate()
        index = self.rows.expand(len(gradients), *self.rows.shape)
        recorder.add(self.parameter, rows_of_table(index, gradients, len(self.parameter), self.padding))


def _refuse(name: str, _: Tensor) -> None:
    """A gradient has come back in one piece."""
    raise NotPrivate(
        f"the parameter {name} is used past torch's functions (in an autograd.Function or a scripted function), or in "
        "the loss without an example, so that its gradient cannot be attributed to individual examples. Move what is "
        "computed with it into a small module of its own, and penalties on weights into the optimizer: weight_decay=."
    )


class Made:
    """A tensor made from parameters and constants alone, and what it was made from.

    Args:
        value: the tensor; its graph ends at the sources' stand-ins.
        sources: none of them: a constant.
    """

    __slots__ = ("sources", "value", "version")

    def __init__(self, value: Tensor, sources: tuple[Source, ...] = ()) -> None:
        self.value, self.sources = value, sources
        self.version = _version(value)

    @property
    def was_written(self) -> bool:
        """Whether something has changed it since, maybe by a view."""
        return _version(self.value) != self.version or self.value.requires_grad != bool(self.sources)

    def now(self) -> Made:
        """What it is now."""
        return Made(self.value, sources_of(self.value)) if self.was_written else self


def _version(t: Tensor) -> int:
    return 0 if t.is_inference() else t._version


def sources_of(value: Tensor) -> tuple[Source, ...]:
    """What the graph of something shared ends at."""
    if not value.requires_grad:
        return ()
    found: dict[Source, None] = {}
    with torch.enable_grad():
        todo, seen = [torch.autograd.graph.get_gradient_edge(value).node], set[Any]()
    while todo:
        node: Any = todo.pop()
        seen.add(node)
        todo += [below for below, _ in node.next_functions if below is not None and below not in seen]
        if (leaf := getattr(node, "variable", None)) is None:
            continue
        source = getattr(leaf, _SOURCE, None)
        if source is None:
            names = ", ".join(source.name for source in found) or "a parameter"
            raise NotPrivate(
                f"{names} is combined with something else that has a gradient before it meets examples, where its "
                "gradient cannot be attributed to individual examples. Move both, and this computation, into one module"
            )
        found[source] = None
    return tuple(found)


class Shared(Tensor):
    """A tensor like any other, of which every use is seen."""

    made: Made
    meeting: Meeting

    def made_now(self) -> Made:
        """What it was made from, as it is now."""
        if not self.made.sources:
            with torch._C.DisableTorchFunctionSubclass(), torch.enable_grad():
                if self.requires_grad and not self.made.value.requires_grad:
                    # An autograd.Function computed it without gradients, and put it into the graph then.
                    self.made = Made(self.as_subclass(Tensor))
        self.made = self.made.now()
        return self.made

    @staticmethod
    def of(made: Made, meeting: Meeting) -> Shared:
        shared: Shared = made.value.as_subclass(Shared)
        shared.made, shared.meeting = made, meeting
        return shared

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        meeting = next((item.meeting for item in tree_leaves((args, kwargs)) if type(item) is Shared), None)
        kept = not torch.is_grad_enabled() and torch._C._current_graph_task_id() != -1  # by an autograd.Function
        if meeting is None or kept:  # or it is the end of a slice, say
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        return meeting.call(func, args, kwargs)


def plain(item: Any) -> Any:
    """The arguments of a call with plain tensors in place of shared ones."""
    return tree_map(lambda t: t.made.value if type(t) is Shared else t, item)


def any_shared(args: Any, kwargs: Any) -> bool:
    """Whether one of a call's tensors is shared; asked at every call of a module."""
    for item in args:
        if type(item) is Shared:
            return True
    return bool(kwargs) and any(type(item) is Shared for item in kwargs.values())


def all_shared(args: Any, kwargs: Any) -> bool:
    """Whether all of them are."""
    return all(type(item) is Shared for item in tree_leaves((args, kwargs)) if isinstance(item, Tensor))


@contextmanager
def in_place_of(parameters: Mapping[nn.Module, Mapping[str, Any]]) -> Iterator[None]:
    """While this lasts, modules have these in place of some of their parameters, by name."""
    before = [(module, module._parameters) for module in parameters]
    try:
        for module, own in before:
            module.__dict__["_parameters"] = {**own, **parameters[module]}
        yield
    finally:
        for module, own in before:
            module.__dict__["_parameters"] = own
