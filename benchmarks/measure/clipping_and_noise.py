"""Clipping alone, noise alone, both, neither (paper 002, Figures 9, 10 and 12), LeNet on MNIST.

Five steps on one fixed batch, from the initial weights and after some epochs of SGD; and whole trainings, of all
weights and of those that pruning leaves. Not private: nothing but DP-SGD has both parts, and the pruning is by the
training data. `python -m benchmarks.measure clipping_and_noise [--quick]`
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once, seeds_of
from benchmarks.measure.spread import draw
from benchmarks.measure.ways import Way, gradient, part, plain, seeded, tests
from hoarfrost import data
from hoarfrost.freezing import prune_from
from hoarfrost.models.lenet import lenet

SEEDS, EPOCHS, BEFORE, BATCHES, KEEP = (1, 2), 8, 3, 10, 0.3
STEPS, BATCH, FIXED_LR, FIXED_NOISE = 5, 128, 0.1, 0.4
PARTS = {"SGD": (None, 0.0), "clipping only": (1.0, 0.0), "noise only": (None, 1.0), "DP-SGD": (1.0, 1.0)}


def main(options: argparse.Namespace) -> None:
    """The steps on a fixed batch, then the trainings."""
    rows = Rows("clipping_and_noise", options)
    splits = data.load("mnist")
    train = part(splits.train, 300 if options.quick else 20_000)
    test = part(splits.test, 2000)
    for seed in seeds_of(options, SEEDS):
        once(rows, {"seed": seed, "figure": 9}, partial(_fixed, train, seed, 2 if options.quick else BATCHES))
    for seed in seeds_of(options, SEEDS):
        for name, (clip, noise) in PARTS.items():
            way = Way(name, 1.0, 100 if options.quick else 512, clip, 2.4 * noise)
            for keep in (1.0, KEEP):
                key = {"seed": seed, "figure": 10, "way": name, "keep": keep}
                once(rows, key, partial(_trained, way, keep, train, test, seed, 1 if options.quick else EPOCHS))
    _figures(list(rows), figures(options))


def _fixed(train: TensorDataset, seed: int, batches: int) -> dict[str, Any]:
    """Loss and gradient norm on each of some batches, after every one of five steps on that batch alone."""
    x, y = train.tensors
    found: dict[str, Any] = {}
    starts = {"from the start": seeded(lenet, seed)}
    starts["after SGD"] = Way("SGD", FIXED_LR, BATCH).train(plain(starts["from the start"]), train, BEFORE, seed)
    for start, model in starts.items():
        for name, (clip, noise) in PARTS.items():
            of_batches = []
            for number in range(batches):
                rows = slice(number * BATCH, (number + 1) * BATCH)
                of_batches.append(_steps(plain(model), x[rows], y[rows], clip, FIXED_NOISE * noise, number))
            found.setdefault(start, {})[name] = of_batches
    return {"steps": found}


def _steps(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, clip: float | None, noise: float, seed: int
) -> list[tuple[float, float]]:
    curve = [gradient(model, x, y)]
    # Sampling rate 1: every step is on the whole batch.
    way = Way("", FIXED_LR, len(y), clip, noise)
    for _ in way.epochs(model, TensorDataset(x, y), STEPS, seed):
        curve.append(gradient(plain(model), x, y))
    return curve


def _trained(
    way: Way, keep: float, train: TensorDataset, test: TensorDataset, seed: int, epochs: int
) -> dict[str, Any]:
    model = seeded(lenet, seed)
    freeze = None if keep == 1 else prune_from(model, train, keep=keep, epochs=min(3, epochs), private=False)
    return {"test": [tests(model, test) for _ in way.epochs(model, train, epochs, seed, freeze)]}


def _figures(rows: list[dict[str, Any]], folder: Path) -> None:
    fixed = [row["steps"] for row in rows if row["figure"] == 9]
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for start in fixed[0]:
        for place, what in ((0, "loss of the batch"), (1, "gradient norm")):
            for name in PARTS:
                curves = [curve for each in fixed for curve in each[start][name]]
                line = {float(step): [curve[step][place] for curve in curves] for step in range(STEPS + 1)}
                found.setdefault(f"{start}: {what}", {})[name] = line
    marks = {panel: sum(of["SGD"][0.0]) / len(of["SGD"][0.0]) for panel, of in found.items()}
    labels = {panel: panel.partition(": ")[2] for panel in found}
    draw(folder, "clipping-and-noise-9", found, "step on the fixed batch", labels, mark=marks)
    whole: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in rows:
        if row["figure"] == 10:
            panel = "all weights" if row["keep"] == 1 else f"{row['keep']:.0%} of the weights, not private"
            line = whole.setdefault(panel, {}).setdefault(row["way"], {})
            for epoch, each in enumerate(row["test"], 1):
                line.setdefault(epoch, []).append(each["accuracy"])
    draw(folder, "clipping-and-noise-10-12", whole, "epoch", "test accuracy")
