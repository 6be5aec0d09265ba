"""Attacks on CIFAR-10 runs without privacy, with local and with global clipping: "On the Convergence and Calibration of
Deep Learning with Differential Privacy", Figure 5.

Needs `hoarfrost data get cifar10`, and some ten minutes of one core for each of the three runs, which are kept in
runs-measure/ and gone on with if they were broken off. A row that is in the results is not computed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.accuracy.clipping import EXPERIMENTS
from benchmarks.accuracy.runs import recipe_for
from hoarfrost.files import replace_file
from hoarfrost.measure import Membership, membership_figures
from hoarfrost.train import resume, run
from hoarfrost.train.folder import read_json
from hoarfrost.train.membership import attack

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "measure"
RUNS = ROOT / "runs-measure" / "not-private" / "membership"
ARMS = ("not private, lr 0.05", "local, R 1.5, lr 0.05", "global, R 75, lr 0.0007")
ATTACKS = ("logistic", "threshold")
SEEDS = (1,)
QUICK = ("privacy.steps=40",)


def main(options: argparse.Namespace) -> None:
    """Trains what is missing, attacks it, and draws all runs beside each other."""
    folder, results = RUNS, RESULTS / "membership.json"
    if options.quick:
        folder = RUNS.with_name("membership-quick")
        results = folder / "membership.json"
    folder.mkdir(parents=True, exist_ok=True)
    results.parent.mkdir(parents=True, exist_ok=True)
    for seed in options.seed or SEEDS:
        for kind in ATTACKS:
            drawn = folder / f"{kind}-seed-{seed}"
            rows = _rows(results)
            if all(_has(rows, arm, kind, seed) for arm in ARMS) and drawn.exists():
                continue
            found: dict[str, Membership] = {}
            for arm in ARMS:
                trained = _trained(folder, arm, seed, quick=options.quick)
                found[arm] = attack(trained, kind)
                _note(results, arm, kind, seed, trained, found[arm])
            membership_figures(found, drawn)


def _trained(folder: Path, arm: str, seed: int, *, quick: bool) -> Path:
    """The run folder of an arm, once its run is completed."""
    experiment = EXPERIMENTS["clipping-cifar10"]
    path = folder / f"{arm.replace(',', '').replace(' ', '-')}-seed-{seed}"
    if not path.exists():
        changes = QUICK if quick else ()
        run(recipe_for(experiment.recipe, seed, (*experiment.arms[arm], *changes)), out=path, device="cpu")
    elif read_json(path, "run.json").get("status") != "completed":
        resume(path, device="cpu")
    return path


def _note(results: Path, arm: str, kind: str, seed: int, trained: Path, found: Membership) -> None:
    """A row of the results, unless it is there."""
    rows = _rows(results)
    if not _has(rows, arm, kind, seed):
        facts = read_json(trained, "run.json")
        row = {
            "arm": arm, "attack": kind, "seed": seed, "steps": facts["steps_taken"],
            "epsilon": None if found.claim is None else found.claim[0], "test_accuracy": facts["test_accuracy"],
            **found.row(),
            "classes": {str(n): [roc.auc.value, roc.auc.low, roc.auc.high] for n, roc in found.classes.items()},
            "red_flags": found.red_flags,
        }  # fmt: skip
        text = "[\n" + ",\n".join(json.dumps(each) for each in [*rows, row]) + "\n]\n"
        replace_file(results, lambda draft: draft.write_text(text))
    print(f"{arm}, {kind}: AUC {found.auc}, at most {found.bound.auc:.3f}", *found.red_flags, sep="\n  ", flush=True)


def _rows(results: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(results.read_text()) if results.exists() else []
    return found


def _has(rows: list[dict[str, Any]], arm: str, kind: str, seed: int) -> bool:
    return any((row["arm"], row["attack"], row["seed"]) == (arm, kind, seed) for row in rows)
