"""The long run on CIFAR-10, which goes on where it was stopped: `python -m benchmarks.accuracy.cifar RUNS [ARM ...]`.

RUNS is a folder for the run folders; what each arm has reached is written to benchmarks/results/accuracy/cifar10.json
after every epoch.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy.experiments import DENSE
from benchmarks.accuracy.runs import recipe_for
from benchmarks.accuracy.tables import FOLDER
from hoarfrost.files import replace_file
from hoarfrost.train import Progress, Recipe, resume, run
from hoarfrost.train.loop import Epoch
from hoarfrost.train.progress import Plan

ARMS: dict[str, tuple[str, ...]] = {"DP-SGD": (DENSE, "privacy.epochs=40"), "Random 0.9": ()}
SEED = 1


class Noting(Progress):
    """Writes down what was reached after every epoch."""

    def __init__(self, arm: str, recipe: Recipe, folder: Path) -> None:
        self.arm, self.recipe, self.folder = arm, recipe, folder

    def start(self, plan: Plan) -> None:
        print(plan.headline, flush=True)

    def epoch(self, epoch: Epoch) -> None:
        # Of an epoch that was broken off and resumed, what it was in the end.
        epochs = list({row["epoch"]: row for row in _rows(self.folder / "metrics.jsonl") if "epoch" in row}.values())
        path = FOLDER / "cifar10.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        found = json.loads(path.read_text()) if path.exists() else {}
        keys = ("epoch", "step", "epsilon", "live", "test_accuracy")
        found[self.arm] = {
            "planned": self.recipe.privacy.epochs,
            "epochs": [{key: row[key] for key in keys if key in row} for row in epochs],
        }
        replace_file(path, lambda draft: draft.write_text(json.dumps(found, indent=1) + "\n"))
        print(f"{self.arm}: epoch {epoch.number}, {epoch.test_accuracy:.4f}", flush=True)


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("arms", nargs="*", help=", ".join(ARMS))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    for arm in arguments.arms or ARMS:
        changes = ("loop.checkpoint_every=10", f"loop.threads={arguments.threads}")
        recipe = recipe_for("cifar10-random", SEED, (*ARMS[arm], *changes))
        folder = arguments.runs / arm.replace(" ", "-")
        progress = Noting(arm, recipe, folder)
        if folder.exists():
            print(resume(folder, progress=progress).summary())
        else:
            print(run(recipe, out=folder, progress=progress).summary())


if __name__ == "__main__":
    main()
