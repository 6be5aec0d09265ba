"""What clipping does to the NTK (paper 003, Table 1): LeNet on MNIST, at its initial weights and after an epoch of SGD.

As `hoarfrost measure ntk` prints it, for several batches and small clipping norms. Not private.
`python -m benchmarks.measure ntk [--quick]`
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import TensorDataset

from benchmarks.measure.arms import Rows
from benchmarks.measure.rows import figures, once
from benchmarks.measure.ways import Way, part, plain, seeded
from hoarfrost import data
from hoarfrost.measure import ClippedFlow, TangentKernels, clipped_flows
from hoarfrost.measure.model_figures import ntk_figure
from hoarfrost.models.lenet import lenet

BATCHES, EXAMPLES, STEPS, STEP = (0, 1, 2), 24, 100, 0.05
SHARES = (0.1, 0.01)  # of the longest gradient: the small clipping norms


def main(options: argparse.Namespace) -> None:
    """Some batches, with weights at the start and after an epoch."""
    rows = Rows("ntk", options)
    train = part(data.load("mnist").train, 500 if options.quick else 20_000)
    trained = Way("SGD", 0.1, 128).train(seeded(lenet, 1), train, 1, 1)
    models = {"initial": seeded(lenet, 1), "after an epoch of SGD": trained}
    count, examples, steps = (1, 4, 2) if options.quick else (None, EXAMPLES, STEPS)
    for weights, model in models.items():
        for number in BATCHES[:count]:
            for share in SHARES[:count]:
                key = {"weights": weights, "batch": number, "R / longest": share}
                once(rows, key, partial(_run, model, train, number, share, examples, steps, weights, figures(options)))
    for row in rows:
        print({name: value for name, value in row.items() if name != "table"})
        for each in row["table"]:
            print("   ", each)


def _run(
    model: nn.Module,
    train: TensorDataset,
    number: int,
    share: float,
    examples: int,
    steps: int,
    weights: str,
    folder: Path,
) -> dict[str, Any]:  # fmt: skip
    x, y = (t[number * examples : (number + 1) * examples] for t in train.tensors)
    batch = TangentKernels(plain(model), x, y)
    found = clipped_flows(batch, share * batch.longest_gradient, steps=steps, step=STEP)
    if number == 0 and share == SHARES[0]:
        ntk_figure(found, folder, f"ntk-{weights.replace(' ', '-')}")
    return {"table": [_row(each) for each in found]}


def _row(each: ClippedFlow) -> dict[str, Any]:
    kernel = each.kernel
    return {
        "clipping": each.clipping, "NTK": each.matrix, "R": each.norm, "symmetric": kernel.symmetric,
        "positive in quadratic form": kernel.positive_in_quadratic_form,
        "positive in eigenvalues": kernel.positive_in_eigenvalues, "least eigenvalue": kernel.least_eigenvalue,
        "least of the quadratic form": kernel.least_quadratic, "decay predicted": kernel.decay,
        "decay measured": each.measured_decay, "rises": each.rises, "first loss": each.losses[0],
        "last loss": each.losses[-1],
    }  # fmt: skip
