"""How a module is made to run by its rule: its instance's `forward` is a small object that can step aside."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.arguments import examples_in, tensors_in
from hoarfrost.gradients.carried import Carried
from hoarfrost.gradients.empty_run import run_on_nothing
from hoarfrost.gradients.in_front import refuse_picked
from hoarfrost.gradients.probe import Seen
from hoarfrost.gradients.rules import Rule
from hoarfrost.gradients.rules.shared import all_shared, any_shared, plain
from hoarfrost.gradients.sharing import as_constants, run_shared

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine


# What torch.compile runs frames with: None outside of it, where nothing has to be kept from being compiled.
_compiling = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: "not known")
_MARK = "_had_private_steps"  # an attribute of copies: theirs have it in turn, and pickles


def is_copy(model: nn.Module) -> bool:
    """Whether it is a copy of a model that had private steps behind it then."""
    return _MARK in model.__dict__


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

    @property
    def __signature__(self) -> inspect.Signature:
        """That of the module's own `forward`: trainers look there which columns of a data set the model takes."""
        return inspect.signature(self.original)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _plain_forward(memo[id(self.module)])

    def __reduce__(self) -> Any:
        return _plain_forward, (self.module,)


class ByRule(Wrapped):
    """Runs one module by its rule wherever a backward pass could follow."""

    def __init__(self, engine: Engine, module: nn.Module, rule: Rule):
        super().__init__(engine, module)
        self.rule = rule
        recorded = {id(p) for p in rule.recorded(module)}
        self.holders = tuple(m for m in module.modules() if any(id(p) in recorded for p in m._parameters.values()))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        if not engine.active and engine.seen is None:
            return self.original(*args, **kwargs)
        if engine.lending.under_way:
            with engine.lending.returned(self.holders):
                return self._run(*args, **kwargs)
        return self._run(*args, **kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        engine, module = self.engine, self.module
        rule = self.rule.for_call(module, args, kwargs)
        rule.check(module, engine.name_of(module))  # model.train() may have changed the answer
        shares = not rule.runs_in_probe and (any_shared(args, kwargs) or engine.shares(module, args, kwargs))
        if rule.runs_in_probe and engine.shares(module, args, kwargs):  # which it can follow, knowing it
            args, kwargs = as_constants(engine, module, args, kwargs)
        if engine.seen is not None:
            return self._shown(rule, engine.seen, shares, *args, **kwargs)
        for p in rule.recorded(module):
            if p.requires_grad:
                break
        else:
            return self.original(*args, **kwargs)
        if shares:
            return run_shared(engine, module, self.original, args, kwargs)
        if rule.runs_in_probe:
            return rule.forward(engine, module, self.original, args, kwargs)
        engine.in_layer = True  # what its rule computes is none of the model's operations
        try:
            return rule.forward(engine, module, self.original, args, kwargs)
        finally:
            engine.in_layer = False

    def _shown(self, rule: Rule, seen: Seen, shares: bool, *args: Any, **kwargs: Any) -> Any:
        """A run while the examples are being located, or looked at."""
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise NotPrivate(
                f"{self.engine.name_of(self.module)} ({type(self.module).__name__}) runs inside of a transform of "
                "torch.func (vmap, grad, jvp, ...), where gradients of individual examples cannot be told. Write what "
                "it computes for the whole batch: a layer takes all examples at once; an ensemble can hold its weights "
                "as one parameter [members, out, in] and use torch.einsum; a slope of the model's output by its input "
                "is not differentiated once more"
            )
        # A layer may be handed examples at some calls, and what all share at others (an identity matrix).
        kind = "shared " if shares and any_shared(args, kwargs) and all_shared(args, kwargs) else ""
        seen.record(self.module, plain(args), plain(kwargs), f"{kind}input")
        if shares:
            output = run_shared(self.engine, self.module, self.original, args, kwargs)
            seen.record(self.module, (plain(output),), {}, f"{kind}output")
            return output
        if not rule.runs_in_probe:
            with nullcontext() if self.holders == (self.module,) else self.engine.paused():  # inner ones are run by it
                output = self.original(*args, **kwargs)
            return seen.leave(self.module, output)
        outside, seen.inside = seen.inside, self.module
        try:
            output = rule.forward(self.engine, self.module, self.original, args, kwargs)
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
        self._carried = Carried(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _plain_forward(memo[id(self.module)], self.engine.step() > 0)

    def __reduce__(self) -> Any:
        return _plain_forward, (self.module, self.engine.step() > 0)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or _compiling() is not None:
            return self._uncompiled(*args, **kwargs)
        return self._run(*args, **kwargs)  # as ever: to go by the way that is not compiled takes a while

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        engine = self.engine
        if not engine.active or engine.seen is not None:
            return self.original(*args, **kwargs)
        engine.structure.refuse_changes()
        tensors = tensors_in((args, kwargs) if kwargs else args)
        where = examples_in(tensors, engine.sums.open(tensors), engine.batch_first)
        self._carried.arriving(tensors, engine.sums.ticket)
        engine.loss_watch.forget()
        if where.rows == 0:
            return run_on_nothing(engine, self.original, where, (args, kwargs))
        if engine.loss_watch.beginning and engine.sums.ticket is not None:
            refuse_picked(engine.sums.ticket, tensors, where.rows, engine.sums.ticket.chunk.rows(engine.views))
        engine.prober.before_run(where, (args, kwargs))
        engine.before_run()
        run = engine.sums.begin(where.rows, tensors, where.dim)
        with engine.running(where.rows, run), engine.serving(where, (args, kwargs)), engine.lending.lent():
            output = self.original(*args, **kwargs)
        engine.state.ran()
        self._carried.leaving(output, engine.sums.ticket)
        engine.loss_watch.ran(run, where.rows, output)
        return output


def _plain_forward(module: nn.Module, mark: bool = False) -> Any:
    if mark:
        module.__dict__[_MARK] = True
    return MethodType(type(module).forward, module)
