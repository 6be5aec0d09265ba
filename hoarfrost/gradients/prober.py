"""When a model is looked at, and one run of it for that."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hoarfrost.errors import HoarfrostError, NotPrivate
from hoarfrost.gradients import probe
from hoarfrost.gradients.arguments import ArgumentDims, Examples, pick
from hoarfrost.gradients.few import Few
from hoarfrost.gradients.in_front import refuse_hooks
from hoarfrost.gradients.mixing import Look
from hoarfrost.gradients.probe import PAIRED, Place, Seen
from hoarfrost.gradients.sites import counting
from hoarfrost.gradients.trials import FORWARD
from hoarfrost.kept import Kept, matches, refusal

if TYPE_CHECKING:
    from hoarfrost.gradients.engine import Engine

EXAMPLES = 6  # that are looked at
ENOUGH = 10  # batches of one or two examples that are looked at before it is left at that
SEEDS = 4  # with which the model runs until every layer was seen
SHARE = 0.02  # of all rows that the model runs on, that later looks may take


class Prober:
    """Looks at a model, and says when it is time to look again."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.passes = 0.0  # plain passes forward and backward that were made, in all
        self._looked: dict[bool, int] = {}  # how often, in training mode and in evaluation mode
        self.dims: dict[Place, tuple[int | None, ...]] = {}
        self.outputs: list[int | None] = []
        self._few: Few | None = None  # looked at last
        self._arguments: ArgumentDims | None = None  # where the examples were in what the model was handed
        self._rows = self._rows_later = 0  # that the model was trained on; that later looks took
        self._counting = False
        self._next = 1  # the step after which to look again
        self._turn = 0
        self._last = 0  # the step of the last look

    def before_run(self, where: Examples, arguments: Any) -> None:
        """The model is about to run on a batch: looks at it, if it is time."""
        mode, views = self.engine.model.training, self.engine.views
        if self.engine.dims is None or self._looked.get(mode, 0) < ENOUGH:
            # A model may behave otherwise in training mode, and one or two examples do not show whether they mix.
            self._locate(where, arguments)
            self._looked[mode] = ENOUGH if where.rows >= 3 * views else self._looked.get(mode, 0) + 1
            self._last = self.engine.step()
        elif self.engine.step() >= self._next and self._affordable():
            self._few = self._choose(where, arguments, self.argument_dims(where, arguments))
            self.again()
        self._rows += where.rows

    def argument_dims(self, where: Examples, arguments: Any) -> ArgumentDims:
        """Where the examples are in what the model is handed, as found when it was looked at."""
        return next(where.guesses(arguments, self._arguments))

    def at_a_save(self) -> None:
        """What is about to be saved may have opened a gate since the last look."""
        if self.engine.step() > self._last and self._affordable():
            self.again()

    def _affordable(self) -> bool:
        return self._rows_later + 4 * EXAMPLES * self.engine.views <= SHARE * self._rows

    def _locate(self, where: Examples, arguments: Any) -> None:
        """Looks at a batch, with its examples where they fit: a model cannot run on two words and the states of all."""
        failed: Exception | None = None
        for dims in where.guesses(arguments, self._arguments):
            try:
                guessed = dims not in (self._arguments, where.dims(arguments))
                self.look(self._choose(where, arguments, dims), where if guessed else None)
            except HoarfrostError:
                raise
            except Exception as error:
                failed = failed or error
            else:
                self._arguments = dims
                return
        assert failed is not None
        failed.add_note(
            "This came of running the model on a few examples of the batch, taken out of every tensor that it is "
            "handed. If it does run on whole batches, keep what all examples share in the model (register_buffer)."
        )
        raise failed

    def _choose(self, where: Examples, arguments: Any, dims: ArgumentDims) -> Few:
        views = self.engine.views
        count = where.rows // views  # spread over the batch, whose neighbours may be alike
        chosen = sorted({round(k * (count - 1) / max(1, EXAMPLES - 1)) for k in range(EXAMPLES)})
        rows = [example * views + view for example in chosen for view in range(views)]
        return Few(len(chosen), views, dims, pick(arguments, dims, rows))

    def look(self, few: Few, whole: Examples | None = None) -> None:
        """Where the examples are, and everything that can be seen of whether they mix.

        Args:
            whole: the batch, if it was guessed where they are in it.
        """
        engine = self.engine
        found: dict[Place, tuple[int | None, ...]] = {}
        with self.held_still() as kept, torch.no_grad():
            for seed in range(SEEDS):
                two = self._run_lending(kept, few.pick([0, 0]), seed)
                three = self._run_lending(kept, few.pick([0] * 3), seed)
                engine.order = engine.order or probe.order_of(two)
                found = probe.locate(engine, two, three) | found
                if all(found.keys() & {(module, "input"), (module, "shared input")} for module in engine.ruled):
                    break  # or some layers are left out at random (LayerDrop), and others with other numbers
            outputs = probe.locate_outputs(engine, two, three)
            if whole is not None and probe.is_wrong(whole, two, three, outputs):
                raise RuntimeError("a wrong guess of where the examples are in what the model is handed")
            self.dims |= found
            self.outputs = outputs
            dims = engine.dims or {}
            for which in ("shared input", "input"):
                dims = dims | {m: each for (m, kind), each in self.dims.items() if kind == which}
            engine.dims = dims
            engine.shared = frozenset(m for m, each in dims.items() if all(dim is None for dim in each))
            engine.rows_at |= counting(two.sizes, three.sizes)
            self._refuse_pairs(three, few)
        for gradients in (True, False):  # some modules run as they are without gradients alone
            with self.held_still() as kept, torch.set_grad_enabled(gradients):
                if Look(self, kept, few).everything():
                    break
        if engine.model._forward_pre_hooks:
            refuse_hooks(engine, few)
        self._few = few

    def again(self) -> None:
        """Looks at one of the examples once more."""
        if self._few is None or self._few.count < 2 or not self.dims:
            return
        self._counting = True
        try:
            with self.held_still() as kept, torch.enable_grad():
                Look(self, kept, self._few).briefly(self._turn)
        finally:
            self._counting = False
        step = self.engine.step()
        self._turn, self._last = self._turn + 1, step
        while self._next <= step:
            self._next *= 10

    def made_up(self, rows: int, args: Any, kwargs: Any) -> Any:
        """What the model returns for so many rows of made-up examples; also shows the order of its modules."""
        engine = self.engine
        few = Few(rows // engine.views, engine.views, (), (args, kwargs))
        with self.held_still() as kept, torch.no_grad():
            seen = self.run(kept, few, values=False)
        engine.order = engine.order or probe.order_of(seen)
        return seen.returned

    def _refuse_pairs(self, three: Seen, few: Few) -> None:
        for dim, t in zip(self.outputs, three.outputs, strict=False):
            if dim == PAIRED and t.is_floating_point():
                raise self.refusal(
                    (self.engine.model, "output"),
                    f"it has the shape {list(t.shape)} for {3 * few.views} rows, so that each of its entries belongs "
                    "to two examples, and no gradient to one of them alone. Return what is computed from each example "
                    "by itself (embeddings, [B, D]), with a loss that compares it with public things or with its own "
                    "other view.",
                )

    def refusal(self, place: Place, problem: str) -> NotPrivate:
        module, kind = place
        what = kind if kind.startswith("the ") else f"its {kind}"
        return NotPrivate(f"{self.engine.name_of(module)} ({type(module).__name__}), {what}: {problem}")

    # One run.

    @contextmanager
    def held_still(self) -> Iterator[Kept]:
        """The model and all random numbers are afterwards as they were."""
        kept = Kept(self.engine.model)
        try:
            with probe.random_states_held(probe.cuda_devices(self.engine.model)):
                yield kept
                self.refuse_changes(kept, values=True)
        finally:
            self.engine.seen = None
            kept.put_back()

    def refuse_changes(self, kept: Kept, *, values: bool) -> None:
        for entry, what in kept.differences(values=values):
            if entry.saved and not matches(entry.name, self.engine.state.allowed):
                raise refusal(entry.kind, entry.name, what)

    def _run_lending(self, kept: Kept, few: Few, seed: int) -> Seen:
        """A run that shows which weights are read outside of their modules."""
        try:
            with torch.enable_grad():  # which tells what is computed with them from what is only noted
                return self.run(kept, few, values=False, seed=seed, lend=True)
        except Exception:  # it does more with its weights than to compute; or it does not run at all
            kept.put_back(values=False)
            return self.run(kept, few, values=False, seed=seed)

    def run(self, kept: Kept, few: Few, *, values: bool = True, seed: int = 0, lend: bool = False) -> Seen:
        engine = self.engine
        model = engine.model
        engine.seen = Seen(values)
        self.seed(kept, seed)
        with engine.lending.lent(everything=lend), nullcontext() if values else engine.seen.sizes:
            output = self.call(few)
        engine.seen.record(model, (output,), {}, "output")
        engine.seen.returned = output
        engine.seen.outputs = [t for t in probe.leaves(output) if isinstance(t, Tensor)]
        engine.seen.drawn = self.random_states(kept)
        self.passes += FORWARD
        self._rows_later += few.rows * self._counting
        self.refuse_changes(kept, values=self.passes < 1)
        return engine.seen

    def call(self, few: Few) -> Any:
        """What the model returns for a few examples."""
        engine, model = self.engine, self.engine.model
        engine.rows, engine.groups = few.rows, engine.sums.apart
        args, kwargs = few.arguments
        # Through the model's own hooks, but not what they did to the arguments already; nor through what was put around
        # its forward since (accelerate's autocast, one object, stays on for good if it is entered again within).
        hooks, model._forward_pre_hooks = model._forward_pre_hooks, type(model._forward_pre_hooks)()
        around, model.forward = model.forward, engine.root
        try:
            return nn.Module._call_impl(model, *args, **kwargs)
        finally:
            model._forward_pre_hooks, model.forward = hooks, around

    def seed(self, kept: Kept, seed: int) -> None:
        """Sets all random numbers."""
        probe.seed_all(seed, probe.cuda_devices(self.engine.model))
        kept.seed(seed)

    def random_states(self, kept: Kept) -> list[Any]:
        """Which show whether random numbers were drawn."""
        return [*probe.random_states(probe.cuda_devices(self.engine.model)), *kept.drawn()]
