"""What a run folder says about its run: what it reached, and the budget statement that goes with the weights."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

from hoarfrost.budget import Statement
from hoarfrost.train import words
from hoarfrost.train.folder import RunFolder
from hoarfrost.train.loop import Epoch
from hoarfrost.train.prepare import Prepared
from hoarfrost.train.reading import to_toml

Status = Literal["running", "completed", "interrupted", "failed"]

RUNNING = """\
The run has not ended: this is its whole plan. If it was killed it spent at most this, and metrics.jsonl says how far it
came."""
ENDED = """\
Released: model.safetensors, and the test figures in metrics.jsonl, which follow from the weights after each epoch.
Not covered: the test set, which is taken to be public or held out with consent; and not-private/, which must not be
released."""


@dataclass
class Records:
    """Writes the run folder.

    Guarantees:
        ``budget.json`` never states less than the other files cost: from the beginning it states the whole plan, and
        the statement of the steps that were really taken replaces it just before the weights are written.
    """

    run: Prepared
    folder: RunFolder
    started: float = field(default_factory=time.time)
    last: Epoch | None = None

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.time() - self.started

    def open(self) -> None:
        """Before the first step."""
        self.folder.text("recipe.toml", to_toml(self.run.recipe))
        self._state("running", self.run.planned)

    def epoch(self, epoch: Epoch) -> None:
        """After every epoch: figures that epsilon covers on one side, those that it does not on the other."""
        self.last = epoch
        place = {"epoch": epoch.number, "step": epoch.step}
        private = self.run.private
        self.folder.append(
            "metrics.jsonl",
            {
                **place,
                "epsilon": self.run.epsilon_after(epoch.step),
                "delta": private.delta,
                **({"seeded": words.SEEDED} if private.seeded else {}),
                "test_loss": epoch.test_loss,
                "test_accuracy": epoch.test_accuracy,
                "seconds": round(epoch.seconds, 3),
                "steps_per_second": round(epoch.steps_per_second, 2),
            },
        )
        self.folder.append(
            "not-private/metrics.jsonl",
            {**place, "train_loss": epoch.train_loss, "train_accuracy": epoch.train_accuracy},
        )

    def close(self, status: Status) -> Statement:
        """After the last step: the budget first, then the weights that it pays for."""
        private = self.run.private
        statement = self.run.planned if private.steps_taken == self.run.steps else private.statement()
        self._state(status, statement)
        self.folder.weights(private.model, self._budget(status, statement))
        return statement

    def _state(self, status: Status, statement: Statement) -> None:
        self.folder.json("budget.json", self._budget(status, statement))
        self.folder.text("budget.txt", self._budget_in_words(status, statement))
        self.folder.json("run.json", self._facts(status))

    def _budget(self, status: Status, statement: Statement) -> dict[str, Any]:
        taken = self.run.steps if status == "running" else self.run.private.steps_taken
        return {**statement.as_dict(), "status": status, "steps_taken": taken, "steps_planned": self.run.steps}

    def _budget_in_words(self, status: Status, statement: Statement) -> str:
        count = f"Status: {status}, {self.run.private.steps_taken} of {self.run.steps} steps."
        what = RUNNING if status == "running" else f"{count}\n{ENDED}"
        warnings = (f"Warning: {warning}" for warning in self.run.warnings)
        return "\n\n".join([str(statement), words.meaning(statement), what, *warnings]) + "\n"

    def _facts(self, status: Status) -> dict[str, Any]:
        run, private = self.run, self.run.private
        return {
            "name": run.recipe.name,
            "status": status,
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(self.started)),
            "seconds": round(self.seconds, 3),
            "steps_planned": run.steps,
            "steps_taken": private.steps_taken,
            "noise_multiplier": private.noise_multiplier,
            "sample_rate": private.sample_rate,
            "expected_batch": private.expected_batch,
            "train_examples": len(run.splits.train),
            "test_examples": len(run.splits.test),
            "classes": run.splits.classes,
            "parameters": run.parameters,
            "test_loss": None if self.last is None else self.last.test_loss,
            "test_accuracy": None if self.last is None else self.last.test_accuracy,
            "seeded": private.seeded,
            "device": str(run.device),
            "warnings": list(run.warnings),
            "versions": _versions(),
        }


def _versions() -> dict[str, str]:
    packages = ("hoarfrost", "torch", "numpy", "dp-accounting")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}
