"""Per-example norms and clipped sums in one backward pass.

The engine puts a rule in front of every module that holds parameters. Taps in the autograd graph hand it what each use
of a parameter contributes; when the backward pass ends it has every example's norm, asks the clipper for factors, and
adds the clipped gradients to the sums of the batch. Nothing is kept from a forward pass, so nothing of it can go stale.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hoarfrost.clipping import Clipper, Clipping
from hoarfrost.clipping.base import FADES, GONE, check_clipping
from hoarfrost.errors import NotPrivate
from hoarfrost.gradients.apart import Apart
from hoarfrost.gradients.arguments import Examples, tensors_in
from hoarfrost.gradients.batch_sums import BatchSums, Run
from hoarfrost.gradients.clipped_sum import ClippedSum
from hoarfrost.gradients.contributions import Contribution, combine
from hoarfrost.gradients.encoding import Encoding
from hoarfrost.gradients.forward import ByRule, Root, Uncompiled, Wrapped
from hoarfrost.gradients.loss_watch import LossWatch
from hoarfrost.gradients.plain_gradients import refuse_other_hooks, refuse_plain_gradients
from hoarfrost.gradients.probe import Dims, Seen
from hoarfrost.gradients.prober import Prober
from hoarfrost.gradients.rules import rule_for
from hoarfrost.gradients.rules.base import not_attributable
from hoarfrost.gradients.sharing import Held, Lending
from hoarfrost.gradients.sites import Site
from hoarfrost.gradients.state import StateGuard
from hoarfrost.gradients.structure import Structure, refuse_unfit, set_compilation_aside
from hoarfrost.gradients.tap import Sink, at_full_precision, tap
from hoarfrost.gradients.uses import Uses
from hoarfrost.groups import Groups
from hoarfrost.info import RunInfo
from hoarfrost.masks import Masks, PartialMask
from hoarfrost.observers import Observer, Sums
from hoarfrost.tickets import Ticket, Tickets

Reduction = Literal["mean", "sum"]
IN_A_BACKWARD_PASS = Run(Groups(1))
ROW_CHECKS = 3  # batches on which it is tried whether a clipping's rule works row by row


@dataclass
class _Pass:
    """What one backward pass has brought so far, and the run of the model that it differentiates."""

    ticket: Ticket | None
    call: Run | None
    captured: dict[str, list[Contribution]] = field(default_factory=dict)  # by the parameter's name


class _Running:
    """While it is entered, the engine's run is under way. (A generator would take as long as a small layer.)"""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._engine._running = None


class Engine:
    """Differentiates ``model`` example by example, for the ``parameters`` (by name) that an optimizer will move.

    Args:
        tickets: the loader's: which chunk the training loop works on.
        step: the number of the step that comes next.
        info: what the clipping style may know of the run.
        allow_state: names of parameters and buffers that were declared to be public, and may change by themselves.

    Guarantees:
        Only gradients of examples that the loader handed over enter a sum, each at most once, each scaled by its factor
        for its norm over every live parameter. Sums of different logical batches never meet. All chunks of a batch are
        clipped in the same way, and the sum carries that way with it. A parameter that is reached in any way that the
        rules do not see stops the backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, nn.Parameter],
        clipper: Clipper,
        *,
        loss_reduction: Reduction = "mean",
        views: int = 1,
        batch_first: bool = True,
        tickets: Tickets | None = None,
        step: Callable[[], int] = lambda: 0,
        info: Callable[[], RunInfo] | None = None,
        allow_state: Sequence[str] = (),
    ):
        self.model, self.clipper = model, clipper.fresh()
        self.clipper_repr = repr(self.clipper)  # before anything is observed, which some show
        self.loss_reduction, self.views, self.batch_first = loss_reduction, views, batch_first
        self.sums = BatchSums(tickets or Tickets(), views, self._begin_batch)
        self.encoding = Encoding()
        self.observers: list[Observer] = []
        self.step, self.info = step, info or (lambda: RunInfo({name: p.shape for name, p in parameters.items()}))
        self.masks: Masks = {}  # of parameters of which only some coordinates are live
        self.before_run: Callable[[], None] = lambda: None  # called before the model runs on a batch, once it was seen
        self.order: list[nn.Module] = []  # modules with parameters, as the model uses them; known after the first batch
        self._rows_checked = 0
        self._jumps_told = False
        self._half_told = loss_reduction != "mean"
        self.dropped = 0  # examples whose norm was not finite or too large, and contributed nothing; private
        self.rows = 0  # in the forward pass that is running
        self.groups = self.sums.apart  # whose those are
        self.dims: Dims | None = None  # found on the first batch
        self.shared: frozenset[nn.Module] = frozenset()  # modules whose inputs all examples share
        self.lending = Lending(self)
        self._held = Held(model)
        self.rows_at: dict[Site, int | None] = {}  # found on the first batch
        self.prober = Prober(self)
        # Around each run of the model on a batch: stands in for what need not be computed again.
        self.serving: Callable[[Examples, Any], AbstractContextManager[None]] = lambda where, arguments: nullcontext()
        self.in_layer = False  # a layer's rule is running
        self.seen: Seen | None = None  # what a run shows while the model is looked at
        self._paused = False
        self._names = {module: name or "the model" for name, module in model.named_modules()}
        self._parameters = {p: name for name, p in parameters.items()}
        self._by_name = dict(parameters)
        self._name_by_id = {id(p): name for name, p in parameters.items()}  # a tensor's own hash takes a while
        self.untrained = {p: name for name, p in model.named_parameters() if p not in self._parameters}
        self.clipping: Clipping | None = None  # of the last batch that was begun, found to be sound
        self.clipped: dict[str, None] = {}  # every way in which batches were clipped so far, in words
        self._running: Run | None = None  # of the whole model, while it is under way
        self._passes: dict[int, _Pass] = {}
        self._trial = False  # nothing of the pass that is running is kept
        self.apart = Apart()
        self.loss_watch = LossWatch(self)
        self._losses: int | None = None  # how many `added_up` was told of, while it is under way
        self.anchor = torch.zeros((), requires_grad=True)
        self.anchor.register_hook(self._finish_later)
        self.state = StateGuard(model, parameters, allow_state)
        self.attach()
        if any(p.is_cuda for p in parameters.values()) and torch.backends.cudnn.allow_tf32:
            warnings.warn(
                "TensorFloat-32 rounds norms and sums to three digits, so that one example may move a sum by 0.1 % "
                "more than its sensitivity: set torch.backends.cudnn.allow_tf32 = False.",
                stacklevel=3,
            )

    # The model: rules in front of its modules.

    def attach(self) -> None:
        """Puts the rules in front of the model's modules."""
        if any(isinstance(module.__dict__.get("forward"), Wrapped) for module in self.model.modules()):
            raise NotPrivate(
                "this model is private already. To train it further in a second stage, name the run that it belongs "
                "to: make_private(..., after=private); for a copy.deepcopy of it, too, since its weights have the same "
                "behind them. To begin anew, build the model anew"
            )
        refuse_unfit(self.model)
        rules = {module: rule for module in self.model.modules() if (rule := rule_for(module)) is not None}
        for module, rule in rules.items():
            rule.check(module, self._names[module])
        parameters = self.model.named_parameters()
        self._hooks = {p: refuse_plain_gradients(p, name, lambda: self._paused) for name, p in parameters}
        self._compiled = set_compilation_aside(self.model)
        for module in self._compiled:
            if hasattr(module, "_orig_mod"):
                module.forward = Uncompiled(self, module)
        for module, rule in rules.items():
            module.forward = ByRule(self, module, rule)
        self.ruled = tuple(rules)  # the modules that run by a rule
        self.root = self.model.forward = Root(self, self.model)
        self.structure = Structure(self.model)
        self.state.attach()

    def detach(self) -> None:
        """Takes the rules off again: the model is as it was."""
        for module in self.model.modules():
            if isinstance(forward := module.__dict__.get("forward"), Wrapped):
                forward.step_aside()
        for module, compiled in self._compiled.items():
            module._compiled_call_impl = compiled
        for hook in self._hooks.values():
            hook.remove()
        self.state.detach()

    def refuse_other_hooks(self) -> None:
        """Refuses hooks on trained parameters, which would never be called."""
        for p, name in self._parameters.items():
            if p.requires_grad and p in self._hooks:
                refuse_other_hooks(p, name, self._hooks[p])

    # What rules see (rules.Recorder).

    def name_of(self, module: nn.Module) -> str:
        """The module's name in the model."""
        return self._names[module]

    def trains(self, parameter: nn.Parameter) -> bool:
        """Whether the parameter is live: it wants a gradient, and the optimizer will move it."""
        return self.mask_of(parameter) is not False

    def mask_of(self, parameter: nn.Parameter) -> bool | PartialMask:
        """Which of its coordinates are live; False where it wants no gradient, or the optimizer will not move it."""
        if not parameter.requires_grad:
            return False
        name = self._name_by_id.get(id(parameter))
        if name is None:
            if parameter not in self.untrained:
                self.structure.refuse_changes()
            return False
        return self.masks.get(name, True)

    @property
    def probing(self) -> bool:
        """Whether the model is being looked at."""
        return self.seen is not None

    @property
    def locating(self) -> bool:
        """Whether it is not known yet where the examples are: nothing can be said against a computation."""
        return self.seen is not None and not self.seen.values

    def example_dims(self, module: nn.Module, default: int = 0) -> Callable[[int, Tensor], int | None]:
        """Which dimension of the module's i-th input tensor counts examples; None where the examples share it.

        Refuses a tensor that cannot be attributed to individual examples.
        """
        known = (self.dims or {}).get(module)

        def dim_of(order: int, t: Tensor) -> int | None:
            if known is None and self.dims and list(t.shape).count(self.rows) > 1:
                # It did not run when the examples were located, and more than one dimension could be theirs.
                raise not_attributable(self.name_of(module), module, t, self.rows)
            dim = default if known is None else known[order]
            if dim is not None and (dim < 0 or t.dim() <= dim or t.shape[dim] != self.rows):
                raise not_attributable(self.name_of(module), module, t, self.rows)
            return dim

        return dim_of

    def shares(self, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether all examples share what the module is handed."""
        located = self.dims or {}
        empty = not located and self._running is not None  # the first batch, so that nothing was located yet
        if self._paused or module in located or not (located or empty):
            return module in self.shared and not self._paused
        tensors = tensors_in((args, kwargs))  # it did not run when the examples were located
        return all(t.shape[0] == 1 != self.rows for t in tensors)

    def held(self, t: Tensor) -> bool:
        """Whether the model held this tensor, or its memory, when it was made private: no example is in it."""
        return self._held.has(t)

    def counts_rows(self, site: Site) -> bool | None:
        """Whether what this place in the code makes of nothing, or expands, has a row for each example, if known."""
        return self.rows_at[site] is not None if site in self.rows_at else None

    def rows_along(self, site: Site) -> int | None:
        """Which of its dimensions counts rows, if one does and that is known."""
        return self.rows_at.get(site)

    def tap(self, output: Tensor, sink: Sink, *inputs: Tensor) -> Tensor:
        """``output``, with ``sink(gradient, inputs)`` called in the backward pass."""
        ticket, call = self.sums.ticket, self._call

        def joining(gradient: Tensor, saved: tuple[Tensor, ...]) -> bool:
            first = self._join(ticket, call)
            self._warn_of_half(gradient)
            sink(gradient, saved)
            return first

        return tap(output, self.anchor, joining, *inputs)

    def watch(self, leaf: Tensor, sink: Callable[[Tensor], None]) -> None:
        """Has ``sink(gradient)`` called when the backward pass brings ``leaf`` its whole gradient."""
        if self.seen is not None:
            self.seen.watch_copies(leaf)
            return
        ticket, call = self.sums.ticket, self._call

        def hook(gradient: Tensor) -> None:
            self._join(ticket, call)
            self._warn_of_half(gradient)
            with at_full_precision(gradient.device):
                sink(gradient)
            self._finish_later(gradient)

        leaf.register_hook(hook)

    def add(self, parameter: nn.Parameter, contribution: Contribution) -> None:
        """Records what one use of ``parameter`` contributes to the backward pass that is running, if it is live."""
        if not self.trains(parameter):
            return
        name = self._name_by_id[id(parameter)]
        this_pass = self._passes[torch._C._current_graph_task_id()]
        uses = this_pass.captured.get(name)
        if uses is None:
            this_pass.captured[name] = [contribution]
            return
        if this_pass.call is None:
            raise NotPrivate(
                f"{name} is used twice outside of a run of the whole model: whether both "
                "uses are of the same examples cannot be known. Call the whole model, not its parts."
            )
        uses.append(contribution)

    @property
    def _call(self) -> Run | None:
        """The run of the whole model that what is computed now belongs to; None outside of one."""
        if self._running is not None:  # also where a checkpoint runs the whole model again in a backward pass
            return self._running
        return IN_A_BACKWARD_PASS if torch._C._current_graph_task_id() != -1 else None

    def _join(self, ticket: Ticket | None, call: Run | None) -> bool:
        """Sees that one backward pass differentiates one run of the model: rows of two runs cannot be matched.

        Returns whether this is the first that is heard of the pass.
        """
        if call is IN_A_BACKWARD_PASS:  # as taps of other checkpoints are, too, through which no gradient comes
            raise NotPrivate(
                "a checkpointed part of the model is differentiated in a backward pass of its own, so that an "
                "example's gradient would be clipped in two pieces. Call torch.utils.checkpoint.checkpoint with "
                "use_reentrant=False (transformers: gradient_checkpointing_kwargs={'use_reentrant': False})."
            )
        number = torch._C._current_graph_task_id()
        this_pass = self._passes.get(number)
        if this_pass is None:
            self._passes[number] = _Pass(ticket, call)
            return True
        if this_pass.ticket is not ticket or this_pass.call is not call:
            if this_pass.call is None or call is None:
                raise NotPrivate(
                    "the loss uses a parameter, or a layer, outside of a run of the whole model, beside one: whether "
                    "both uses are of the same examples cannot be known. Do it in the model's forward. Learned weights "
                    "of losses are returned there with a row for each example, self.log_variances.expand(len(x), -1), "
                    "for optimizer.backward with one loss per example."
                )
            raise NotPrivate(
                "one backward() through two calls of the model: whether their rows are the same examples cannot be "
                "known, and their norms would be taken together. Call the model once on the whole batch, or put both "
                "calls into the forward of one module and make that private."
            )
        return False

    def _warn_of_half(self, gradient: Tensor) -> None:
        """A mean loss divides by the number of examples, and half precision rounds the quotient to three digits."""
        if self._half_told or self._losses is not None or gradient.dtype not in (torch.float16, torch.bfloat16):
            return
        self._half_told = True
        warnings.warn(
            f"gradients of a mean loss in {str(gradient.dtype).removeprefix('torch.')} are rounded otherwise for every "
            "batch size: one example more moves what each of the others contributes by up to 1 %, and with clipping "
            "that falls over a width (Global, Adaptive) by up to 10 % of the bound. The stated epsilon holds as far as "
            "that is neglected. Add the losses of a batch up instead: optimizer.backward(losses), with one loss per "
            'example, or loss_reduction="sum"',
            stacklevel=2,
        )

    def running(self, rows: int, run: Run) -> _Running:
        """One run of the whole model on ``rows`` rows."""
        self.state.begin()
        self.rows, self.groups, self._running = rows, run.groups, run
        return _Running(self)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Runs modules as they are, without rules."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    @contextmanager
    def added_up(self, losses: int) -> Iterator[None]:
        """A backward pass in this block differentiates the sum of so many losses, whatever `loss_reduction` is.

        Refuses a number of losses other than that of the rows that the model ran on, of which each has one.
        """
        self._losses = losses
        try:
            yield
        finally:
            self._losses = None

    @contextmanager
    def trial(self, tensors: Sequence[Tensor]) -> Iterator[list[_Pass]]:
        """Nothing of what passes from ``tensors`` bring is kept; it is in what is yielded, when the block is over."""
        known, self._trial = set(self._passes), True
        found: list[_Pass] = []
        try:
            with self.loss_watch.hooks_aside(tensors):
                yield found
        finally:
            self._trial = False
            found += [self._passes.pop(key) for key in self._passes.keys() - known]

    def tried(self, losses: Tensor, weights: Tensor) -> list[list[Contribution]]:
        """What a backward pass from ``losses`` with these weights would bring to each parameter; nothing is kept.

        Of losses of another run than the last one nothing is told: their rows may be other people's than `groups` says.
        """
        with (
            self.trial([losses]) as passes,
            suppress(RuntimeError),
        ):  # reentrant checkpoints cannot be asked in this way
            # Not backward(): what is no part of the model must not be given a gradient.
            torch.autograd.grad(losses, self.anchor, weights, retain_graph=True, allow_unused=True)
        found = [each for each in passes if each.call is None or each.call.groups is self.groups]
        return [parts for each in found for parts in each.captured.values()]

    @property
    def adding_up(self) -> bool:
        """Whether a pass that begins now is one from losses of one example each."""
        return self._losses is not None

    @property
    def trained(self) -> Mapping[nn.Parameter, str]:
        """What the optimizer will move, and its names."""
        return self._parameters

    @property
    def active(self) -> bool:
        """Whether rules apply: whenever a backward pass could follow, in training mode or not."""
        return torch.is_grad_enabled() and not self._paused

    def _begin_batch(self) -> Clipping:
        """How the coming logical batch is clipped."""
        clipping = self.clipper.begin(self.step(), self.info())
        if self.clipping is None or clipping is not self.clipping:
            encoded = self.encoding.like({name: p for p, name in self._parameters.items()})
            alike = self.clipping is not None and clipping.alike is not None and clipping.alike == self.clipping.alike
            self.clipping = check_clipping(clipping, self.clipper, encoded)
            self.clipped[f"{self.clipper_repr}: {clipping}"] = None
            self._rows_checked = self._rows_checked if alike else 0
            if clipping.jumps and not self._jumps_told:
                self._jumps_told = True
                warnings.warn(
                    f"{self.clipper_repr} jumps: one example can move others across the jump by how their norms are "
                    "rounded, and then moves the sum by more than its bound. The stated epsilon holds in exact "
                    "arithmetic alone: for analysis, not for release",
                    stacklevel=2,
                )
        return clipping

    def release(self) -> ClippedSum | None:
        """The clipped sum of the logical batch, once; None while chunks of it are still to come."""
        self._passes.clear()
        return self.sums.release()

    def reset(self) -> None:
        """Forgets everything that was handed over or summed: what follows needs a new batch."""
        self._passes.clear()
        self.sums.reset()

    # The backward pass: from contributions to clipped sums.

    def _finish_later(self, _: Tensor) -> None:
        # At the very end of the pass, where every gradient has arrived, whichever leaf this one belongs to.
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        if self._trial:
            return
        this_pass = self._passes.pop(torch._C._current_graph_task_id(), None)
        if this_pass is None or not this_pass.captured:
            return  # another leaf's callback has been here, or nothing is live
        with torch.no_grad():
            self._clip(this_pass)

    def _clip(self, this_pass: _Pass) -> None:
        """Clips what a backward pass has brought, and adds it to the sums of its batch."""
        captured = this_pass.captured
        counts = {part.examples for parts in captured.values() for part in parts}
        if len(counts) > 1:
            raise NotPrivate("one backward() over different numbers of examples: they cannot be matched")
        examples = counts.pop()
        empty = this_pass.ticket is not None and this_pass.ticket.chunk.examples == 0
        groups = self.sums.apart if this_pass.call is None else this_pass.call.groups
        rows = groups.rows_of(examples)
        if self._losses not in (None, 0 if empty else rows):
            raise NotPrivate(
                "optimizer.backward(losses) has another number of losses than the model had rows, so that they cannot "
                "be the losses of one example each. Hand over one loss for each row of the batch that the model ran "
                "on, and weigh with 0 what shall not count."
            )
        total = self.sums.cover(this_pass.ticket, examples, this_pass.call)
        assert this_pass.ticket is not None  # or it was refused
        self.state.ran()
        if empty:
            return  # an empty batch ran on a stand-in, of which nothing is kept
        parameters = {name: self._by_name[name] for name in captured}
        device = next(iter(parameters.values())).device
        # A mean over the batch divided every row's gradient by their number; what an example's rows bring was added up.
        mean = self.loss_reduction == "mean" and self._losses is None
        scale = groups.scale(examples, mean, device)
        with at_full_precision(device):
            found = {name: self._masked(name, combine(parts)) for name, parts in captured.items()}
            captured.clear()
            uses = Uses(self.encoding.encode(found), total.clipping, self.encoding.like(parameters), device)
            del found
            norms = uses.norms().mul_(scale).float()
            # Not so, either, if one is no number.
            longest = uses.longest * scale if isinstance(scale, float) else float(norms.amax()) if examples else 0.0
            short = longest < FADES
            total.count(norms)
            if self._rows_checked < ROW_CHECKS:
                self._rows_checked += examples > 1
                total.clipping.check_rule(norms)
            factors = every_factor = total.clipping.factors(norms, short=short)
            if not short:
                # 0 × inf is not 0: an example without a norm is left out, not multiplied away.
                kept = (norms.amax(1) < GONE).nonzero().squeeze(1)
                self.dropped += examples - len(kept)
                uses.take(kept)
                factors = factors[kept]
                scale = scale[kept] if isinstance(scale, Tensor) else scale
            weights = factors * scale
            if weights.dtype is not factors.dtype:
                weights = weights.to(factors.dtype)
            looking = self.looking(self.step()) if self.observers else ()
            if not looking:
                for name, clipped in uses.sums(weights, last=True):
                    total.add(name, clipped)
                return
            sums = dict(uses.sums(weights))
            shown = Sums(
                norms=norms,
                factors=every_factor,
                clipping=total.clipping,
                clipped=sums,
                weighted=lambda of_each: dict(uses.sums((of_each if short else of_each[kept]) * scale)),
            )
            for observer in looking:
                observer.on_sums(shown)
            for name, clipped in sums.items():
                total.add(name, clipped)

    def looking(self, step: int) -> list[Observer]:
        """The observers that are to be shown a step."""
        return [observer for observer in self.observers if observer.looks(step)]

    def _masked(self, name: str, use: Contribution) -> Contribution:
        mask = self.masks.get(name, True)
        return use.masked(mask) if isinstance(mask, PartialMask) else use
