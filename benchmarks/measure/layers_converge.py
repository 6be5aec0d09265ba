"""Does the first layer converge first under DP-SGD? (paper 000, Figure 1, right) The MNIST CNN on Fashion-MNIST.

What each layer answers to test images, after its activation function, is compared with what it answers at the end, by
PWCCA as in the paper, and by CKA. Before the activation function PWCCA would say nothing of the first layer: CCA does
not mind any invertible matrix, and a linear layer with as many neurons as it has inputs differs by one from any other.
`python -m benchmarks.measure layers_converge [--quick]`
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

import hoarfrost
from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once, seeds_of
from benchmarks.measure.spread import draw
from benchmarks.measure.ways import DELTA, part, seeded, tests
from hoarfrost import data
from hoarfrost.measure import Convergence
from hoarfrost.measure.activations import BY_NAME
from hoarfrost.models.mnist_cnn import mnist_cnn

LAYERS = {"1": "Layer 1 (convolution)", "4": "Layer 2 (convolution)", "8": "Layer 3 (linear)", "9": "Layer 4 (logits)"}
SEEDS, STEPS, EVERY, IMAGES, POINTS = (1, 2, 3), 300, 20, 500, 4000
SETTINGS = {"DP-SGD": (1.0, 2.15), "clipping only": (1.0, 0.0)}  # clipping norm and noise multiplier


def main(options: argparse.Namespace) -> None:
    """DP-SGD, and the same without noise as a control, with all seeds."""
    rows = Rows("layers_converge", options)
    splits = data.load("fashion-mnist")
    train, test = part(splits.train, 2000 if options.quick else 60_000), part(splits.test, IMAGES)
    steps, every = (4, 2) if options.quick else (STEPS, EVERY)
    for seed in seeds_of(options, SEEDS):
        for name in SETTINGS:
            once(rows, {"way": name, "seed": seed}, partial(_run, name, seed, train, test, steps, every))
    _told(list(rows))
    _figures(list(rows), figures(options))


def _run(name: str, seed: int, train: TensorDataset, test: TensorDataset, steps: int, every: int) -> dict[str, Any]:
    clip, noise = SETTINGS[name]
    model = seeded(mnist_cnn, seed)
    private = hoarfrost.make_private(
        model, torch.optim.SGD(model.parameters(), lr=4.0), train, batch_size=min(2048, len(train) // 2), steps=steps,
        noise_multiplier=noise, clip=clip, delta=DELTA, seed=seed,
    )  # fmt: skip
    record = Convergence(model, data.batches(test, IMAGES), layers=list(LAYERS), points=POINTS)  # type: ignore[arg-type]
    record(0)
    while private.steps_taken < steps:
        for x, y in private.loader:
            private.optimizer.zero_grad()
            private.optimizer.backward(torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            private.optimizer.step()
            if private.steps_taken % every == 0:
                record(private.steps_taken)
    found = {kind: {str(s): of for s, of in record.scores(measure).items()} for kind, measure in BY_NAME.items()}
    return {"scores": found, "test accuracy": tests(model, test)["accuracy"]}


def _told(rows: list[dict[str, Any]]) -> None:
    """When each layer has come half of the way: the first record whose distance is half of that at the start."""
    for row in rows:
        for kind, of in row["scores"].items():
            halves = []
            for layer in LAYERS:
                distances = {int(step): 1 - scores[layer] for step, scores in of.items()}
                halves.append(next(step for step, d in sorted(distances.items()) if d <= distances[0] / 2))
            print(f"{row['way']}, seed {row['seed']}, {kind}: half of the way after {halves} steps")


def _figures(rows: list[dict[str, Any]], folder: Path) -> None:
    found: dict[str, dict[str, dict[float, list[float]]]] = {}
    for row in rows:
        for kind, of in row["scores"].items():
            panel = found.setdefault(f"{row['way']}: {kind}", {})
            for step, scores in of.items():
                for layer, label in LAYERS.items():
                    panel.setdefault(label, {}).setdefault(int(step), []).append(1 - scores[layer])
    draw(folder, "layers-converge", found, "step", "1 − similarity with the last step")
