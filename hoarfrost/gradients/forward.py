"""How a module is made to run by its rule: its instance's `forward` is a small object that can step aside."""

from __future__ import annotations

import weakref
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hoarfrost.gradients import probe
from hoarfrost.gradients.empty_run import run_on_nothing
from hoarfrost.gradients.probe import Seen
from hoarfrost.gradients.rules import Rule

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine


_copies: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def is_copy(model: nn.Module) -> bool:
    """Whether it is a copy of a model that had private steps behind it then."""
    return model in _copies


class Wrapped:
    """Stands in for a module's `forward`. Copies and pickles of the module get the plain `forward` back.

    A copy is not known to the engine: it trains, or averages weights, as an ordinary module.
    """

    def __init__(self, engine: Engine, module: nn.Module):
        self.engine, self.module, self.original = engine, module, module.forward

    def step_aside(self) -> None:
        """The module has its own `forward` again."""
        original = self.original
        while isinstance(original, Wrapped):
            original = original.original
        del self.module.forward
        if getattr(original, "__func__", None) is not type(self.module).forward:
            self.module.forward = original  # somebody had put another one there

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _plain_forward(memo[id(self.module)])

    def __reduce__(self) -> Any:
        return _plain_forward, (self.module,)


class ByRule(Wrapped):
    """Runs one module by its rule wherever a backward pass could follow."""

    def __init__(self, engine: Engine, module: nn.Module, rule: Rule):
        super().__init__(engine, module)
        self.rule = rule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        if engine.seen is not None or engine.active:
            self.rule.check(self.module, engine.name_of(self.module))  # model.train() may have changed the answer
        if engine.seen is not None:
            return self._shown(engine.seen, *args, **kwargs)
        if not engine.active or not any(p.requires_grad for p in self.module.parameters(self.rule.recurse)):
            return self.original(*args, **kwargs)
        return self.rule.forward(engine, self.module, self.original, args, kwargs)

    def _shown(self, seen: Seen, *args: Any, **kwargs: Any) -> Any:
        """A run while the examples are being located, or looked at."""
        seen.record(self.module, args, kwargs)
        if not self.rule.runs_in_probe:
            return seen.leave(self.module, self.original(*args, **kwargs))
        outside, seen.inside = seen.inside, self.module
        try:
            output = self.rule.forward(self.engine, self.module, self.original, args, kwargs)
            return seen.leave(self.module, output)
        finally:
            seen.inside = outside


class Uncompiled(Wrapped):
    """What torch.compile returns for a module, running that module as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module._orig_mod(*args, **kwargs)  # type: ignore[operator]


class Root(Wrapped):
    """The whole model: learns how many examples a batch has, and on the first one, where they are."""

    def __init__(self, engine: Engine, module: nn.Module):
        super().__init__(engine, module)
        # A torch.compile around the private model (or around a loop that calls it) leaves out what is in here.
        self._uncompiled = torch.compiler.disable(self._run)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if self.engine.step() > 0:
            _copies.add(memo[id(self.module)])
        return super().__deepcopy__(memo)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._uncompiled(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        if not engine.active or engine.seen is not None:
            return self.original(*args, **kwargs)
        engine.structure.refuse_changes()
        tensors = probe.tensors_in((args, kwargs))
        where = probe.examples_in(tensors, engine.sums.open(tensors), engine.batch_first)
        if where.rows == 0:
            return run_on_nothing(engine, self.original, where, (args, kwargs))
        engine.prober.before_run(where, (args, kwargs))
        engine.before_run()
        run = engine.sums.begin(where.rows, tensors, where.dim)
        with engine.running(where.rows, run):
            output = self.original(*args, **kwargs)
        engine.state.ran()
        engine.loss_watch.ran(run, where.rows, output)
        return output


def _plain_forward(module: nn.Module) -> Any:
    return MethodType(type(module).forward, module)
