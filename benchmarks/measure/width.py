"""The mean squared error of one example's noised gradient, beside Tr Σ·(1 + d·σ²), as a network grows wider.

As in the theorem, nothing is clipped: the noise is σ times the longest gradient. Untrained networks, one hidden layer.
"""

import argparse

import torch
from torch import nn

from benchmarks.measure.arms import Rows, missing
from hoarfrost import data
from hoarfrost.losses import cross_entropy
from hoarfrost.measure import Outside, mse_bound

WIDTHS = (4, 8, 16, 32, 64, 128, 256)
SIGMA = 1.0


def main(options: argparse.Namespace) -> None:
    """Measures each width."""
    rows = Rows("width", options)
    train = data.load("fashion-mnist").train
    examples = 16 if options.quick else 256
    for arm, seed in missing(rows, [f"width {width}" for width in WIDTHS], options):
        torch.manual_seed(seed)
        width = int(arm.split()[1])
        model = nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, width), nn.Tanh(), nn.Linear(width, 10))
        outside = Outside(model, train, lambda model, batch: cross_entropy(model(batch[0]), batch[1]))
        names = [name for name, _ in model.named_parameters()]
        total: torch.Tensor | None = None
        squares = []
        for gradient in outside.each(names, outside.some(examples)):
            flat = torch.cat([t.flatten() for t in gradient.values()]).double()
            squares.append(float(flat.square().sum()))
            total = flat if total is None else total + flat
        assert total is not None
        mean_square, dimensions = float((total / examples).square().sum()), total.numel()
        trace = (sum(squares) / examples - mean_square) * examples / (examples - 1)
        rows.add(
            {
                "arm": arm, "seed": seed, "dimensions": dimensions, "trace": trace, "longest": max(squares) ** 0.5,
                "mse": trace + dimensions * SIGMA**2 * max(squares), "bound": mse_bound(trace, dimensions, SIGMA),
            }
        )  # fmt: skip
