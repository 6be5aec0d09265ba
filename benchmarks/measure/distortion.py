"""Do angles fall, and does ‖s^B‖ rise, in the layers above when the lower ones are frozen half-way?

For every arm with and without freezing: the medians over the last quarter of the run, for each layer that is live.
"""

import argparse

from benchmarks.measure.arms import DENSE, FASHION, Rows, median, missing, trained
from hoarfrost.measure.measurement import Row

MEASURE = "measure=[{kind='distortion', every=5}, {kind='clipping', every=5}, {kind='freezing', every=25, sample=64}]"
MNIST_CNN = ("privacy.epsilon=3", "privacy.batch_size=1000", "privacy.epochs=5")
TANH_CNN = ("privacy.epsilon=3", "privacy.batch_size=256", "privacy.steps=200")
FROZEN = "freeze={kind='layers', fraction=0.5}"
LOWER_FOUR = "freeze={kind='layers', first=4, fraction=0.5}"
ARMS = {
    "Fashion-MNIST, nothing frozen": (FASHION, (*MNIST_CNN, DENSE)),
    "Fashion-MNIST, lower half frozen": (FASHION, (*MNIST_CNN, FROZEN)),
    "CIFAR-10, nothing frozen": ("cifar10-random", (*TANH_CNN, DENSE)),
    "CIFAR-10, lower four frozen": ("cifar10-random", (*TANH_CNN, LOWER_FOUR)),
}


def main(options: argparse.Namespace) -> None:
    """Trains the arms."""
    rows = Rows("distortion", options)
    for arm, seed in missing(rows, ARMS, options):
        recipe, overrides = ARMS[arm]
        shared = ("loop.evaluate_every=1000", MEASURE)
        result, found = trained("distortion", arm, seed, recipe, (*overrides, *shared), options)
        steps = result.steps
        windows = {"before": (steps / 4, steps / 2), "after": (steps * 3 / 4, steps)}
        rows.add(
            {
                "arm": arm, "seed": seed, "steps": steps, "accuracy": result.test_accuracy,
                **{name: _medians(found["distortion"], *window) for name, window in windows.items()},
                "share_clipped": {
                    name: median(row["share_clipped"] for row in _within(found["clipping"], *window))
                    for name, window in windows.items()
                },
                "same_examples": found["freezing"][-1],
            }
        )  # fmt: skip


def _within(rows: list[Row], first: float, end: float) -> list[Row]:
    return [row for row in rows if first <= row["step"] < end]


def _medians(rows: list[Row], first: float, end: float) -> Row:
    """Of each layer, and of all together."""
    chosen = _within(rows, first, end)
    layers = list(dict.fromkeys(layer for row in chosen for layer in row["layers"]))
    parts = {"all": chosen} | {n: [row["layers"][n] for row in chosen if n in row["layers"]] for n in layers}
    return {
        name: {
            "norm_B": median(row["norms"]["B"] for row in part),
            **{pair: median(row["angles"][pair] for row in part) for pair in ("UB", "BP", "UP")},
        }
        for name, part in parts.items()
    }
