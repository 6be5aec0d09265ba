"""What a run folder says about its run: what it reached, and the budget statement that goes with the weights."""

from __future__ import annotations

import json
import platform
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from hoarfrost import checkpoint
from hoarfrost.budget import Gaussian, Statement
from hoarfrost.errors import MissingExtra
from hoarfrost.freezing.frost import frost_in
from hoarfrost.measure import reliability_diagram
from hoarfrost.recipes.loading import to_toml
from hoarfrost.train import fingerprint, formatting, measuring
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.loop import Epoch
from hoarfrost.train.prepare import Prepared

Status = Literal["running", "completed", "interrupted", "failed"]
CALIBRATION, DIAGRAM, SELECTION = "calibration.json", "reliability.svg", "selection.json"

RUNNING = """\
The run has not ended: this is its whole plan. If it was killed it spent at most this; the ledger says how much."""
ENDED = """\
Released: model.safetensors, the checkpoints, and the test figures in metrics.jsonl, calibration.json and
reliability.svg, which follow from the weights after each epoch.
Not covered: the test set, which is taken to be public or held out with consent; and not-private/, which must not be
released."""


@dataclass
class Records:
    """Writes the run folder.

    Guarantees:
        ``budget.json`` never states less than the other files cost: from the beginning it states the whole plan, and
        the statement of the steps that were really charged replaces it just before the weights are written.
    """

    run: Prepared
    folder: RunFolder
    started: float = field(default_factory=time.time)
    last: Epoch | None = None
    dropped: int = 0  # examples without a finite gradient, up to the last epoch

    @property
    def seconds(self) -> float:
        """Since the run began, or was resumed."""
        return time.time() - self.started

    def open(self) -> None:
        """Before the first step."""
        self.folder.text("recipe.toml", to_toml(self.run.recipe))
        self.folder.json(fingerprint.FILE, fingerprint.facts(self.run.digest))
        self._state("running", self.run.planned)
        measuring.begin(self.run.measurements, self.run.private, self.folder)
        self.checkpoint()

    def resume(self) -> None:
        """Before the first step after a restart."""
        for name in ("not-private", "checkpoints"):  # somebody may have taken the former away, as it advises
            (self.folder.path / name).mkdir(exist_ok=True)
        for name in (CALIBRATION, DIAGRAM):  # of weights that will not be the last ones
            (self.folder.path / name).unlink(missing_ok=True)
        self.folder.append("metrics.jsonl", {"resumed_at": self.run.private.steps_taken})
        self.open()

    def selection(self) -> None:
        """Before the first step: what was chosen to be trained, if it was by noisy magnitudes."""
        private = self.run.private
        frost = frost_in(private.freezer)
        if frost is not None and frost.selection is not None:
            frost.selection.save(self.folder.path / SELECTION, private.account.snapshot())

    def step(self, steps_taken: int) -> None:
        """After every step."""
        if steps_taken % self.run.recipe.loop.checkpoint_every == 0:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Everything needed to go on from here; older checkpoints go, but for as many as the recipe keeps."""
        run, private = self.run, self.run.private
        facts = {
            "recipe": run.recipe.model_dump(mode="json"),
            "noise_multiplier": private.noise_multiplier,
            "sample_rate": private.sample_rate,
            "releases": [release.event.as_dict() for release in private.plan.releases],
        }
        path = self.folder.path / "checkpoints" / f"step-{private.steps_taken:08}.safetensors"
        checkpoint.save(path, private, scheduler=run.scheduler, facts=facts)
        for old in checkpoints(self.folder.path)[: -run.recipe.loop.checkpoints_kept]:
            if old != path:
                with suppress(OSError):  # what cannot be removed is in nobody's way
                    old.unlink()

    def epoch(self, epoch: Epoch) -> None:
        """After every epoch: figures that epsilon covers on one side, those that it does not on the other."""
        self.last = epoch
        place = {"epoch": epoch.number, "step": epoch.step}
        private = self.run.private
        clipping = private.optimizer.engine.clipping  # whose bounds follow from what was released
        self.folder.append(
            "metrics.jsonl",
            {
                **place,
                "epsilon": self.run.epsilon_so_far(),
                **({} if self.run.planned.private else {"private": False}),
                "delta": private.delta,
                **({"seeded": formatting.SEEDED} if private.seeded else {}),
                **({} if epoch.live is None else {"live": epoch.live}),
                **({} if clipping is None else {"sensitivity": clipping.sensitivity}),
                **self._tested(),
                "seconds": round(epoch.seconds, 3),
                "steps_per_second": round(epoch.steps_per_second, 2),
            },
        )
        dropped = private.optimizer.engine.dropped
        self.folder.append(
            "not-private/metrics.jsonl",
            {
                **place,
                "train_loss": epoch.train_loss,
                **({} if self.run.loss.real_targets else {"train_accuracy": epoch.train_accuracy}),
                "dropped_for_no_finite_gradient": dropped - self.dropped,
            },
        )
        self.dropped = dropped

    def failure(self, error: BaseException) -> Path:
        """What went wrong, where it may be said: messages about a batch tell its size, shapes or labels."""
        text = "".join(traceback.format_exception(error))
        self.folder.text("not-private/error.txt", text)
        return self.folder.path / "not-private" / "error.txt"

    def close(self, status: Status, *, weights: bool = True) -> Statement:
        """After the last step: the budget first, then the weights that it pays for, if they are worth it."""
        statement = measuring.with_note(self.run.private.statement(), self.run.measurements)
        self._state(status, statement)
        if weights:
            self.folder.weights(self.run.private.model, self._budget(status, statement))
        return statement

    def calibration(self) -> str | None:
        """After the last step of a classifier: whether its confidence can be believed. Tells why nothing was drawn."""
        found = None if self.last is None or self.last.test is None else self.last.test.calibration
        if found is None:
            return None
        self.folder.json(CALIBRATION, found.as_dict())
        try:
            self.folder.text(DIAGRAM, reliability_diagram({self.run.recipe.name: found}))
        except MissingExtra as error:
            return str(error)
        return None

    def _tested(self) -> dict[str, float | None]:
        """The test figures of the last epoch, by name."""
        figures = {} if self.last is None or self.last.test is None else self.last.test.figures
        return {f"test_{name}": figures.get(name) for name in ("loss", *self.run.loss.metrics)}

    def _state(self, status: Status, statement: Statement) -> None:
        self.folder.json("budget.json", self._budget(status, statement))
        self.folder.text("budget.txt", self._budget_in_words(status, statement))
        self.folder.json("run.json", self._facts(status))

    def _budget(self, status: Status, statement: Statement) -> dict[str, Any]:
        private = self.run.private
        taken = self.run.steps if status == "running" else private.steps_taken
        ledger = None if private.allowance is None else str(private.allowance.ledger.head)
        return {
            **statement.as_dict(),
            "status": status,
            "steps_taken": taken,
            "steps_planned": self.run.steps,
            "steps_charged": sum(event.steps for event in statement.releases if isinstance(event, Gaussian)),
            "ledger_head": ledger,
        }

    def _budget_in_words(self, status: Status, statement: Statement) -> str:
        private = self.run.private
        charged = private.account.charged_in_all
        lost = "" if charged == private.steps_taken else f" ({charged} charged: the others were lost in a restart)"
        count = f"Status: {status}, {private.steps_taken} of {self.run.steps} steps{lost}."
        what = RUNNING if status == "running" else f"{count}\n{ENDED}"
        warnings = (f"Warning: {warning}" for warning in self.run.warnings)
        return "\n\n".join([str(statement), formatting.meaning(statement), what, *warnings]) + "\n"

    def _facts(self, status: Status) -> dict[str, Any]:
        run, private = self.run, self.run.private
        return {
            "name": run.recipe.name,
            "status": status,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.started)),
            "seconds": round(self.seconds, 3),
            "steps_planned": run.steps,
            "steps_taken": private.steps_taken,
            "steps_charged": private.account.charged_in_all,
            "noise_multiplier": private.noise_multiplier,
            "releases": [release.event.as_dict() for release in private.plan.releases],
            "sample_rate": private.sample_rate,
            "expected_batch": private.expected_batch,
            "unit": private.plan.unit,
            "people": None if private.loader.people is None else len(private.loader.people),
            "train_examples": len(run.splits.train),
            "test_examples": len(run.splits.test),
            "classes": run.splits.classes,
            "parameters": run.parameters,
            "trained_parameters": run.trained_parameters,
            "density": run.density,
            **self._tested(),
            "private": run.planned.private,
            "seeded": private.seeded,
            "ledger": None if private.allowance is None else str(private.allowance.ledger.path),
            "run": private.run,
            "runs": sorted({private.run, *runs_of(self.folder.path)}),
            "device": str(run.device),
            "warnings": list(run.warnings),
            "versions": _versions(),
        }


def checkpoints(folder: Path) -> list[Path]:
    """A run folder's checkpoints, from the one written first to the one written last."""
    found = (folder / "checkpoints").glob("step-*.safetensors")
    return sorted(found, key=lambda path: (path.lstat().st_mtime_ns, path.name))


def runs_of(folder: Path) -> list[str]:
    """The names of all runs that ever trained in a folder, as far as it says so."""
    try:
        runs = json.loads((folder / "run.json").read_text("utf-8"))["runs"]
        return [run for run in runs if isinstance(run, str)]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []


def _versions() -> dict[str, str]:
    used = (name for name in ("transformers", "tokenizers", "peft") if name in sys.modules)
    packages = ("hoarfrost", "torch", "numpy", "dp-accounting", *used)
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}
