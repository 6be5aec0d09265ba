"""The slow and obvious computation that private steps are compared with, and the small models it is done on.

One example at a time, plain autograd on a plain model, no cleverness.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hoarfrost.clipping import Clipping
from hoarfrost.nested import map_tensors

RowLosses = Callable[[Any], Tensor]
"""From a model's output to one loss for every row, [rows]; a row's loss depends on that row alone."""

# Sums are float32 and clipping aims 1e-5 below its bound.
RELATIVE, OF_BOUND = 1e-4, 2e-5


@dataclass(frozen=True)
class Expected:
    """What a step must compute.

    Args:
        norms: [examples, blocks], over live coordinates.
        sums: the clipped sums, by parameter name.
        statistics: the sums of the clipping's statistics, by name.
    """

    norms: Tensor
    sums: dict[str, Tensor]
    statistics: dict[str, float]


def gradients(
    model: nn.Module, arguments: Sequence[Any], row_losses: RowLosses, views: int = 1
) -> list[dict[str, Tensor]]:
    """Each example's gradient, by parameter name: the mean over its views. What it does not reach has zeros.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> gradients(model, [torch.tensor([[1.0, 2.0], [3.0, 4.0]])], lambda output: output[:, 0])
    [{'weight': tensor([[1., 2.]])}, {'weight': tensor([[3., 4.]])}]
    """
    live = {name: p for name, p in model.named_parameters() if p.requires_grad}
    found = []
    for example in range(rows_of(arguments) // views):
        total = {name: torch.zeros_like(p) for name, p in live.items()}
        for row in range(example * views, (example + 1) * views):
            loss = row_losses(model(*take_rows(arguments, row, row + 1))).sum()
            for name, g in zip(live, torch.autograd.grad(loss, list(live.values()), allow_unused=True), strict=True):
                if g is not None:
                    total[name] += g / views
        found.append(total)
    return found


def of_people(by_row: Sequence[Mapping[str, Tensor]], sizes: Sequence[int]) -> list[dict[str, Tensor]]:
    """Each person's gradient: the mean over their rows, which lie one after the other.

    >>> of_people([{"w": torch.tensor(1.0)}, {"w": torch.tensor(2.0)}, {"w": torch.tensor(4.0)}], [1, 2])
    [{'w': tensor(1.)}, {'w': tensor(3.)}]
    """
    rows = iter(by_row)
    own = [[next(rows) for _ in range(size)] for size in sizes]
    return [{name: torch.stack([row[name] for row in mine]).mean(0) for name in mine[0]} for mine in own]


def expected(
    per_example: Sequence[Mapping[str, Tensor]],
    masks: Mapping[str, Tensor],
    clipping: Clipping,
    rounded: Tensor | None = None,
) -> Expected:
    """Norms over live coordinates, block by block; each example's factors from its own norms; then the sum.

    Args:
        rounded: norms to take factors and statistics from, where they agree with these but for rounding: a rule may
            jump.

    >>> from hoarfrost.clipping import Local
    >>> from hoarfrost.info import RunInfo
    >>> clipping = Local(1.0).begin(0, RunInfo({"w": torch.Size([2])}))
    >>> result = expected([{"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.5, 0.0])}], {}, clipping)
    >>> result.norms.flatten().tolist(), result.sums["w"].round(decimals=3)
    ([5.0, 0.5], tensor([1.1000, 0.8000]))
    """
    live = [{name: torch.where(masks[name], g, 0.0) if name in masks else g for name, g in g_b.items()}
            for g_b in per_example]  # fmt: skip
    sums = {name: torch.zeros_like(g) for name, g in live[0].items()}
    norms, statistics = [], {statistic.name: 0.0 for statistic in clipping.statistics}
    for example, gradient in enumerate(live):
        squares = [0.0] * len(clipping.blocks)
        for name, g in gradient.items():
            squares[clipping.block_of[name]] += float(g.double().square().sum())
        norms.append(torch.tensor([squares], dtype=torch.float64).sqrt().float())
        agree = rounded is not None and difference(rounded[example], norms[-1][0], max(clipping.bounds)) <= 1
        norm = rounded[example : example + 1] if rounded is not None and agree else norms[-1]
        factors = clipping.factors(norm)[0].tolist()
        for name, g in gradient.items():
            sums[name] += factors[clipping.block_of[name]] * g
        for statistic in clipping.statistics:
            statistics[statistic.name] += float(statistic.total(norm))
    return Expected(torch.cat(norms), sums, statistics)


def take_rows(arguments: Sequence[Any], start: int, stop: int) -> list[Any]:
    """Some rows of a batch."""
    taken: list[Any] = map_tensors(lambda t: t[start:stop], list(arguments))
    return taken


def rows_of(arguments: Sequence[Any]) -> int:
    """How many rows a batch has."""
    sizes: list[int] = []
    map_tensors(lambda t: sizes.append(len(t)), list(arguments))
    return sizes[0]


def row_losses(output: Any) -> Tensor:
    """A loss of every row whose gradients have many directions and lengths. Of several outputs the first counts."""
    while not isinstance(output, Tensor):
        output = output[0]
    rows = output.flatten(1)
    weights = torch.sin(torch.arange(rows.shape[1], dtype=rows.dtype, device=rows.device) * 1.7 + 0.3)
    projected = (rows * weights).sum(1)
    return projected + projected.square()


def difference(found: Tensor, wanted: Tensor, bound: float) -> float:
    """The largest deviation, over what is tolerated: above 1 is a finding.

    >>> difference(torch.ones(2), torch.ones(2), bound=1.0), difference(torch.ones(2), torch.zeros(2), 1.0) > 1
    (0.0, True)
    """
    if found.shape != wanted.shape:
        return torch.inf
    tolerated = RELATIVE * wanted.double().abs() + OF_BOUND * bound
    worst = ((found.double() - wanted.double()).abs() / tolerated).max() if found.numel() else torch.zeros(())
    return float(worst.nan_to_num(torch.inf))


def small_models() -> tuple[tuple[nn.Module, Tensor], ...]:
    """Models with three outputs, and a batch of inputs for each; the same in every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        linear = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        conv = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 4), nn.Tanh(),
            nn.Linear(4, 3),
        )  # fmt: skip
        words = nn.Sequential(nn.Embedding(11, 4), nn.Linear(4, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
        return (
            (linear, 2 * torch.randn(8, 5)),
            (conv, torch.randn(8, 1, 5, 5)),
            (words, torch.randint(11, (8, 3))),
        )
