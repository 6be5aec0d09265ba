"""The cache: for each example, what frozen layers return, computed once."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hoarfrost.errors import InvalidValue
from hoarfrost.gradients import probe
from hoarfrost.gradients.arguments import Examples
from hoarfrost.gradients.frozen_cache import chain
from hoarfrost.gradients.frozen_cache.inputs import Inputs
from hoarfrost.gradients.frozen_cache.outputs import Output, described
from hoarfrost.kept import version

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

EXAMPLES = 5  # on which the cache is tried
PATIENCE = 10  # chunks that may go by until one shows whether padding matters
A_ROW = 300  # bytes that a row takes beside its numbers, about
Rows = list[list[Tensor]]  # for each module, what is stored of a row


@dataclass
class _Plan:
    """What is cached while the frozen weights are these."""

    cut: bool  # rows are stored without their padding
    outputs: tuple[Output, ...]
    state: tuple[Any, ...]
    rows: dict[bytes, Rows] = field(default_factory=dict)
    shaped: dict[Any, tuple[Output, ...]] = field(default_factory=dict)  # by what shape the inputs have
    bytes: int = 0


class FrozenCache:
    """Keeps what the layers before the first trained one return, for each example, in memory.

    Args:
        engine: of the model.
        examples: how many the data set has: with more different inputs than that, the data are drawn anew each time.
        held: the names of parameters that a freezer has frozen and may bring back.
        most: how many bytes it may take; by default half of the machine's memory.

    Guarantees:
        A stored row is a function of one example's own inputs and of weights that nothing trains; it is looked up by a
        digest of those inputs, so that no example gets another's. The step is the one without a cache, but for how
        numbers are rounded: which other examples were in the chunk in which a row was first computed shows in its last
        digits, as a chunk's size does without a cache. What is stored is private, like the data: it lives in this
        process's memory alone, and is in no checkpoint, log or message. If a frozen weight, a buffer or a mode
        (`train`, `eval`) changes, all rows are forgotten.
    """

    def __init__(
        self,
        engine: Engine,
        examples: int,
        *,
        held: Callable[[], set[str]] = set,
        most: float | None = None,
    ) -> None:
        self.engine, self.examples, self._held = engine, examples, held
        self.most = half_of_the_memory() if most is None else most
        self._plan: _Plan | None = None
        self._armed = self._full_told = self._off = False
        self._patience = PATIENCE

    # What is stored; private.

    @property
    def rows(self) -> int:
        """How many examples are stored. Private."""
        return 0 if self._plan is None else len(self._plan.rows)

    @property
    def size(self) -> int:
        """How many bytes they take. Private."""
        return 0 if self._plan is None else self._plan.bytes

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the modules that are not computed again."""
        return () if self._plan is None else tuple(self.engine.name_of(each.module) for each in self._plan.outputs)

    def estimate(self) -> int | None:
        """How many bytes the whole data set will take, as far as the examples so far tell; None before. Private."""
        return round(self.size / self.rows * self.examples) if self.rows else None

    # A run of the model.

    @contextmanager
    def serving(self, where: Examples, arguments: Any) -> Iterator[None]:
        """One run of the model on these rows: what is known of them is not computed again."""
        found = None if self._off else self._found(where, arguments)
        if found is None:
            yield
            return
        with chain.in_place_of({module: (lambda *_, what=what, **__: what) for module, what in found.items()}):
            yield

    def _found(self, where: Examples, arguments: Any) -> dict[nn.Module, Any] | None:
        """What each cached module returns for these inputs; None while nothing is cached."""
        if self._plan is not None and self._state(self._plan.outputs) != self._plan.state:
            self._plan = None
        dims = self.engine.prober.argument_dims(where, arguments)
        if self._plan is None and not self._arm(arguments, dims, where.rows):
            return None
        plan = self._plan
        assert plan is not None
        inputs = Inputs.of(self._forward, arguments, dims, where.rows, cut=plan.cut)
        if plan.cut and inputs.width is None:
            return None  # padded otherwise than at the end
        keys = inputs.keys()
        missing = list({key: row for row, key in enumerate(keys) if key not in plan.rows}.values())
        rows = {key: plan.rows[key] for key in keys if key in plan.rows}
        if missing:
            computed = self._compute(plan, inputs.pick(missing))
            if computed is None:
                return None
            fresh = dict(zip((keys[row] for row in missing), computed, strict=True))
            rows |= fresh
            self._store(plan, fresh)
        outputs = plan.outputs if plan.cut else plan.shaped[inputs.signature()]
        return _put_together(outputs, [rows[key] for key in keys], inputs)

    def _compute(self, plan: _Plan, inputs: Inputs) -> list[Rows] | None:
        """Runs the frozen layers on these rows alone."""
        with self.engine.paused(), probe.random_states_held(probe.cuda_devices(self.engine.model)):
            found = chain.captured(self._forward, inputs, [each.module for each in plan.outputs])
        if found is None:
            self._stop("layers that were cached did not run this time")
            return None
        if not plan.cut:
            plan.shaped[inputs.signature()] = tuple(each.shaped(found[each.module]) for each in plan.outputs)
        return _taken_apart(plan.outputs, found, inputs)

    def _store(self, plan: _Plan, fresh: dict[bytes, Rows]) -> None:
        if len(plan.rows) + len(fresh) > self.examples:
            self._stop(
                "the model was handed more different inputs than the data set has examples: they are drawn anew each "
                "time (random augmentation), or padded to a length that differs while the model looks at the padding"
            )
            return
        for key, rows in fresh.items():
            size = A_ROW + sum(t.numel() * t.element_size() for tensors in rows for t in tensors)
            if plan.bytes + size > self.most:
                if not self._full_told:
                    self._full_told = True
                    warnings.warn(
                        f"cache_frozen: the cache has reached the {self.most / 1e9:.3g} GB that it may take, and what "
                        "frozen layers return for further examples is computed each time. Allow more with "
                        "cache_frozen=<bytes>",
                        stacklevel=2,
                    )
                return
            plan.rows[key] = rows
            plan.bytes += size

    def _stop(self, why: str) -> None:
        self._plan, self._off = None, True
        warnings.warn(f"cache_frozen: {why}. Frozen layers are computed each time from here on", stacklevel=2)

    # What can be cached.

    @property
    def _forward(self) -> Callable[..., Any]:
        return self.engine.root.original

    def _state(self, outputs: Sequence[Output]) -> tuple[Any, ...]:
        """What the stored rows were computed with: weights, buffers and modes, each with what shows a change of it."""
        found: list[Any] = [torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")]
        for output in outputs:
            for module in output.module.modules():
                found.append((id(module), module.training))
                for t in (*module._parameters.values(), *module._buffers.values()):
                    if t is not None:
                        found.append((id(t), t.data_ptr(), version(t), t.requires_grad, t.dtype))
        return tuple(found)

    def _may_move(self, p: nn.Parameter) -> bool:
        names = self._held()
        return p.requires_grad or bool(names and self.engine.trained.get(p) in names)

    def _arm(self, arguments: Any, dims: Any, rows: int) -> bool:
        """Finds out what can be cached, and tries whether the model then returns the same; says whether it does.

        Refuses what cannot be, the first time; later (something was thawed, or dropout switched on) it is said.
        """
        inputs = Inputs.of(self._forward, arguments, dims, rows, cut=True)
        self._patience -= 1
        if rows < 3 or (inputs.width is not None and not inputs.padded and self._patience > 0):
            return False
        refused = ""
        for cut in (True, False) if inputs.padded else (False,):
            tried = Inputs.of(self._forward, arguments, dims, rows, cut=cut)
            with self.engine.prober.held_still(), self.engine.paused(), torch.enable_grad():
                found = self._tried(tried.pick(_spread(tried)))
            if isinstance(found, tuple):
                self._plan, self._armed = _Plan(cut, found, self._state(found)), True
                return True
            refused = found
        if not self._armed:
            raise InvalidValue(f"cache_frozen: {refused}; or leave out cache_frozen")
        self._stop(refused)
        return False

    def _tried(self, inputs: Inputs) -> tuple[Output, ...] | str:
        """What is to be cached; or why nothing can be."""
        model, held = self.engine.model, self._held()
        thawed = [p for p, name in self.engine.trained.items() if name in held and not p.requires_grad]
        buffers = chain.buffers_of(model)
        for p in thawed:
            p.requires_grad_(True)  # so that autograd shows what depends on it
        try:
            calls = chain.traced(model, self._forward, inputs)
        finally:
            for p in thawed:
                p.requires_grad_(False)
        found = chain.Chain(model, calls, self._may_move, chain.changed_since(buffers, model))
        if (random := found.random()) is not None:
            return random
        outputs = self._described(found, calls, inputs)
        if not outputs:
            return found.why_not()
        self._seed()
        plain = chain.served(self._forward, inputs, {})
        rows = self._rows_apart(outputs, inputs)
        if rows is None or not self._is_same(plain, outputs, rows, inputs):
            return (
                "with the outputs of frozen layers in place of the layers the model returns something else: it looks "
                "at padding (pad to a fixed length), or at something that layers keep beside their output "
                "(transformers: use_cache=False)"
            )
        return self._fewest(plain, outputs, rows, inputs)

    def _described(self, found: chain.Chain, calls: dict[nn.Module, chain.Call], inputs: Inputs) -> list[Output]:
        """The largest modules whose outputs have a row for each example."""
        longest = max(range(inputs.rows), key=lambda row: inputs.lengths[row]) if inputs.lengths else 0
        fewer = inputs.pick(sorted({longest, (longest + 1) % inputs.rows}))
        shortest = inputs.pick([min(range(inputs.rows), key=lambda r: inputs.lengths[r])]) if inputs.padded else None
        outputs: dict[nn.Module, Output] = {}

        def take(module: nn.Module) -> bool:
            self._seed()
            some = chain.captured(self._forward, fewer, [module])
            cut = None if shortest is None else chain.captured(self._forward, shortest, [module])
            if some is None or (shortest is not None and cut is None):
                return False
            narrow = None if cut is None else cut[module]
            output = described(module, calls[module].returned, some[module], narrow, (inputs, fewer, shortest))
            if output is not None:
                outputs[module] = output
            return output is not None

        return [outputs[module] for module in found.candidates(take)]

    def _rows_apart(self, outputs: Sequence[Output], inputs: Inputs) -> list[Rows] | None:
        """Every tensor of each row, from runs on each row by itself, cut to its own length where it may be."""
        rows: list[Rows] = []
        for row in range(inputs.rows):
            alone = inputs.pick([row])
            found = chain.captured(self._forward, alone, [each.module for each in outputs])
            if found is None:
                return None
            rows += _taken_apart(outputs, found, alone)
        return rows

    def _fewest(
        self, plain: Any, outputs: Sequence[Output], rows: Sequence[Rows], inputs: Inputs
    ) -> tuple[Output, ...]:
        """Leaves out of what is stored whatever nobody reads: NaN in its place changes nothing."""
        chosen = list(outputs)

        def without(k: int, tensors: frozenset[int]) -> bool:
            fewer = [*chosen[:k], chosen[k].keeping(chosen[k].kept - tensors), *chosen[k + 1 :]]
            stored = [
                [
                    [t for i, t in zip(sorted(full.kept), of, strict=True) if i in each.kept]
                    for full, each, of in zip(outputs, fewer, row, strict=True)
                ]
                for row in rows
            ]
            if self._is_same(plain, fewer, stored, inputs):
                chosen[k] = fewer[k]
                return True
            return False

        for k, output in enumerate(outputs):
            floats = frozenset(i for i in output.kept if output.dtypes[i].is_floating_point)
            if not without(k, floats) and len(floats) > 1:
                for i in sorted(floats):
                    without(k, frozenset({i}))
        return tuple(chosen)

    def _is_same(self, plain: Any, outputs: Sequence[Output], rows: Sequence[Rows], inputs: Inputs) -> bool:
        self._seed()
        return chain.same(plain, chain.served(self._forward, inputs, _put_together(outputs, rows, inputs)))

    def _seed(self) -> None:
        probe.seed_all(0, probe.cuda_devices(self.engine.model))


def half_of_the_memory() -> float:
    """Of this machine, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def _put_together(outputs: Sequence[Output], rows: Sequence[Rows], inputs: Inputs) -> dict[nn.Module, Any]:
    return {each.module: each.served([row[k] for row in rows], inputs) for k, each in enumerate(outputs)}


def _taken_apart(outputs: Sequence[Output], found: dict[nn.Module, Any], inputs: Inputs) -> list[Rows]:
    by_module = [each.rows_of(found[each.module], inputs) for each in outputs]
    return [list(row) for row in zip(*by_module, strict=True)]


def _spread(inputs: Inputs) -> list[int]:
    """A few rows, the shortest and the longest among them."""
    order = sorted(range(inputs.rows), key=lambda row: inputs.lengths[row]) if inputs.lengths else range(inputs.rows)
    chosen = {round(k * (inputs.rows - 1) / (EXAMPLES - 1)) for k in range(EXAMPLES)}
    return [order[k] for k in sorted(chosen)]
