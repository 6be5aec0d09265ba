"""Checks the cost model against the clock: `python -m benchmarks.costs`.

For a table of layer shapes it times every method that could compute the norms and the clipped sum, prints estimate and
time of each relative to the fastest, says how much is lost where the model picks another, and fits the rates of
`hoarfrost/gradients/costs.py` anew (least squares on logarithms), to be copied there for another machine.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from hoarfrost.gradients import costs
from hoarfrost.gradients.contributions import Contribution, Outer, live_window
from hoarfrost.masks import PartialMask

OUTER = [  # examples, positions, inputs, outputs
    (1024, 1, 784, 1024), (1024, 1, 1024, 10), (32, 64, 384, 384), (32, 64, 384, 1536), (32, 64, 1536, 384),
    (32, 256, 128, 128), (32, 256, 64, 64), (64, 1024, 32, 32), (128, 16, 64, 64), (16, 128, 768, 768),
]  # fmt: skip
CONV = [  # examples, channels in, channels out, width of the image, window, stride, padding
    (256, 3, 32, 32, 3, 1, 1), (128, 32, 32, 32, 3, 1, 1), (128, 32, 64, 16, 3, 1, 1), (128, 64, 64, 16, 3, 1, 1),
    (256, 64, 128, 8, 3, 1, 1), (256, 128, 128, 8, 3, 1, 1), (64, 64, 64, 32, 3, 1, 1), (64, 64, 128, 32, 3, 2, 1),
    (64, 128, 128, 16, 3, 1, 1), (64, 128, 256, 16, 3, 2, 1), (64, 256, 256, 8, 3, 1, 1), (64, 512, 512, 4, 3, 1, 1),
    (64, 64, 128, 32, 1, 2, 0), (512, 1, 16, 28, 8, 2, 3), (512, 16, 32, 13, 4, 2, 0),
]  # fmt: skip
LIVE = (0.1, 0.5)  # shares of each layer that are live, besides all of it
RATES = ("small_product", "touch", "patch", "call", "gather", "dot", "dotted")
REPEATS = 3


@dataclass
class Case:
    """One layer: what the model estimates, and what the clock says, for each method."""

    name: str
    estimate: Callable[[], dict[str, float]]
    times: dict[str, float]


def clock(run: Callable[[], Any]) -> float:
    """The best of a few runs, in seconds."""
    run()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def both(contribution: Any, weights: torch.Tensor) -> None:
    contribution.squared_norms()
    contribution.weighted_sum(weights)


def forced(method: str, make: Callable[[], Any], weights: torch.Tensor) -> float:
    """The time of one method, chosen whatever the model says."""
    cheapest, costs.cheapest = costs.cheapest, lambda times: method
    try:
        return clock(lambda: both(make(), weights))
    finally:
        costs.cheapest = cheapest


def outer_case(b: int, t: int, p: int, d: int, share: float = 1.0) -> Case:
    a, g, w = torch.randn(b, t, p), torch.randn(b, t, d), torch.rand(b)
    part = PartialMask(torch.rand(d, p) < share)

    def estimate() -> dict[str, float]:
        return costs.outer(b, t, p, d, "cpu") if share == 1 else costs.masked_outer(b, t, p, d, share, "cpu")

    def make() -> Contribution:
        return Outer(a, g) if share == 1 else Outer(a, g).masked(part)

    methods = [m for m in estimate() if m != "written" or b * p * d < 2**27]
    return Case(f"linear {b}x{t} {p}→{d}{_live(share)}", estimate, {m: forced(m, make, w) for m in methods})


def conv_case(b: int, i: int, o: int, width: int, k: int, s: int, pad: int, share: float = 1.0) -> Case:
    layer = nn.Conv2d(i, o, k, stride=s, padding=pad, bias=False)
    x = torch.randn(b, 1, i, width, width)
    with torch.no_grad():
        g = torch.randn_like(layer(x[:, 0])).unsqueeze(1)
    places, pixels = math.prod(g.shape[3:]), (width + 2 * pad) ** 2

    part = share == 1 or PartialMask(torch.rand(layer.weight.shape) < share)

    def estimate() -> dict[str, float]:
        sizes = (b, places, pixels, i, o, k * k)
        return costs.convolution(*sizes, "cpu") if share == 1 else costs.masked_convolution(*sizes, share, "cpu")

    methods = [
        m for m in estimate()
        if (m != "pixels" or pixels <= 400) and (m != "written" or b * i * o * k * k < 2**27)
    ]  # fmt: skip
    times = {m: forced(m, lambda: live_window(x, g, layer, part), torch.rand(b)) for m in methods}
    return Case(f"conv {b}x{width}² {i}→{o} {k}x{k}/{s}{_live(share)}", estimate, times)


def _live(share: float) -> str:
    return "" if share == 1 else f", {share:g} live"


def misfit(cases: list[Case], rates: costs.Rates) -> float:
    """Mean squared difference of logarithms, up to the one unit of time that all cases share."""
    before, costs.RATES["cpu"] = costs.RATES["cpu"], rates
    try:
        logs = [
            math.log(case.estimate()[method]) - math.log(seconds)
            for case in cases
            for method, seconds in case.times.items()
        ]
    finally:
        costs.RATES["cpu"] = before
    mean = sum(logs) / len(logs)
    return sum((x - mean) ** 2 for x in logs) / len(logs)


def fitted(cases: list[Case]) -> costs.Rates:
    """Coordinate search in factors of 1.15: a few rates, a smooth valley."""
    rates, best = costs.RATES["cpu"], misfit(cases, costs.RATES["cpu"])
    for _, name, factor in itertools.product(range(40), RATES, (1.15, 1 / 1.15)):
        tried = replace(rates, **{name: getattr(rates, name) * factor})
        if (value := misfit(cases, tried)) < best:
            rates, best = tried, value
    return rates


def main() -> None:
    shares = (1.0, *LIVE)
    cases = [outer_case(*row, share) for row in OUTER for share in shares]
    cases += [conv_case(*row, share) for row in CONV for share in shares]
    table = Table("layer", "method", "estimate", "time", "picked", title="Relative to the fastest method", box=None)
    lost = 0.0
    for case in cases:
        estimate = {m: case.estimate()[m] for m in case.times}
        picked, fastest = costs.cheapest(estimate), min(case.times.values())
        lost += case.times[picked] / fastest - 1
        for method, seconds in sorted(case.times.items(), key=lambda item: item[1]):
            ratio = estimate[method] / min(estimate.values())
            mark = "←" if method == picked else ""
            table.add_row(case.name, method, f"{ratio:.2f}", f"{seconds / fastest:.2f}", mark)
    console = Console()
    console.print(table)
    console.print(f"picking by estimate costs {100 * lost / len(cases):.1f} % over the fastest method, on average")
    console.print(f"rates now:    {costs.RATES['cpu']}")
    console.print(f"rates fitted: {fitted(cases)}")


if __name__ == "__main__":
    main()
