"""run(): a recipe in, a run folder out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from hoarfrost.budget import Statement
from hoarfrost.train import optimizers, words
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.interruption import Interruption
from hoarfrost.train.loop import train
from hoarfrost.train.prepare import Prepared, device_for, prepare, surroundings
from hoarfrost.train.progress import Progress
from hoarfrost.train.reading import read_recipe
from hoarfrost.train.recipe import Recipe
from hoarfrost.train.records import Records, Status


@dataclass(frozen=True)
class RunResult:
    """What a run reached and what it spent."""

    folder: Path
    status: Status
    steps: int
    steps_planned: int
    seconds: float
    test_loss: float | None
    test_accuracy: float | None
    statement: Statement
    model: nn.Module = field(repr=False)

    def summary(self) -> str:
        """The result in words."""
        how = "" if self.status == "completed" else f" ({self.status})"
        reached = (
            f"test accuracy {words.percent(self.test_accuracy)} after {self.steps} of {self.steps_planned} steps in "
            f"{words.duration(self.seconds)}{how}"
        )
        spent = f"{self.statement}\n{words.meaning(self.statement)}"
        return words.columns([("reached", reached), ("spent", spent), ("in", str(self.folder))])


def run(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    device: str | torch.device | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Trains as the recipe says and leaves a run folder; a recipe or data that cannot be used leaves nothing.

    Args:
        recipe: a `Recipe`, the name of a built-in one, or the path of a TOML file.
        out: the run folder, which must not exist or be empty; by default ``runs/<recipe>-<time>``.
        device: by default the GPU if there is one.
        progress: who shows the run; by default nobody (`progress_for` chooses one for standard output).

    The run folder holds

    - ``recipe.toml``: the recipe with every default filled in, which can be trained again;
    - ``run.json``: status, calibrated noise, sampling rate, steps, versions;
    - ``metrics.jsonl``: step, epsilon so far (an upper bound), test loss and accuracy, speed. The test set is taken
      to be public, or held out with its owners' consent: no epsilon covers it;
    - ``model.safetensors``: the weights;
    - ``budget.json`` and ``budget.txt``: the statement to publish with them;
    - ``not-private/``: the training loss and accuracy, which no epsilon covers and which must not be released.

    SIGINT and SIGTERM end the run after the step that is under way, with everything in place and the budget of the
    steps that were taken. So does an error in the middle of a run, which is then raised again.

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
        return _run(prepared, folder, progress or Progress())


def _run(run: Prepared, folder: RunFolder, progress: Progress) -> RunResult:
    private, recipe = run.private, run.recipe
    scheduler = optimizers.schedule(
        recipe.schedule, private.optimizer, steps=run.steps, sample_rate=private.sample_rate
    )
    for warning in run.warnings:
        progress.warn(warning)
    records = Records(run, folder)
    with Interruption() as interruption:
        try:
            folder.create()
            records.open()
            progress.start(run.plan())
            for epoch in train(
                private,
                run.splits.test,
                device=run.device,
                scheduler=scheduler,
                evaluate_every=recipe.loop.evaluate_every,
                on_step=progress.step,
                stop=lambda: interruption.asked,
            ):
                records.epoch(epoch)
                progress.epoch(epoch)
            interruption.patient = True
            status: Status = "completed" if private.steps_taken == run.steps else "interrupted"
            statement = records.close(status)
        except BaseException as error:
            interruption.patient = True
            if private.steps_taken == 0:
                folder.remove()
            else:
                records.close("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
            raise
        finally:
            progress.stop()
    last = records.last
    return RunResult(
        folder=folder.path,
        status=status,
        steps=private.steps_taken,
        steps_planned=run.steps,
        seconds=records.seconds,
        test_loss=None if last is None else last.test_loss,
        test_accuracy=None if last is None else last.test_accuracy,
        statement=statement,
        model=private.model,
    )
