"""run(): a recipe in, a run folder out; resume(): on with a run folder that an earlier process left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from hoarfrost.budget import Ledger, Statement
from hoarfrost.checkpoint import Checkpoint
from hoarfrost.errors import BudgetSpent, Diverged, HoarfrostError, InvalidValue
from hoarfrost.recipes.loading import read_recipe
from hoarfrost.recipes.schema import Recipe
from hoarfrost.train import formatting
from hoarfrost.train.evaluation import Average, evaluate
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.interruption import Interruption
from hoarfrost.train.loop import done, train
from hoarfrost.train.prepare import Prepared, device_for, prepare, surroundings
from hoarfrost.train.progress import Progress
from hoarfrost.train.records import Records, Status, checkpoints
from hoarfrost.train.resuming import attach, find, recipe_of, resumed

LEDGER = "ledger.jsonl"


@dataclass(frozen=True)
class RunResult:
    """What a run reached and what it spent.

    ``test_metrics`` are the figures of the last evaluation by name, "loss" among them; ``metric`` is the one that the
    task is judged by. ``advice`` is for the person who ran it.
    """

    folder: Path
    status: Status
    steps: int
    steps_planned: int
    seconds: float
    test_metrics: Mapping[str, float]
    metric: str
    density: float | None  # the share of the coordinates that were live, over all steps; None where nothing is frozen
    statement: Statement
    model: nn.Module = field(repr=False)
    advice: tuple[str, ...] = ()

    @property
    def test_loss(self) -> float | None:
        """The loss on the test set; None if it was not evaluated."""
        return self.test_metrics.get("loss")

    @property
    def test_accuracy(self) -> float | None:
        """The accuracy on the test set; None if it was not evaluated, or there are no classes."""
        return self.test_metrics.get("accuracy")

    def summary(self) -> str:
        """The result in words."""
        how = "" if self.status == "completed" else f" ({self.status})"
        reached = (
            f"test {formatting.main_figures(self.metric, self.test_metrics)} after {self.steps} of "
            f"{self.steps_planned} steps in {formatting.duration(self.seconds)}{how}"
        )
        rows = [("reached", reached)]
        if self.density is not None:
            rows.append(("live", f"{self.density:.3f} of the coordinates, over all steps (the total density)"))
        rows += [("spent", f"{self.statement}\n{formatting.meaning(self.statement)}"), ("in", str(self.folder))]
        rows += [("advice", advice) for advice in self.advice]
        return formatting.columns(rows)


def run(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    ledger: Ledger | str | Path | None = None,
) -> RunResult:
    """Trains as the recipe says and leaves a run folder; a recipe or data that cannot be used leaves nothing.

    Args:
        recipe: a `Recipe`, the name of a built-in one, or the path of a TOML file.
        out: the run folder, which must not exist or be empty; by default ``runs/<recipe>-<time>``.
        device: by default the GPU if there is one.
        progress: who shows the run; by default nobody (`progress_for` chooses one for standard output).
        ledger: the data set's ledger, shared with other runs; by default one in the run folder.

    The run folder holds

    - ``recipe.toml``: the recipe with every default filled in, which can be trained again;
    - ``run.json``: status, calibrated noise, sampling rate, steps, versions;
    - ``metrics.jsonl``: step, epsilon so far (an upper bound), test loss and metrics, speed. The test set is taken
      to be public, or held out with its owners' consent: no epsilon covers it;
    - ``calibration.json`` and ``reliability.svg``, of a classifier: whether its confidence on the test set can be
      believed, in figures and as a diagram (which needs the extra ``plot``);
    - ``model.safetensors``: the weights;
    - ``budget.json`` and ``budget.txt``: the statement to publish with them;
    - ``ledger.jsonl``: every step, written before its batch was drawn (unless the ledger is a shared one);
    - ``checkpoints/``: what `resume` goes on from;
    - ``not-private/``: the training loss and accuracy, and what the recipe measures (``measure.jsonl``), which no
      epsilon covers and which must not be released.

    SIGINT and SIGTERM end the run after the step that is under way, with everything in place and the budget of the
    steps that were taken. So does an error in the middle of a run; what it said may tell about the data, and is kept
    below ``not-private/``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run(read_recipe("digits", ["privacy.steps=3"]), out=f"{folder}/run")
    >>> result.steps, 0 < result.statement.epsilon <= 3
    (3, True)
    """
    if not isinstance(recipe, Recipe):
        recipe = read_recipe(recipe)
    folder = RunFolder.named(recipe.name) if out is None else RunFolder(Path(out).expanduser())
    with surroundings(recipe):
        prepared = prepare(recipe, device_for(device))
        if ledger is not None:
            attach(prepared, ledger if isinstance(ledger, Ledger) else Ledger(ledger))
        records = Records(prepared, folder)

        def begin(stack: ExitStack) -> None:
            folder.create()
            stack.enter_context(folder.locked())
            if ledger is None:
                attach(prepared, _own_ledger(prepared, folder))
            records.open()

        return _run(prepared, records, progress or Progress(), begin)


def resume(
    source: str | Path,
    *,
    overrides: Iterable[str] = (),
    accept: Collection[str] = (),
    device: str | torch.device | None = None,
    progress: Progress | None = None,
    ledger: Ledger | str | Path | None = None,
) -> RunResult:
    """Goes on with a run at its newest sound checkpoint, or at the one that is named, with new noise and batches.

    Args:
        source: the run folder, or one of its checkpoints.
        overrides: values of the recipe to replace, which accepts these changes by name.
        accept: other changes to accept: a key of the recipe, or "data".
        ledger: where the run's ledger is, if it is not where it was.

    Guarantees:
        Whatever was spent stays spent, also on steps that came after the checkpoint. A run whose noise was calibrated
        for an epsilon keeps to it: steps that were lost are not taken again. Changed data, noise, sampling, clipping or
        any other setting is refused, unless it is accepted by name; then it is charged as what it is. A checkpoint that
        was damaged is passed over with a warning, or refused if it is the one that is named.
    """
    overrides = list(overrides)
    progress = progress or Progress()
    folder, saved, damaged = find(Path(source).expanduser())
    for reason in damaged:
        progress.warn(f"{reason}. Passed over: the run goes on from {saved.path.name}, and what it spent stays spent")
    with folder.locked():
        recipe = recipe_of(folder, overrides)
        opened = _ledger_of(folder, saved, ledger)
        accepted = {*accept, *(override.partition("=")[0].strip() for override in overrides)}
        with surroundings(recipe):
            run = resumed(recipe, device_for(device), folder, saved, accept=accepted, ledger=opened)
            if done(run.private):
                raise BudgetSpent(
                    f"nothing is left of this run's budget: {run.private.charged} of {run.steps} steps are charged, "
                    f"and the checkpoint {saved.path} has {saved.steps_taken} of them"
                )
            records = Records(run, folder)
            return _run(run, records, progress, lambda _: records.resume())


def _run(run: Prepared, records: Records, progress: Progress, begin: Callable[[ExitStack], None]) -> RunResult:
    private, recipe, folder = run.private, run.recipe, records.folder
    for warning in run.warnings:
        progress.warn(warning)

    def on_step(step: int, average: Average) -> None:
        progress.step(step, average)
        records.step(step)

    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        try:
            begin(stack)
            progress.start(run.overview())
            private.prepare(after_each=records.checkpoint)
            records.selection()
            untrained = _untrained_loss(run)
            lowest = math.inf
            for epoch in train(
                private,
                run.splits.test,
                device=run.device,
                loss=run.loss,
                scheduler=run.scheduler,
                evaluate_every=recipe.loop.evaluate_every,
                on_step=on_step,
                stop=lambda: interruption.asked,
            ):
                records.epoch(epoch)
                progress.epoch(epoch)
                lowest = min(lowest, math.inf if epoch.test_loss is None else epoch.test_loss)
            interruption.patient = True
            status: Status = "completed" if done(private) else "interrupted"
            records.checkpoint()
            if status == "completed":
                private.account.close()
            statement = records.close(status)
            not_drawn = records.calibration()
        except BaseException as error:
            interruption.patient = True
            _end_early(error, records)
            raise
        finally:
            progress.stop()
    advice = [] if not_drawn is None else [not_drawn]
    if untrained is not None and status == "completed":
        not_learned = formatting.not_learned_advice(untrained, lowest, private.optimizer.engine.clipper_repr)
        advice += [] if not_learned is None else [not_learned]
    last = records.last
    return RunResult(
        folder=folder.path,
        status=status,
        steps=private.steps_taken,
        steps_planned=run.steps,
        seconds=records.seconds,
        test_metrics={} if last is None or last.test is None else last.test.figures,
        metric=run.loss.metrics[0],
        density=run.density,
        statement=statement,
        model=private.model,
        advice=tuple(advice),
    )


def _untrained_loss(run: Prepared) -> float | None:
    """The test loss before the first step; None if the run is resumed."""
    if run.private.steps_taken > 0:
        return None
    with torch.random.fork_rng():  # a seeded run draws the same numbers as without this
        return evaluate(run.private.model, run.splits.test, run.device, run.loss).figures["loss"]


def _end_early(error: BaseException, records: Records) -> None:
    """Leaves the folder as it can be left; what an error says about the data does not get out of it."""
    private, folder = records.run.private, records.folder
    unspent = private.charged == 0 and not private.account.releases
    if unspent:
        private.account.close()
    if folder.new and unspent:
        folder.remove()
        return
    if isinstance(error, KeyboardInterrupt):
        records.close("interrupted")
        return
    details = records.failure(error)
    records.close("failed", weights=not isinstance(error, Diverged))
    if isinstance(error, Diverged):
        raise Diverged(f"{error}; the last good one is {checkpoints(folder.path)[-1]}") from None
    if not isinstance(error, HoarfrostError):
        raise HoarfrostError(
            f"training failed after {private.steps_taken} steps ({type(error).__name__}). What went wrong may tell "
            f"about the data, so it is not said here but in {details}; the run can be resumed"
        ) from None


def _own_ledger(run: Prepared, folder: RunFolder) -> Ledger:
    """Without a limit of its own: the plan is the limit, and the ledger remembers."""
    private = run.private
    return Ledger.create(
        folder.path / LEDGER, epsilon=None, delta=private.delta, accountant=private.accountant,
        seeded=private.seeded, unit=private.plan.unit,
    )  # fmt: skip


def _ledger_of(folder: RunFolder, saved: Checkpoint, given: Ledger | str | Path | None) -> Ledger:
    if saved.ledger is None:
        raise InvalidValue(f"the checkpoint {saved.path} names no ledger: what was spent since then is not known")
    own = folder.path / LEDGER
    where = own if given is None and own.exists() else given or saved.ledger["path"]
    ledger = where if isinstance(where, Ledger) else Ledger(where)
    ledger.check(saved.ledger["head"])
    return ledger
