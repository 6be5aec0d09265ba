"""Two phases: SGD or DP-SGD up to epoch k, SGD or DP-SGD after it. Which one decides? (paper 002, Figures 2 and 20)

Not private: phases of plain SGD see the data as they are. `python -m benchmarks.measure phases [--quick]`
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once, seeds_of
from benchmarks.measure.spread import draw
from benchmarks.measure.ways import Way, part, plain, seeded, tests
from hoarfrost import data
from hoarfrost.models.lenet import lenet
from hoarfrost.models.resnet import ResNet


@dataclass(frozen=True)
class Setting:
    """What is trained on what, and when the phases change."""

    build: Callable[[], nn.Module]
    data: str
    examples: int
    k: int
    epochs: int
    seeds: tuple[int, ...]
    sgd: Way
    dp_sgd: Way


SETTINGS = {
    "LeNet on MNIST": Setting(
        lenet, "mnist", 20_000, 5, 10, (1, 2, 3),
        Way("SGD", 0.1, 128), Way("DP-SGD", 1.0, 512, clip=1.0, noise=0.55),
    ),
    "ResNet-18 of a quarter of the width on CIFAR-10": Setting(
        partial(ResNet, 10, width=16), "cifar10", 10_000, 3, 6, (1,),
        Way("SGD", 0.1, 128), Way("DP-SGD", 0.5, 1024, clip=1.0, noise=0.55),
    ),
}  # fmt: skip


def main(options: argparse.Namespace) -> None:
    """All settings; with --quick the first one, on little."""
    rows = Rows("phases", options)
    for name, setting in list(SETTINGS.items())[: 1 if options.quick else None]:
        splits = data.load(setting.data)
        examples, k, epochs = (1500, 1, 2) if options.quick else (setting.examples, setting.k, setting.epochs)
        train, test = part(splits.train, examples), part(splits.test, 2000)
        for seed in seeds_of(options, setting.seeds):
            for first in (setting.sgd, setting.dp_sgd):
                key = {"setting": name, "seed": seed, "phase 1": first.name}
                once(rows, key, partial(_run, setting, first, train, test, k, epochs, seed))
    _figure(list(rows), figures(options))


def _run(
    setting: Setting, first: Way, train: TensorDataset, test: TensorDataset, k: int, epochs: int, seed: int
) -> dict[str, Any]:
    """One first phase, and both second phases from where it ends."""
    model, curve = seeded(setting.build, seed), []
    seen = part(train, 2000)
    for _ in first.epochs(model, train, k, seed):
        curve.append({"train": tests(model, seen), "test": tests(model, test)})
    curves = {}
    for second in (setting.sgd, setting.dp_sgd):
        after, rest = plain(model), []
        for _ in second.epochs(after, train, epochs - k, 1000 + seed):
            rest.append({"train": tests(after, seen), "test": tests(after, test)})
        curves[second.name] = [*curve, *rest]
    return {"k": k, "phase 2": curves}


def _figure(rows: list[dict[str, Any]], folder: Path) -> None:
    for number, setting in enumerate(dict.fromkeys(row["setting"] for row in rows)):
        found: dict[str, dict[str, dict[float, list[float]]]] = {"training loss": {}, "test accuracy": {}}
        for row in rows:
            for second, curve in row["phase 2"].items():
                for panel, of, what in (("training loss", "train", "loss"), ("test accuracy", "test", "accuracy")):
                    line = found[panel].setdefault(f"{row['phase 1']}, then {second}", {})
                    for epoch, each in enumerate(curve if row["setting"] == setting else (), 1):
                        line.setdefault(epoch, []).append(each[of][what])
        draw(folder, f"phases-{number}", found, "epoch", {"training loss": setting, "test accuracy": setting})
