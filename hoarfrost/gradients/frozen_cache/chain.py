"""Which modules run before anything that is trained, and what is known of them: found in one run of the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.gradients import probe
from hoarfrost.gradients.frozen_cache.inputs import Inputs
from hoarfrost.gradients.frozen_cache.outputs import tensors_of
from hoarfrost.gradients.rules.direct import only_holds, own_parameters
from hoarfrost.kept import version
from hoarfrost.nested import map_tensors

Forward = Callable[..., Any]
MayMove = Callable[[nn.Parameter], bool]


@dataclass
class Call:
    """What one run of the model showed of a module."""

    times: int = 0
    entered: int = 0
    left: int = 0
    returned: Any = None
    drew: int | None = None  # when it first was done, and random numbers had been drawn by then
    differentiable: bool = False  # what it returns depends on something that is trained


class _Enough(BaseException):
    """Ends a run of the model once all that was asked for is there."""


@contextmanager
def in_place_of(forwards: Mapping[nn.Module, Forward]) -> Iterator[None]:
    """Modules run by something else for as long as this lasts."""
    before = {module: module.__dict__.get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.__dict__["forward"] = forward
        yield
    finally:
        for module, own in before.items():
            if own is None:
                del module.__dict__["forward"]
            else:
                module.__dict__["forward"] = own


def traced(model: nn.Module, forward: Forward, inputs: Inputs) -> dict[nn.Module, Call]:
    """A run of the whole model, whose own ``forward`` this is: every module that is called in it."""
    devices = probe.cuda_devices(model)
    calls: dict[nn.Module, Call] = {}
    clock, beginning = count(), probe.random_states(devices)

    def recorded(module: nn.Module, before: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            call = calls.setdefault(module, Call(entered=next(clock)))
            returned = before(*args, **kwargs)
            call.times, call.left = call.times + 1, next(clock)
            if call.drew is None and probe.random_states(devices) != beginning:
                call.drew = call.left
            call.differentiable = any(t.requires_grad for t in tensors_of(returned))
            call.returned = map_tensors(lambda t: t.detach().clone(), returned)
            return returned

        return run

    inner = [module for module in model.modules() if module is not model and not only_holds(module)]
    with in_place_of({module: recorded(module, module.forward) for module in inner}):
        _call(forward, inputs)
    return calls


def captured(forward: Forward, inputs: Inputs, modules: Iterable[nn.Module]) -> dict[nn.Module, Any] | None:
    """What these modules return in a run of the model that goes no further; None if one of them does not run."""
    found: dict[nn.Module, Any] = {}
    missing = set(modules)

    def recorded(module: nn.Module, before: Forward) -> Forward:
        def run(*args: Any, **kwargs: Any) -> Any:
            found[module] = map_tensors(lambda t: t.detach().clone(), before(*args, **kwargs))
            missing.discard(module)
            if not missing:
                raise _Enough
            return found[module]

        return run

    try:
        with in_place_of({module: recorded(module, module.forward) for module in missing}):
            _call(forward, inputs)
    except _Enough:
        return found
    return None


def served(forward: Forward, inputs: Inputs, returned: Mapping[nn.Module, Any]) -> Any:
    """What the model returns if these modules return this."""
    with in_place_of({module: (lambda *_, what=what, **__: what) for module, what in returned.items()}):
        return _call(forward, inputs)


def _call(forward: Forward, inputs: Inputs) -> Any:
    args, kwargs = inputs.arguments
    return forward(*args, **kwargs)


class Chain:
    """What of a model's modules may be cached: all that is done before the first trained module begins.

    A module may be if it has parameters, none of them (or of the modules in it) is trained, it runs once, nothing
    random was drawn before it was done, and no buffer in it changes.
    """

    def __init__(self, model: nn.Module, calls: Mapping[nn.Module, Call], may_move: MayMove, changed: set[int]) -> None:
        self._calls, self._may_move, self._changed = calls, may_move, changed
        self._names = {module: name for name, module in model.named_modules()}
        trained = [m for m in calls if any(may_move(p) for _, p in own_parameters(m))]
        self.first = min(trained, key=lambda m: calls[m].entered, default=None)
        if any(may_move(p) for _, p in own_parameters(model)):
            self.first = model
        self._until = -1 if self.first is model else calls[self.first].entered if self.first is not None else None
        self._model = model

    def candidates(self, take: Callable[[nn.Module], bool]) -> list[nn.Module]:
        """The largest modules that may be cached and that ``take`` agrees to, as they run."""

        def within(module: nn.Module) -> Iterator[nn.Module]:
            for child in module.children():
                if self._may_be(child) and take(child):
                    yield child
                else:
                    yield from within(child)

        return sorted(dict.fromkeys(within(self._model)), key=lambda module: self._calls[module].left)

    def _may_be(self, module: nn.Module) -> bool:
        call, parameters = self._calls.get(module), list(module.parameters())
        return (
            call is not None
            and call.times == 1
            and (self._until is None or call.left < self._until)
            and bool(parameters)
            and not any(map(self._may_move, parameters))
            and call.drew is None
            and not call.differentiable
            and not any(id(b) in self._changed for b in module.buffers())
        )

    def random(self) -> str | None:
        """What draws random numbers before a frozen layer is done that could be cached otherwise, in a sentence."""
        drew = {call.drew: m for m, call in self._calls.items() if call.drew is not None}
        until = self._until
        behind = [
            m
            for m, call in self._calls.items()
            if call.drew is not None
            and (until is None or call.left < until)
            and any(not self._may_move(p) for p in m.parameters(recurse=False))
        ]
        if not behind:
            return None
        first = drew[min(drew)]
        return (
            f"{self._names[first]} ({type(first).__name__}) draws random numbers, so that what comes after it is "
            "another thing in every epoch. eval() of what is frozen, after model.train(), switches its dropout off; so "
            "does a rate of 0 in the model's configuration"
        )

    def why_not(self) -> str:
        """Why nothing can be cached, in a sentence."""
        frozen = [m for m in self._calls if any(not self._may_move(p) for p in m.parameters(recurse=False))]
        if not frozen:
            return (
                "no layer is frozen for the whole run. Switch off what shall not be trained before make_private, with "
                "requires_grad_(False); what a freezer freezes may come back"
            )
        first = self.first
        if first is not None:
            return (
                f"{self._names[first] or 'the model'} ({type(first).__name__}) is trained and runs before any frozen "
                "layer is done. Only what runs before the first trained layer is the same in every epoch"
            )
        return "no frozen layer returns one row for each example, made of tensors (transformers: use_cache=False)"


def buffers_of(model: nn.Module) -> dict[int, tuple[Tensor, int]]:
    """The buffers and how often they were written to."""
    return {id(b): (b, version(b)) for b in model.buffers()}


def changed_since(before: Mapping[int, tuple[Tensor, int]], model: nn.Module) -> set[int]:
    """The buffers, by their ids, that are new or were written to since then."""
    now = buffers_of(model)
    return {key for key, (_, times) in now.items() if key not in before or before[key][1] != times}


def same(a: Any, b: Any) -> bool:
    """Whether two things that a model returned hold the same numbers, as far as rounding allows."""
    one, other = probe.leaves(a), probe.leaves(b)
    return len(one) == len(other) and all(map(_close, one, other))


def _close(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return not isinstance(a, Tensor) and not isinstance(b, Tensor)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    tolerance = 3e-2 if a.dtype in (torch.float16, torch.bfloat16) or torch.is_autocast_enabled(a.device.type) else 1e-4
    finite = a.detach()[a.detach().isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 1.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * size, equal_nan=True)
