"""The results as Markdown: means over seeds, and how far they spread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.accuracy.experiments import EXPERIMENTS, Branches, Runs

FOLDER = Path(__file__).parents[1] / "results" / "accuracy"


def tables(folder: Path = FOLDER) -> str:
    """All that was measured so far."""
    found = {name: json.loads(path.read_text()) for name in EXPERIMENTS if (path := folder / f"{name}.json").exists()}
    parts = [_layers({name: rows for name, rows in found.items() if isinstance(EXPERIMENTS[name], Branches)})]
    for name, rows in found.items():
        experiment = EXPERIMENTS[name]
        if isinstance(experiment, Runs):
            parts.append(_runs(experiment, rows))
    if (folder / "cifar10.json").exists():
        parts.append(_curves(json.loads((folder / "cifar10.json").read_text())))
    return "\n\n".join(part for part in parts if part)


def _layers(found: dict[str, list[dict[str, Any]]]) -> str:
    if not found:
        return ""
    lines = [
        "| first half of the layers frozen at the end | ε spent (ε by the paper's account) | DP-SGD | `Layers` | "
        "gain, seed by seed |",
        "|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        experiment = EXPERIMENTS[name]
        assert isinstance(experiment, Branches)
        for budget in experiment.ends:
            dense, frozen = (_by_seed(rows, f"{arm} at {budget}") for arm in ("DP-SGD", "Layers"))
            if frozen:
                epsilon = next(row["epsilon"] for row in rows if row["arm"] == f"DP-SGD at {budget}")
                gains = [frozen[seed] - dense[seed] for seed in frozen]
                lines.append(
                    f"| {experiment.title} | {epsilon:.2f} ({budget}) | {_spread(list(dense.values()))} | "
                    f"{_spread(list(frozen.values()))} | {_spread(gains, sign=True)} |"
                )
    return "\n".join(lines)


def _runs(experiment: Runs, rows: list[dict[str, Any]]) -> str:
    lines = [f"| {experiment.title} | steps | noise multiplier | test accuracy |", "|---|---|---|---|"]
    for arm in experiment.arms:
        accuracies = list(_by_seed(rows, arm).values())
        if accuracies:
            one = next(row for row in rows if row["arm"] == arm)
            lines.append(f"| {arm} | {one['steps']} | {one['noise_multiplier']:.3f} | {_spread(accuracies)} |")
    return "\n".join(lines)


def _curves(arms: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| CIFAR-10, ε 3, one seed | epochs trained of those planned | total density | test accuracy there |",
        "|---|---|---|---|",
    ]
    for arm, found in arms.items():
        last = found["epochs"][-1]
        shares = [epoch["live"] for epoch in found["epochs"] if "live" in epoch]  # of epochs of equal length
        density = f"{mean(shares):.2f}" if shares else "1"
        so_far = "" if last["epoch"] >= found["planned"] else " so far"
        accuracy = f"{100 * last['test_accuracy']:.1f} % (ε {last['epsilon']:.2f}{so_far})"
        lines.append(f"| {arm} | {last['epoch']} of {found['planned']:g} | {density} | {accuracy} |")
    return "\n".join(lines)


def _by_seed(rows: list[dict[str, Any]], arm: str) -> dict[int, float]:
    return {row["seed"]: row["accuracy"] for row in rows if row["arm"] == arm}


def _spread(accuracies: Sequence[float], sign: bool = False) -> str:
    """Mean and standard deviation in per cent, and over how many seeds if it is not three."""
    value = f"{100 * mean(accuracies):{'+' if sign else ''}.2f}"
    if len(accuracies) == 1:
        return f"{value} (1 seed)"
    few = "" if len(accuracies) == 3 else f" ({len(accuracies)} seeds)"
    return f"{value} ± {100 * stdev(accuracies):.2f}{few}"
