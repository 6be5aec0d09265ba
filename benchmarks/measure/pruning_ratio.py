"""R = Tr Cov / ‖ḡ‖² under pruning, on the paper's own problem (paper 002, Figure 11). Exact, and without any data.

`python -m benchmarks.measure pruning_ratio [--quick]`
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once, seeds_of
from benchmarks.measure.spread import draw
from hoarfrost.measure import SignalAndNoise, pruning_on_signal_and_noise

SEEDS, KEEPS, STEPS = (1, 2, 3, 4, 5), (1.0, 0.7, 0.5, 0.3, 0.1), 30


def main(options: argparse.Namespace) -> None:
    """Some seeds of the initial weights."""
    rows = Rows("pruning_ratio", options)
    for seed in seeds_of(options, SEEDS):
        once(rows, {"seed": seed}, partial(_run, seed))
    for row in rows:
        print(f"seed {row['seed']}: R at the start", {keep: round(of["R"][0], 1) for keep, of in row["keep"].items()})
    _figure(list(rows), figures(options))


def _run(seed: int) -> dict[str, Any]:
    problem = SignalAndNoise()
    before, found = pruning_on_signal_and_noise(problem, KEEPS, steps=STEPS, seed=seed)
    left = float(before.layers.first[:, problem.signal :].norm() / before.layers.first.norm())
    return {
        "share of W_n before pruning": left,
        "keep": {str(keep): {"loss": each.losses, "R": each.ratios} for keep, each in zip(KEEPS, found, strict=True)},
    }


def _figure(rows: list[dict[str, Any]], folder: Path) -> None:
    found: dict[str, dict[str, dict[float, list[float]]]] = {"R": {}, "loss": {}}
    for row in rows:
        for keep, of in row["keep"].items():
            for panel, values in found.items():
                line = values.setdefault(f"{float(keep):.0%} of W₁ kept", {})
                for step, value in enumerate(of[panel]):
                    line.setdefault(step, []).append(value)
    draw(folder, "pruning-ratio", found, "step", {"R": "R = Tr Cov / ‖ḡ‖²", "loss": "loss"}, log=True)
